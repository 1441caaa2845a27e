"""`MultiLogger`: several loggers as one."""

from lox.loggers.base import BaseLogger
from lox_host.fan_out import fan_out


class MultiLogger(BaseLogger):
    """Logs to several loggers, with one `spool` or `tap` for all of them.

    If one of them fails, the others go on.

    Args:
        *loggers: Any loggers. What is logged to them elsewhere goes to the same runs.
    """

    def __init__(self, *loggers: BaseLogger):
        others = [x for x in loggers if not isinstance(x, BaseLogger)]
        if others or not loggers:
            given = type(others[0]).__name__ if others else "none"
            raise TypeError(f"`MultiLogger` takes one or more loggers, not {given}.")
        super().__init__(fan_out([logger._host for logger in loggers]))
