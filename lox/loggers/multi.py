"""`MultiLogger`: several loggers as one."""

from collections.abc import Mapping
from typing import Any

from lox.loggers.base import BaseLogger
from lox_host.fan_out import fan_out


class MultiLogger(BaseLogger):
    """Log to several loggers, with one `spool` or `tap` for all of them.

    If one of them fails or hangs, the others continue.

    Args:
        *loggers: Any loggers. You can still use each of them alone, for the same runs.
        config: Added to the configuration of each logger. Where both have an entry, this
            one wins.
    """

    def __init__(self, *loggers: BaseLogger, config: Mapping[str, Any] | None = None):
        others = [x for x in loggers if not isinstance(x, BaseLogger)]
        if others or not loggers:
            given = type(others[0]).__name__ if others else "none"
            raise TypeError(f"`MultiLogger` takes one or more loggers, not {given}.")
        super().__init__(fan_out([logger._host for logger in loggers], config))
