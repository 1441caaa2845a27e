"""Loggers: where logs go, with a run for each seed."""

from lox._writer import (
    Batch as Batch,
    Block as Block,
    Form as Form,
    Row as Row,
    Run as Run,
    Writer as Writer,
)

from ._console import ConsoleLogger as ConsoleLogger
from ._csv import CSVLogger as CSVLogger
from ._json import JSONLogger as JSONLogger
from ._logger import (
    BaseLogger as BaseLogger,
    Logger as Logger,
    LoggerState as LoggerState,
)
from ._multi import MultiLogger as MultiLogger
from ._save import SaveLogger as SaveLogger
