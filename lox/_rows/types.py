"""The types that rows, accumulators and logs are made of."""

from typing import ParamSpec, TypeVar

import jax

Keys = tuple[str, ...]
"""The keys that share an entry, because they were logged together."""

Shape = tuple[int, ...]

Splits = tuple[tuple[str, ...], ...]
"""For each of some batch axes, the axes of a mesh that it is split over, mostly none."""

RowForm = tuple[jax.tree_util.PyTreeDef, tuple[jax.ShapeDtypeStruct, ...]]
"""The structure of one row, and its arrays without time and batch axes."""

# The parameters and the result of a function that is transformed.
P = ParamSpec("P")
R = TypeVar("R")
