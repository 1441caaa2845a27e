"""The same as `lox.logify`, for programs that import it under this name."""

from lox.logify import Logs as Logs, log as log, logify as logify
