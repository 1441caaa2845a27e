"""Loggers: where logs go, with a run for each seed."""

import typing as _typing

from lox._quick import IS_COMMAND as _IS_COMMAND
from lox._writer import (
    Batch as Batch,
    Block as Block,
    Form as Form,
    Row as Row,
    Run as Run,
    Writer as Writer,
)

if _typing.TYPE_CHECKING or not _IS_COMMAND:
    from ._console import ConsoleLogger as ConsoleLogger
    from ._csv import CSVLogger as CSVLogger
    from ._json import JSONLogger as JSONLogger
    from ._logger import (
        BaseLogger as BaseLogger,
        Logger as Logger,
        LoggerState as LoggerState,
    )
    from ._mlflow import MLflowLogger as MLflowLogger
    from ._multi import MultiLogger as MultiLogger
    from ._neptune import NeptuneLogger as NeptuneLogger
    from ._plot import PlotLogger as PlotLogger
    from ._save import SaveLogger as SaveLogger
    from ._tensorboard import TensorBoardLogger as TensorBoardLogger
    from ._trackio import TrackioLogger as TrackioLogger
    from ._wandb import WandbLogger as WandbLogger
