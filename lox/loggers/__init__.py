"""Loggers: where logs go, with a run for each seed."""

from typing import TYPE_CHECKING

from lox._lazy import lazy_names
from lox.loggers.base import (
    BaseLogger as BaseLogger,
    Logger as Logger,
    LoggerState as LoggerState,
)
from lox.loggers.multi import MultiLogger as MultiLogger
from lox_host.rows import (
    Batch as Batch,
    Block as Block,
    Form as Form,
    Row as Row,
)
from lox_host.runs.run import Run as Run
from lox_host.writer import Writer as Writer

if TYPE_CHECKING:
    from lox.loggers.console import ConsoleLogger as ConsoleLogger
    from lox.loggers.csv import CSVLogger as CSVLogger
    from lox.loggers.json import JSONLogger as JSONLogger
    from lox.loggers.mlflow import MLflowLogger as MLflowLogger
    from lox.loggers.neptune import NeptuneLogger as NeptuneLogger
    from lox.loggers.opentelemetry import OpenTelemetryLogger as OpenTelemetryLogger
    from lox.loggers.plot import PlotLogger as PlotLogger
    from lox.loggers.save import SaveLogger as SaveLogger
    from lox.loggers.tensorboard import TensorBoardLogger as TensorBoardLogger
    from lox.loggers.trackio import TrackioLogger as TrackioLogger
    from lox.loggers.wandb import WandbLogger as WandbLogger

__all__ = [
    "BaseLogger",
    "Batch",
    "Block",
    "CSVLogger",
    "ConsoleLogger",
    "Form",
    "JSONLogger",
    "Logger",
    "LoggerState",
    "MLflowLogger",
    "MultiLogger",
    "NeptuneLogger",
    "OpenTelemetryLogger",
    "PlotLogger",
    "Row",
    "Run",
    "SaveLogger",
    "TensorBoardLogger",
    "TrackioLogger",
    "WandbLogger",
    "Writer",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "ConsoleLogger": "lox.loggers.console",
        "CSVLogger": "lox.loggers.csv",
        "JSONLogger": "lox.loggers.json",
        "MLflowLogger": "lox.loggers.mlflow",
        "NeptuneLogger": "lox.loggers.neptune",
        "OpenTelemetryLogger": "lox.loggers.opentelemetry",
        "PlotLogger": "lox.loggers.plot",
        "SaveLogger": "lox.loggers.save",
        "TensorBoardLogger": "lox.loggers.tensorboard",
        "TrackioLogger": "lox.loggers.trackio",
        "WandbLogger": "lox.loggers.wandb",
    },
)
