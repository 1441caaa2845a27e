"""`scopes`: list the name scopes of a program, with what leaves them."""

import dataclasses
import functools as ft
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, ParamSpec

import jax
from jax.core import AbstractValue

from lox._core import context as _context
from lox._core.analysis import last_uses
from lox._core.derivative_hook import looking
from lox._core.log import check_function
from lox._core.record import log_p
from lox._core.staging import trace
from lox._inside.watching.handler import WatchInside
from lox._inside.watching.module_scopes import open_module_scopes
from lox._inside.watching.options import WatchOptions
from lox._inside.watching.watchable_places import (
    EVERYTHING,
    NOWHERE,
    ScopeEntry,
    ScopesAround,
    entries_in,
    outputs_of,
    programs_in,
)
from lox._jax import equations
from lox._jax.extend import Jaxpr, JaxprEqn

P = ParamSpec("P")


def scopes(fun: Callable[P, Any]) -> Callable[P, "Scopes"]:
    """List the scopes of a function that `lox.watch` can watch, without running it.

    Args:
        fun: Any JAX function.

    Returns:
        A function that takes the arguments of `fun`, and returns a mapping from the paths
        of scopes to what leaves them: the type of each array, once for each time that the
        scope is entered. It prints as a tree. `×3` means that the scope is inside
        a `scan` of three iterations.

    Example:
        >>> def network(weights, x):
        ...     def layer(h, w):
        ...         with jax.named_scope("block"):
        ...             with jax.named_scope("mlp"):
        ...                 out = jnp.tanh(w @ h)
        ...             return h + out, None
        ...     h, _ = jax.lax.scan(layer, x, weights)
        ...     with jax.named_scope("head"):
        ...         return h.sum()
        >>> found = lox.scopes(network)(jnp.ones((3, 2, 2)), jnp.zeros(2))
        >>> print(found)
        block     float32[2] ×3
        └─ mlp    float32[2] ×3
        head      float32[]
        >>> list(found)
        ['block', 'block/mlp', 'head']
    """
    check_function("lox.scopes", fun)

    @ft.wraps(fun)
    def listed(*args: P.args, **kwargs: P.kwargs) -> Scopes:
        # What is differentiated inside is in the program as records, see
        # `derivative_hook.py`.
        look = looking(WatchInside(_VALUES))
        with _context.captured(), look, open_module_scopes():
            traced = trace(fun, *args, **kwargs)
        return Scopes(_found(traced.jaxpr.jaxpr))

    return listed


_VALUES = WatchOptions(
    selection=EVERYTHING,
    values=("out",),
    stats=(("value", lambda x: x),),
    loops=(),
    tags=(),
)


@dataclasses.dataclass(frozen=True)
class Returned:
    """What leaves a scope in one entry into it.

    Attributes:
        types: The types of the arrays, such as `float32[8, 16]`.
        times: How often the loops around run it. None: that is not known.
    """

    types: tuple[str, ...]
    times: int | None = 1

    def __repr__(self) -> str:
        text = ", ".join(self.types) or "nothing"
        if self.times == 1:
            return text
        return f"{text} ×{'?' if self.times is None else self.times}"


# What leaves each scope, by its path.
Found = dict[tuple[str, ...], list[Returned]]


class Scopes(dict[str, list[Returned]]):
    """The scopes of a program by path, with what leaves them. It prints as a tree."""

    def __init__(self, found: Found):
        self._lines = list(_lines(list(found), ()))
        super().__init__(
            {"/".join(path): found[path] for _, path in self._lines if path in found}
        )

    def __repr__(self) -> str:
        if not self._lines:
            return "no name scopes"
        width = max(len(text) for text, _ in self._lines)
        rows = [(text, self.get("/".join(path), [])) for text, path in self._lines]
        return "\n".join(
            f"{text:{width}}  {_summary(entries)}".rstrip() for text, entries in rows
        )


def _lines(
    paths: list[tuple[str, ...]], above: tuple[str, ...], indent: str = ""
) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the text and the path of each line of a tree."""
    depth = len(above)
    inside = [path for path in paths if len(path) > depth and path[:depth] == above]
    names = list(dict.fromkeys(path[depth] for path in inside))
    for name in names:
        is_last = name == names[-1]
        branch, below = ("└─ ", "   ") if is_last else ("├─ ", "│  ")
        if not above:
            branch = below = ""
        yield f"{indent}{branch}{name}  ", (*above, name)
        yield from _lines(paths, (*above, name), indent + below)


def _summary(entries: list[Returned]) -> str:
    """Return all entries in a few words: those that return the same are counted."""
    counts = Counter(map(repr, entries))
    return "; ".join(f"{text} ({n} times)" if n > 1 else text for text, n in counts.items())


def _found(program: Jaxpr, within: ScopesAround = NOWHERE, times: int | None = 1) -> Found:
    """Return what leaves each scope, in the order in which scopes start."""
    found: Found = {}
    uses, starts = last_uses(program), _by_start(program, within)
    for i, eqn in enumerate(program.eqns):
        for entry in starts.get(i, ()):
            outs = [v.aval for v in outputs_of(program, entry, uses)]
            found.setdefault(entry.path, []).append(_returned(outs, times))
        inside = within.inside(eqn)
        if eqn.primitive is log_p:
            (record,) = jax.tree.unflatten(eqn.params["form"], eqn.invars)
            if record.scope is not None:
                path = (*inside.outside, *record.scope.split("/"))
                outs = [v.aval for v in record.values]
                found.setdefault(path, []).append(_returned(outs, times))
        for inner in programs_in(eqn):
            for path, returned in _found(inner, inside, _times(eqn, times)).items():
                found.setdefault(path, []).extend(returned)
    return found


def _by_start(program: Jaxpr, within: ScopesAround) -> dict[int, list[ScopeEntry]]:
    """Return the entries of a program by their first equation, outer scopes first."""
    starts: dict[int, list[ScopeEntry]] = {}
    entries = entries_in(program, within, EVERYTHING)
    # Of those that start together, the one that ends later is around the other.
    for entry in sorted(entries, key=lambda entry: (-entry.end, len(entry.path))):
        if not entry.is_derivative:
            starts.setdefault(entry.start, []).append(entry)
    return starts


def _returned(avals: list[AbstractValue], times: int | None) -> Returned:
    return Returned(tuple(aval.str_short() for aval in avals), times)


def _times(eqn: JaxprEqn, times: int | None) -> int | None:
    """Return how often the programs in an equation run."""
    name = equations.primitive_name(eqn)
    if times is None or name == "while":
        return None
    return times * eqn.params["length"] if name == "scan" else times
