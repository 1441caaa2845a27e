"""The types that rows, accumulators and logs are made of."""

from typing import ParamSpec, TypeVar

import jax

from lox._jax.types import PyTreeDef

Keys = tuple[str, ...]
"""The keys that share an entry, because they were logged together."""

Shape = tuple[int, ...]

Splits = tuple[tuple[str, ...], ...]
"""For each of some batch axes, the axes of a mesh that it is split over, mostly none."""

RowForm = tuple[PyTreeDef, tuple[jax.ShapeDtypeStruct, ...]]
"""The structure of one row, and its arrays without time and batch axes."""

# The parameters and the result of a function that is transformed.
P = ParamSpec("P")
R = TypeVar("R")
