"""Rows that wait in a loop until there are enough of them for a host call.

A loop of known length collects the rows of so many iterations, and delivers them. Where
it is not known how many rows an iteration logs, they are put into rings, which travel
along the carries of loops and out of branches until one of them is full.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir

from lox._core.record import emit_effect, log_effect
from lox._core.rules.table import rule_for
from lox._jax import equations
from lox._logdict.logdict import logdict
from lox._rows.loop_carry import empty_buffer, in_ring, push
from lox._rows.rows import Rows, common, conform, mask_over, static

POOL = "\0pool"
"""The key under which rings are handed on."""

# A key, the structure of a row of it, and the forms of its arrays.
Form = tuple[str, Any, tuple[jax.ShapeDtypeStruct, ...]]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Pool:
    """A ring of rows for each key.

    Attributes:
        value: The rings, see `empty_buffer`.
        forms: What they hold.
        room: How many rows there is room for in each.
    """

    value: list
    forms: tuple[Form, ...] = static()
    room: int = static()

    @classmethod
    def of(cls, rows: Mapping[str, Rows], room: int) -> "Pool":
        """Empty rings for such rows."""
        forms = {key: _row(key, own) for key, own in rows.items()}
        flat = ((key, *jax.tree.flatten(row)) for key, row in forms.items())
        return cls(
            value=[empty_buffer(row, room) for row in forms.values()],
            forms=tuple((key, tree, tuple(leaves)) for key, leaves, tree in flat),
            room=room,
        )

    def arrays(self) -> tuple:
        """All that is an array, but for the value."""
        return ()

    def form(self) -> tuple:
        """All that is known before the program runs, in the order of the attributes."""
        return Pool, self.forms, self.room

    def replace(self, **changes: Any) -> "Pool":
        return dataclasses.replace(self, **changes)

    def add(self, rows: Mapping[str, Rows]) -> "Pool":
        """The rings with another row of some keys."""
        rings, forms = dict(self._rings()), dict(self._rows())
        for key, own in rows.items():
            rings[key] = push(rings[key], conform(own, forms[key]), self.room)
        return self.replace(value=list(rings.values()))

    def is_full(self) -> jax.Array:
        """Whether there is no room for another row of some key, for any example."""
        each = [(count >= self.room).any() for _, count, _ in self.value]
        return full(jnp.stack(each).any())

    def emptied(self, condition: jax.Array) -> "Pool":
        """The rings without any row, if the condition holds."""
        return self.replace(
            value=[
                (columns, jnp.where(condition, 0, count), total)
                for columns, count, total in self.value
            ]
        )

    def rows(self) -> dict[str, Rows]:
        """What is in the rings."""
        rings = dict(self._rings())
        return {key: in_ring(rings[key], row, self.room) for key, row in self._rows()}

    def _rings(self):
        return zip((key for key, *_ in self.forms), self.value, strict=True)

    def _rows(self):
        return ((key, jax.tree.unflatten(tree, leaves)) for key, tree, leaves in self.forms)


def is_bounded(jaxpr: Any) -> bool:
    """Whether it is known how many rows are logged at most."""
    return all(
        equations.primitive_name(eqn) not in ("while", "shard_map")
        and all(map(is_bounded, equations.jaxprs_in(eqn.params)))
        for eqn in jaxpr.eqns
        if log_effect in eqn.effects
    )


def hands_on(eqn: Any) -> bool:
    """Whether it and all that logs in there can hand on what they are handed."""
    inner = (
        own
        for jaxpr in equations.jaxprs_in(eqn.params)
        for own in jaxpr.eqns
        if log_effect in own.effects
    )
    return _can_hand_on(eqn) and all(map(hands_on, inner))


def _can_hand_on(eqn: Any) -> bool:
    if equations.primitive_name(eqn) != "while":
        return equations.primitive_name(eqn) in ("lox_log", "jit", "pjit", "scan", "cond")
    # Not when it is asked whether to go on, nor where examples finish one by one.
    predicate = eqn.params["cond_jaxpr"]
    return not predicate.effects and not predicate.out_avals[0].shape


def full(condition: Any) -> jax.Array:
    """Whether it holds for any of the examples of the `vmap`s around.

    So one host call brings the rows of all of them. An effect shows the question to whoever
    masks what is logged: an example that is not there any more has nothing to say.
    """
    return _full_p.bind(condition)


def _row(key: str, rows: Rows) -> Rows:
    """The form of one row, which may be missing."""

    def one(x):
        return jax.ShapeDtypeStruct((1, *x.shape[1:]), x.dtype)

    row = common(key, [rows.replace(count=None)], time=True).map(one)
    return row.replace(valid=mask_over(row), path=(), sure=False)


_full_p = Primitive("lox_full")
_full_p.def_impl(lambda full: full)
_full_p.def_effectful_abstract_eval(
    lambda full: (ShapedArray(full.shape, full.dtype), {emit_effect})
)
batching.primitive_batchers[_full_p] = lambda args, axes: (
    _full_p.bind(args[0].any(axes[0])),
    None,
)
mlir.register_lowering(_full_p, lambda context, full: [full])


@rule_for("lox_full")
def _full(interpreter, eqn, condition):
    return [full(interpreter.handler.narrow(condition))], logdict()
