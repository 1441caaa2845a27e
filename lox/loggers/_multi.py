"""Several loggers as one."""

from ._desk import Fan
from ._logger import BaseLogger


class MultiLogger(BaseLogger):
    """Logs to several loggers, with one `spool` or `tap` for all of them.

    If one of them fails, the others go on.

    Args:
        *loggers: Any loggers. What is logged to them elsewhere goes to the same runs.
    """

    def __init__(self, *loggers: BaseLogger):
        wrong = [each for each in loggers if not isinstance(each, BaseLogger)]
        if wrong or not loggers:
            given = type(wrong[0]).__name__ if wrong else "none"
            raise TypeError(f"`MultiLogger` takes one or more loggers, not {given}.")
        super().__init__(Fan([each._desk for each in loggers]))
