"""The types that rows, accumulators and logs are made of."""

from typing import Any, ParamSpec, TypeVar

import jax

PyTree = Any
"""What a user logs, and what a user's reduction makes of it: arrays in any containers."""

AnyArray = Any
"""An array of rows: under `jit` a tracer, on the host of NumPy, in a form an abstract one.

That is a `jax.Array`, an `np.ndarray` or a `jax.ShapeDtypeStruct`.
"""

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
