"""Loggers: where logs go, with a run for each seed."""

import importlib
from typing import TYPE_CHECKING, Any

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
from lox_host.writer import (
    Run as Run,
    Writer as Writer,
)

if TYPE_CHECKING:
    from lox.loggers.console import ConsoleLogger as ConsoleLogger
    from lox.loggers.csv import CSVLogger as CSVLogger
    from lox.loggers.json import JSONLogger as JSONLogger
    from lox.loggers.mlflow import MLflowLogger as MLflowLogger
    from lox.loggers.neptune import NeptuneLogger as NeptuneLogger
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
    "PlotLogger",
    "Row",
    "Run",
    "SaveLogger",
    "TensorBoardLogger",
    "TrackioLogger",
    "WandbLogger",
    "Writer",
]

# Imported when they are first asked for: together they take as long as the rest of lox.
_MODULES = {
    "ConsoleLogger": "console",
    "CSVLogger": "csv",
    "JSONLogger": "json",
    "MLflowLogger": "mlflow",
    "NeptuneLogger": "neptune",
    "PlotLogger": "plot",
    "SaveLogger": "save",
    "TensorBoardLogger": "tensorboard",
    "TrackioLogger": "trackio",
    "WandbLogger": "wandb",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    logger = getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = logger
    return logger


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})
