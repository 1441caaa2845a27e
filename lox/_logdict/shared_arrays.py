"""Steps and masks that several keys have in common, as one array in a pytree.

The keys of one record have the same steps. Where their rows are made they get the same
dictionary of steps, the same mask and so on: not equal ones, but the same objects. When
logs are flattened, to leave a jitted function or to be sent to the host, each such object
is there once, with the first key that has it. The structure says for each key in which
place its arrays are (`owners`):

    a: steps S, valid V      meta = [(S, V, {}, None),        owners = ((0, 0, 0, 0),
    b: steps S, valid V              ({}, None, {}, None),              (0, 0, 1, 1),
    c: steps T                       (T, None, {}, None)]               (2, 2, 2, 2))

Logs that a user has put together share nothing: each key has a dictionary of its own,
whatever is in it. So they have the same structure if they have the same keys and steps.
"""

from collections.abc import Sequence

from lox._jax.types import PyTree

# The steps, the mask, the masks of steps, and the count of a key, see `Rows.arrays`.
Arrays = tuple[PyTree, ...]
# For each of them the number of the key that it is stored with.
Owners = tuple[tuple[int, ...], ...]

_NONE: Arrays = ({}, None, {}, None)


def share(arrays: Sequence[Arrays]) -> tuple[list[Arrays], Owners]:
    """Leave out what an earlier key has, and return whose arrays each key has."""
    meta: list[Arrays] = []
    owners: list[tuple[int, ...]] = []
    owner_of: dict[int, int] = {}  # by the identity of an object
    for i, key_arrays in enumerate(arrays):
        key_owners = tuple(
            i if _is_none(tree) else owner_of.setdefault(id(tree), i) for tree in key_arrays
        )
        kept = zip(key_arrays, key_owners, _NONE, strict=True)
        meta.append(tuple(tree if owner == i else none for tree, owner, none in kept))
        owners.append(key_owners)
    return meta, tuple(owners)


def unshare(meta: Sequence[Arrays], owners: Owners) -> list[Arrays]:
    """Undo `share`: return the arrays of each key."""
    return [
        tuple(meta[owner][j] for j, owner in enumerate(key_owners)) for key_owners in owners
    ]


def nothing_shared(number: int) -> Owners:
    """Return the owners of `number` keys that share nothing."""
    return tuple((i,) * len(_NONE) for i in range(number))


def _is_none(tree: PyTree) -> bool:
    return tree is None or (isinstance(tree, dict) and not tree)
