"""Loggers: where logs go, with a run for each seed."""

from ._writer import Batch as Batch, Block as Block, Form as Form, Row as Row, Run as Run
from ._writer import Writer as Writer
