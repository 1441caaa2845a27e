"""Which batch axes of several keys are the same, and what they are called. No JAX.

In nested `vmap`s, one key may depend on both axes and another on one of them. Which one it
is follows from the sizes, if these leave only one way:

    (2, 3) and (3,)       the axes are batch_0, batch_1 and batch_1
    (3, 3) and (3,)       it may be either: the axis gets a name of its own
"""

import itertools as it
from collections.abc import Mapping

Shape = tuple[int, ...]


def embedding(small: Shape, large: Shape) -> tuple[int, ...] | None:
    """Return which axes of `large` those of `small` are, if there is only one way."""
    # The axes keep their order, as nested `vmap`s do.
    ways = [
        axes
        for axes in it.combinations(range(len(large)), len(small))
        if tuple(large[i] for i in axes) == small
    ]
    return ways[0] if len(ways) == 1 else None


def batch_axis_names(shapes: Mapping[str, Shape]) -> dict[str, tuple[str, ...]]:
    """Name the batch axes of each key, from the outermost to the innermost.

    Args:
        shapes: By key, the sizes of its batch axes.
    """
    widest = max(shapes.values(), key=len, default=())
    names = _numbered("batch", len(widest))
    found = {}
    for key, shape in shapes.items():
        axes = embedding(shape, widest)
        # If it is not clear which of the axes these are, they get names of their own.
        own_names = _numbered(f"batch_{key}", len(shape))
        found[key] = own_names if axes is None else tuple(names[i] for i in axes)
    return found


def _numbered(name: str, count: int) -> tuple[str, ...]:
    return (name,) if count == 1 else tuple(f"{name}_{i}" for i in range(count))
