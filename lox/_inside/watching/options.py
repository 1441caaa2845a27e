"""The options of `watch`: what to watch, and how to describe it."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence

import jax
import jax.numpy as jnp

from lox._core.log import check_values, names_in
from lox._inside.stats import STATISTICS, described
from lox._inside.watching.watchable_places import Selection
from lox._jax.extend import JaxprEqn
from lox._jax.types import PyTree

# Takes an array, and returns a number or anything else that can be logged.
Statistic = Callable[[jax.Array], PyTree]
VALUES = ("in", "out", "grad")


@dataclasses.dataclass(frozen=True)
class WatchOptions:
    """What to watch, and how to describe it.

    Attributes:
        selection: Which scopes.
        values: What of them: `in`, `out` or `grad`.
        stats: The names of statistics, with a function if it is one of the user's.
        loops: The steps that count loops, innermost first.
        tags: The tags of all records.
    """

    selection: Selection
    values: tuple[str, ...]
    stats: tuple[tuple[str, Statistic | None], ...]
    loops: tuple[str, ...]
    tags: tuple[str, ...]

    @classmethod
    def of(
        cls,
        scopes: str | Iterable[str] | Callable[[JaxprEqn], object],
        values: str | Iterable[str],
        stats: str | Iterable[str] | Mapping[str, Statistic],
        loops: str | Iterable[str],
        tags: str | Iterable[str],
    ) -> "WatchOptions":
        """Return the options that a user gave, or raise and say what is wrong."""
        return cls(
            selection=_selection(scopes),
            values=_values(values),
            stats=_statistics(stats),
            loops=names_in(loops, "loops"),
            tags=names_in(tags, "tags"),
        )

    def describe(self, key: str, x: jax.Array) -> dict[str, PyTree]:
        """Return the statistics of an array, with their keys."""
        if jnp.issubdtype(x.dtype, jnp.complexfloating):
            x = jnp.abs(x)
        # Those that lox knows are computed together, as they share parts, and then those of
        # the user. They are logged in the order in which they were asked for.
        values = described(x, [name for name, fun in self.stats if fun is None])
        values |= {name: fun(x) for name, fun in self.stats if fun is not None}
        by_key = {f"{key}/{name}": values[name] for name, _ in self.stats}
        check_values(by_key)
        return by_key


def _selection(
    scopes: str | Iterable[str] | Callable[[JaxprEqn], object],
) -> Selection:
    if callable(scopes):
        return Selection(predicate=scopes)
    patterns = names_in(scopes, "scopes")
    _check_any("scopes", patterns)
    return Selection(patterns=patterns)


def _values(values: str | Iterable[str]) -> tuple[str, ...]:
    names = names_in(values, "values")
    _check_known("values", names, VALUES)
    return names


def _statistics(
    stats: str | Iterable[str] | Mapping[str, Statistic],
) -> tuple[tuple[str, Statistic | None], ...]:
    if not isinstance(stats, Mapping):
        names = names_in(stats, "stats")
        _check_known("stats", names, STATISTICS)
        return tuple((name, None) for name in names)
    for name, fun in stats.items():
        if not isinstance(name, str) or not callable(fun):
            raise TypeError(
                "`stats` of `lox.watch` must map names to functions of an array, but it "
                f"contains {name!r}: {fun!r}."
            )
    return tuple(stats.items())


def _check_known(option: str, names: Sequence[str], known: Iterable[str]) -> None:
    for name in names:
        if name not in known:
            raise ValueError(
                f"`lox.watch` has no {option} {name!r}. Choose from "
                f"{', '.join(map(repr, known))}."
            )
    _check_any(option, names)


def _check_any(option: str, names: Sequence[str]) -> None:
    if not names:
        raise ValueError(f"`{option}` of `lox.watch` is empty, so it would log nothing.")
