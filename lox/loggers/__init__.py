"""Loggers: where logs go, with a run for each seed."""

from lox.loggers.base import (
    BaseLogger as BaseLogger,
    Logger as Logger,
    LoggerState as LoggerState,
)
from lox.loggers.console import ConsoleLogger as ConsoleLogger
from lox.loggers.csv import CSVLogger as CSVLogger
from lox.loggers.json import JSONLogger as JSONLogger
from lox.loggers.mlflow import MLflowLogger as MLflowLogger
from lox.loggers.multi import MultiLogger as MultiLogger
from lox.loggers.neptune import NeptuneLogger as NeptuneLogger
from lox.loggers.plot import PlotLogger as PlotLogger
from lox.loggers.save import SaveLogger as SaveLogger
from lox.loggers.tensorboard import TensorBoardLogger as TensorBoardLogger
from lox.loggers.trackio import TrackioLogger as TrackioLogger
from lox.loggers.wandb import WandbLogger as WandbLogger
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
