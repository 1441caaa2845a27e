"""How logs leave each higher-order primitive: `rules`, by the name of the primitive."""

from lox._core.rules import custom as _custom, devices as _devices  # noqa: F401
from lox._core.rules.table import rules as rules
