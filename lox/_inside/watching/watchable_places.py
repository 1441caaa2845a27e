"""Find the places of a program that can be watched: scopes, names and single equations.

JAX writes down for each equation which name scopes it was traced in. As a program is traced
from top to bottom, the equations of one entry into a scope are next to each other:

    { lambda ; w x. let           scopes       entries into a scope
        a = dot w x               block/mlp    block/mlp   reads w x, returns b
        b = tanh a                block/mlp    |
        c = add b x               block        block       reads w x, returns c
        d = sin c                 -
      in (d,) }

An entry returns the variables that it computes and that a later equation reads; `a` stays
inside. It reads the variables that it does not compute, weights included. Each entry has
two places: one before its first equation, for its inputs, and one after its last equation,
for its outputs. Values named by `checkpoint_name`, and equations that the user selects, are
entries of one equation.

Two entries into the same scope with nothing between them look like one, since JAX keeps no
mark between them.
"""

import dataclasses
import fnmatch
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal

import jax
import jax.numpy as jnp
from jax.core import ShapedArray

from lox._core.analysis import FORWARD_RULES, REVERSE_RULES, variables
from lox._core.record import log_p
from lox._core.rules.registry import rules
from lox._jax import equations
from lox._jax.extend import Jaxpr, JaxprEqn, Var
from lox._jax.name_scopes import Level, levels_of
from lox._jax.types import Code, Program

Direction = Literal["in", "out"]


@dataclasses.dataclass(frozen=True)
class ScopeEntry:
    """One entry into a scope, in one program.

    Attributes:
        path: The names of the scopes, from the outermost of the whole program.
        start: The index of its first equation.
        end: The index after its last equation.
        is_derivative: Whether JAX made it by differentiating the user's program.
        is_watched: Whether that program was watched before it was differentiated.
    """

    path: tuple[str, ...]
    start: int
    end: int
    is_derivative: bool = False
    is_watched: bool = False

    @property
    def name(self) -> str:
        return "/".join(self.path)


@dataclasses.dataclass(frozen=True)
class Place:
    """Where arrays enter or leave a scope.

    Attributes:
        index: It is in front of the equation with this index.
        name: The path of the scope, such as `block/mlp`.
        kind: Whether the arrays enter or leave it.
        variables: The arrays, in the order in which they are read or computed.
    """

    index: int
    name: str
    kind: Direction
    variables: tuple[Var, ...]

    def only(self, has: Callable[[Var], bool]) -> "Place":
        """Return the place with some of its arrays."""
        return dataclasses.replace(self, variables=tuple(filter(has, self.variables)))


@dataclasses.dataclass(frozen=True)
class ScopesAround:
    """Which scopes are around a program.

    Attributes:
        path: Their names, outermost first.
        outside: The names of those that are around a derivative, if there is one.
        is_derivative: Whether the program is inside a derivative that JAX has made.
        is_watched: Whether what was differentiated was watched before.
    """

    path: tuple[str, ...] = ()
    outside: tuple[str, ...] = ()
    is_derivative: bool = False
    is_watched: bool = False

    def inside(self, eqn: JaxprEqn) -> "ScopesAround":
        """Return which scopes are around the programs that an equation holds."""
        return self.further_inside(levels_of(eqn))

    def further_inside(self, levels: Sequence[Level]) -> "ScopesAround":
        """Return which scopes are around, further inside."""
        within = self
        for level in levels:
            # Inside a derivative, `outside` no longer grows.
            path, outside = within.path, within.outside
            if level.is_scope:
                path = (*path, level.name)
                outside = outside if within.is_derivative else (*outside, level.name)
            within = ScopesAround(
                path,
                outside,
                within.is_derivative or level.is_derivative,
                within.is_watched or level.is_watched,
            )
        return within

    def entry(self, start: int, end: int, *names: str) -> ScopeEntry:
        path = (*self.path, *names)
        return ScopeEntry(path, start, end, self.is_derivative, self.is_watched)


NOWHERE = ScopesAround()


@dataclasses.dataclass(frozen=True)
class Selection:
    """Which entries the user asks for: by patterns for their names, or by equation.

    Attributes:
        patterns: Patterns in which `*` stands for any text, slashes included.
        predicate: Takes an equation, and returns whether to watch it.
    """

    patterns: tuple[str, ...] = ()
    predicate: Callable[[JaxprEqn], object] | None = None

    def has(self, name: str) -> bool:
        return any(matches(name, pattern) for pattern in self.patterns)

    def anywhere(self) -> "Selection":
        """Return what selects at least the same if more scopes turn out to be around."""
        suffixes = [suffix for pattern in self.patterns for suffix in _suffixes(pattern)]
        return dataclasses.replace(self, patterns=tuple(dict.fromkeys(suffixes)))


def _suffixes(pattern: str) -> Iterator[str]:
    """Yield the parts of a pattern that may match the inner scopes of a path.

    `block/*/mlp`: `block/*/mlp`, if nothing is around; `*/mlp`; `mlp`
    """
    yield pattern
    for i, letter in enumerate(pattern):
        if letter == "*":
            yield pattern[i:]
        elif letter == "/":
            yield pattern[i + 1 :]


EVERYTHING = Selection(("*",))


def matches(name: str, pattern: str) -> bool:
    """Return whether a pattern matches; `*/mlp` matches an outermost `mlp`, too."""
    return fnmatch.fnmatchcase(f"/{name}", pattern) or fnmatch.fnmatchcase(name, pattern)


def entries_in(
    program: Jaxpr, within: ScopesAround, selection: Selection
) -> list[ScopeEntry]:
    """Return the selected entries of a program, without those of programs inside it.

    Those of functions that were watched before JAX differentiated them are left out.
    """
    if selection.predicate is not None:
        found = [
            _single(i, eqn, within, equations.primitive_name(eqn))
            for i, eqn in enumerate(program.eqns)
            if selection.predicate(eqn)
        ]
    else:
        found = [entry for entry in _entries(program, within) if selection.has(entry.name)]
    return [entry for entry in found if not entry.is_watched]


def holds_entries(program: Code, within: ScopesAround, selection: Selection) -> bool:
    """Return whether a program or an equation holds a selected entry, at any depth.

    For an equation, these are the entries in its programs.
    """
    if isinstance(program, JaxprEqn):
        inside = within.inside(program)
        inner = programs_in(program)
        return any(holds_entries(jaxpr, inside, selection) for jaxpr in inner)
    (jaxpr,) = equations.jaxprs_in(program)
    # Asked for each equation of each program around, so the answer is remembered.
    known = _known.setdefault(jaxpr, {})
    if (within, selection) not in known:
        known[within, selection] = bool(entries_in(jaxpr, within, selection)) or any(
            holds_entries(eqn, within, selection) for eqn in jaxpr.eqns
        )
    return known[within, selection]


_known: weakref.WeakKeyDictionary[Jaxpr, dict[tuple[ScopesAround, Selection], bool]]
_known = weakref.WeakKeyDictionary()


def scope_names(
    program: Program, within: ScopesAround = NOWHERE, *, derivatives: bool = False
) -> list[str]:
    """Return the names of all scopes of a program, at any depth, each of them once.

    Unless `derivatives` asks for them, those in derivatives are left out, except for
    records of scopes that were watched inside them.
    """
    names: set[str] = set()
    for jaxpr in equations.jaxprs_in(program):
        entries = _entries(jaxpr, within)
        for entry in entries:
            if derivatives or not (entry.is_derivative or entry.is_watched):
                names.add(entry.name)
        for eqn in jaxpr.eqns:
            inside = within.inside(eqn)
            if eqn.primitive is log_p:
                (record,) = jax.tree.unflatten(eqn.params["form"], eqn.invars)
                if record.scope is not None:
                    names.add("/".join((*inside.outside, record.scope)))
            for inner in programs_in(eqn):
                names.update(scope_names(inner, inside, derivatives=derivatives))
    return sorted(names)


def is_opaque(eqn: JaxprEqn) -> bool:
    """Return whether an equation is a function with custom rules for derivatives.

    When it is differentiated, JAX runs the rules instead, and these have scopes of their
    own. So that the same is watched in both cases, nothing in there is.
    """
    return equations.primitive_name(eqn) in (*FORWARD_RULES, *REVERSE_RULES)


def programs_in(eqn: JaxprEqn) -> Iterator[Jaxpr]:
    """Yield the programs in an equation that are looked into."""
    name = equations.primitive_name(eqn)
    if is_opaque(eqn):
        return
    if name == "custom_linear_solve":  # its other programs run in derivatives only
        yield from equations.jaxprs_in(eqn.params["jaxprs"].solve)
    elif name in rules:
        yield from equations.jaxprs_in(eqn.params)


def _entries(program: Jaxpr, within: ScopesAround) -> Iterator[ScopeEntry]:
    """Yield all entries into scopes, in the order in which they end."""
    # The levels that are open, each with the index of its first equation.
    opened: list[tuple[Level, int]] = []

    def close(depth: int, end: int) -> Iterator[ScopeEntry]:
        while len(opened) > depth:
            around = within.further_inside([level for level, _ in opened])
            level, start = opened.pop()
            if level.is_scope:
                yield around.entry(start, end)

    for i, eqn in enumerate(program.eqns):
        levels = levels_of(eqn)
        if levels and levels[0].is_watched:
            # JAX has moved it out of a loop that it differentiates, into the middle of
            # the scopes around the loop. These stay open.
            continue
        # How many of the open scopes stay open. The others end here, and new ones begin:
        #     open a/b/c, now a/b/d    ->    close c at i, open d at i
        same = 0
        while same < min(len(levels), len(opened)) and levels[same] == opened[same][0]:
            same += 1
        yield from close(same, i)
        opened.extend((level, i) for level in levels[same:])
        if eqn.primitive.name == "name":  # that of `checkpoint_name`
            yield _single(i, eqn, within, eqn.params["name"])
    yield from close(0, len(program.eqns))


def _single(i: int, eqn: JaxprEqn, within: ScopesAround, name: str) -> ScopeEntry:
    """Return one equation as an entry of its own."""
    return within.inside(eqn).entry(i, i + 1, name)


def inputs_of(program: Jaxpr, entry: ScopeEntry) -> tuple[Var, ...]:
    """Return what an entry reads and does not compute, in the order of reading."""
    computed: set[Var] = set()
    found: dict[Var, None] = {}  # a set that keeps its order
    for eqn in program.eqns[entry.start : entry.end]:
        found.update(dict.fromkeys(v for v in variables(eqn.invars) if v not in computed))
        computed.update(eqn.outvars)
    return tuple(found)


def outputs_of(
    program: Jaxpr, entry: ScopeEntry, uses: Mapping[Var, float]
) -> tuple[Var, ...]:
    """Return what an entry computes and something after it reads; `uses`: `last_uses`."""
    computed = [v for eqn in program.eqns[entry.start : entry.end] for v in eqn.outvars]
    return tuple(v for v in computed if uses.get(v, -1) >= entry.end)


def is_described(var: Var) -> bool:
    """Return whether there are statistics of a variable: floats, and not empty."""
    aval = var.aval
    if not isinstance(aval, ShapedArray) or not aval.size:
        return False
    return jnp.issubdtype(aval.dtype, jnp.inexact)
