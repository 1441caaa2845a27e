"""Rows that wait on the device until there are enough of them for one host call.

A host call costs microseconds however little it brings, so `tap(batch=k)` sends k rows at
once. A loop of known length needs no buffer for that: it is cut into chunks of so many
iterations, and what a chunk collects is sent at its end (see `lox._core.rules.loops`).

Where it is not known how many rows an iteration logs, because there is a `while` inside or
around, rows are put into a buffer with a ring for each group of keys. It is threaded state:
it goes along the carries of loops and out of branches, wherever the program goes.

    capacity 3             a             b
    log a, log b, log a    [a0 a1 __]    [b0 __ __]
    log a                  [a0 a1 a2]    [b0 __ __]    full: send both, then
                           [__ __ __]    [__ __ __]    go on
    the outermost loop ends: flush, that is, send what is there

Invariant: after each row that is added, every ring has room for one more. So a ring never
overwrites a row that has not been sent, and its rows are in order as they stand.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import ShapedArray
from jax.extend.core import JaxprEqn, Primitive
from jax.interpreters import batching, mlir

from lox._core.interpreter import Interpreter
from lox._core.record import emit_effect, log_effect
from lox._core.rules.table import rule_for
from lox._jax import equations
from lox._rows.align import align, common_form, masked
from lox._rows.collected import Collected, Keys
from lox._rows.loop_carry import Ring, empty_ring, in_ring, push
from lox._rows.rows import Rows, static


@dataclasses.dataclass(frozen=True)
class RowForm:
    """The form of one row: its structure, and the forms of its arrays."""

    tree: Any
    leaves: tuple[jax.ShapeDtypeStruct, ...]

    @classmethod
    def of(cls, key: str, rows: Rows) -> "RowForm":
        """Return the form of one of some rows, which may be missing."""

        def one(x):
            return jax.ShapeDtypeStruct((1, *x.shape[1:]), x.dtype)

        row = common_form((key,), [rows.replace(count=None)], time=True).map(one)
        leaves, tree = jax.tree.flatten(masked(row).replace(path=(), exact=False))
        return cls(tree, tuple(leaves))

    def row(self) -> Rows:
        return jax.tree.unflatten(self.tree, self.leaves)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Buffer:
    """A ring of rows for each group of keys.

    Attributes:
        rings: The rings, see `empty_ring`.
        groups: The keys of each ring.
        forms: The form of a row of each ring.
        order: The keys, in the order in which they are logged first.
        capacity: How many rows there is room for in each.
    """

    rings: list[Ring]
    groups: tuple[Keys, ...] = static()
    forms: tuple[RowForm, ...] = static()
    order: Keys = static()
    capacity: int = static()

    @classmethod
    def of(cls, logs: Collected, capacity: int) -> "Buffer":
        """Return an empty buffer for such rows."""
        forms = {keys: RowForm.of(keys[0], rows) for keys, rows in logs.rows.items()}
        rings = [empty_ring(form.row(), capacity) for form in forms.values()]
        return cls(rings, tuple(forms), tuple(forms.values()), logs.order, capacity)

    def add(self, logs: Collected) -> "Buffer":
        """Return the buffer with another row of some keys."""
        rings = []
        for ring, keys, form in zip(self.rings, self.groups, self.forms, strict=True):
            rows = logs.get(keys)
            if isinstance(rows, Rows):
                ring = push(ring, align(rows, form.row()), self.capacity)
            rings.append(ring)
        return dataclasses.replace(self, rings=rings)

    def is_full(self) -> jax.Array:
        """Return whether a ring has no room for another row, for any example."""
        full = [(count >= self.capacity).any() for _, count, _ in self.rings]
        return any_example(jnp.stack(full).any())

    def emptied(self, condition: jax.Array) -> "Buffer":
        """Return the buffer without any row, if the condition holds."""
        rings = [
            (columns, jnp.where(condition, 0, count), total)
            for columns, count, total in self.rings
        ]
        return dataclasses.replace(self, rings=rings)

    def rows(self) -> Collected:
        """Return all rows that wait."""
        each = zip(self.groups, self.rings, self.forms, strict=True)
        groups = {
            keys: in_ring(ring, form.row(), self.capacity) for keys, ring, form in each
        }
        return Collected(groups, self.order)


def is_bounded(jaxpr: Any) -> bool:
    """Return whether it is known how many rows a program logs at most."""
    return all(
        equations.primitive_name(eqn) not in ("while", "shard_map")
        and all(map(is_bounded, equations.jaxprs_in(eqn.params)))
        for eqn in jaxpr.eqns
        if log_effect in eqn.effects
    )


def can_thread_buffer(eqn: JaxprEqn) -> bool:
    """Return whether a buffer can go through an equation, and all that logs in there."""
    inner = (
        own
        for jaxpr in equations.jaxprs_in(eqn.params)
        for own in jaxpr.eqns
        if log_effect in own.effects
    )
    return _lets_through(eqn) and all(map(can_thread_buffer, inner))


def _lets_through(eqn: JaxprEqn) -> bool:
    if equations.primitive_name(eqn) != "while":
        return equations.primitive_name(eqn) in ("lox_log", "jit", "pjit", "scan", "cond")
    # Not when it is asked whether to go on, nor where examples finish one by one.
    predicate = eqn.params["cond_jaxpr"]
    return not predicate.effects and not predicate.out_avals[0].shape


def any_example(condition: Any) -> jax.Array:
    """Return whether a condition holds for any of the examples of the `vmap`s around.

    So one host call brings the rows of all of them. An effect shows the question to whoever
    masks what is logged: an example that has finished has no say.
    """
    return _any_example_p.bind(condition)


_any_example_p = Primitive("lox_full")
_any_example_p.def_impl(lambda condition: condition)
_any_example_p.def_effectful_abstract_eval(
    lambda condition: (ShapedArray(condition.shape, condition.dtype), {emit_effect})
)
batching.primitive_batchers[_any_example_p] = lambda args, axes: (
    _any_example_p.bind(args[0].any(axes[0])),
    None,
)
mlir.register_lowering(_any_example_p, lambda context, condition: [condition])


@rule_for("lox_full")
def _any_example(
    interpreter: Interpreter, eqn: JaxprEqn, condition: jax.Array
) -> tuple[list, Collected]:
    asked = interpreter.handler.narrow(condition)
    return [condition if asked is None else any_example(asked)], Collected()
