"""Steps and masks that several keys have in common, as one array in a pytree.

The keys of one record have the same steps. Where their rows are made they get the same
dictionary of steps, the same mask and so on: not equal ones, but the same objects. When
logs are flattened, to leave a jitted function or to be sent to the host, each such object
is there once, with the first key that has it, and the structure says whose each key has:

    a: steps S, valid V      meta = [(S, V, {}, None),        owners = ((0, 0, 0, 0),
    b: steps S, valid V              ({}, None, {}, None),              (0, 0, 1, 1),
    c: steps T                       (T, None, {}, None)]               (2, 2, 2, 2))

Logs that a user has put together share nothing: each key has a dictionary of its own,
whatever is in it. So they have the same structure if they have the same keys and steps.
"""

from collections.abc import Sequence
from typing import Any

# The steps, the mask, the masks of steps, and the count of a key, see `Rows.arrays`.
Arrays = tuple[Any, ...]
# For each of them the number of the key that it stands with.
Owners = tuple[tuple[int, ...], ...]

_NONE: Arrays = ({}, None, {}, None)


def share(arrays: Sequence[Arrays]) -> tuple[list[Arrays], Owners]:
    """Leave out what an earlier key has, and return whose each key has."""
    meta: list[Arrays] = []
    owners: list[tuple[int, ...]] = []
    owner_of: dict[int, int] = {}
    for i, own in enumerate(arrays):
        found = tuple(
            i if _is_none(tree) else owner_of.setdefault(id(tree), i) for tree in own
        )
        meta.append(tuple(own[j] if at == i else _NONE[j] for j, at in enumerate(found)))
        owners.append(found)
    return meta, tuple(owners)


def unshare(meta: Sequence[Arrays], owners: Owners) -> list[Arrays]:
    """Return what each key has."""
    return [tuple(meta[at][j] for j, at in enumerate(own)) for own in owners]


def nothing_shared(number: int) -> Owners:
    """Return the owners where each of `number` keys has its own."""
    return tuple((i,) * len(_NONE) for i in range(number))


def _is_none(tree: Any) -> bool:
    return tree is None or (isinstance(tree, dict) and not tree)
