"""Trees of NumPy arrays, in dictionaries, lists and tuples. No JAX."""

from collections.abc import Callable, Hashable, Iterator
from typing import Any, TypeAlias

import numpy as np

# An array, or a dictionary, list or tuple of trees, or None. Spelt out, the type would be
# invariant: a dictionary of arrays would not be a dictionary of trees.
Tree: TypeAlias = Any


def leaves(tree: Tree, name: str = "") -> Iterator[tuple[str, np.ndarray]]:
    """Yield the arrays of a tree with their names, `key/path/in/the/tree`."""
    if isinstance(tree, np.ndarray | np.generic):
        yield name, tree  # pyright: ignore[reportReturnType]
        return
    items = tree.items() if isinstance(tree, dict) else enumerate(tree or ())
    for part, inner in items:
        yield from leaves(inner, f"{name}/{part}" if name else str(part))


def map_arrays(fun: Callable[..., object], *trees: Tree) -> Tree:
    """Apply `fun` to the arrays of a tree, or of several trees of one structure."""
    first = trees[0]
    if isinstance(first, dict):
        return {name: map_arrays(fun, *(tree[name] for tree in trees)) for name in first}
    if isinstance(first, list | tuple):
        return type(first)(map_arrays(fun, *inner) for inner in zip(*trees, strict=True))
    return None if first is None else fun(*trees)


def row_structure(tree: Tree) -> Hashable:
    """Return what two trees have in common if their arrays can be concatenated."""
    if isinstance(tree, np.ndarray):
        return tree.dtype, tree.shape[1:]
    if isinstance(tree, dict):
        return dict, *((name, row_structure(inner)) for name, inner in tree.items())
    return None if tree is None else (type(tree), *map(row_structure, tree))
