"""A record, what one call of `log` logged, and the two primitives that carry one."""

import dataclasses
import itertools as it
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from lox._jax import sharding, tracing
from lox._rows.rows import Branch, Rows, Where


@jax.tree_util.register_pytree_node_class
@dataclasses.dataclass(frozen=True)
class Record:
    """What one call of `log` logged.

    Attributes:
        values: One for each of `keys`, a pytree of arrays with the axes `*batch, ...`.
        steps: The steps by name.
        valid: Which examples of the batch logged it. None: all of them.
        anchors: Operands that tie the record to the loops around it, see `_anchor`.
        keys: The keys, in the order they were logged.
        tags: The tags of all keys.
        batch: Sizes of the axes that `vmap` put in front.
        outer: How many of these are from outside of the `shard_map` around.
        path: The branches of vmapped `cond`s around it.
        sure: Whether `valid` says nothing but which examples took `path`.
        reduce: The reduction that the call of `log` asks for.
        heard: The keys that somebody has heard already: they need not be printed.
    """

    values: tuple[Any, ...]
    steps: dict[str, Any]
    valid: Any = None
    anchors: tuple[Any, ...] = ()
    keys: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    batch: tuple[int, ...] = ()
    outer: int = 0
    path: tuple[Branch, ...] = ()
    sure: bool = True
    reduce: Any = None
    heard: tuple[str, ...] = ()

    def tree_flatten(self) -> tuple[tuple, tuple]:
        children = self.values, self.steps, self.valid, self.anchors
        form = (self.keys, self.tags, self.batch, self.outer, self.path, self.sure)
        return children, (*form, self.reduce, self.heard)

    @classmethod
    def tree_unflatten(cls, form: tuple, children: Iterable[Any]) -> "Record":
        # Three times as quick as `__init__`: this is done for each record that arrives.
        record = object.__new__(cls)
        record.__dict__.update(zip(_NAMES, (*children, *form), strict=True))
        return record

    def replace(self, **changes: Any) -> "Record":
        return dataclasses.replace(self, **changes)

    def only(self, keys: tuple[str, ...]) -> "Record":
        values = dict(zip(self.keys, self.values, strict=True))
        return self.replace(keys=keys, values=tuple(values[key] for key in keys))

    def located(self, coordinates: Mapping[str, Any]) -> "Record":
        """The record with more steps, which are the same for all examples."""
        more = {
            name: jnp.broadcast_to(index, self.batch) for name, index in coordinates.items()
        }
        return self.replace(steps={**more, **self.steps})

    def rows(self, where: Where) -> Rows:
        """Return the record as one row of all its keys."""
        return Rows(
            value=self.values,
            steps=self.steps,
            valid=self.valid,
            ndim=np.ndim(jax.tree.leaves(self.values)[0]),
            batch=self.batch,
            outer=self.outer,
            tags=self.tags,
            path=self.path,
            sure=self.sure,
            where=where,
        )


_NAMES = [field.name for field in dataclasses.fields(Record)]


def record_primitive(
    name: str, *, chained: bool = False
) -> tuple[Primitive, tracing.RecordEffect]:
    """A primitive that carries records, with the rules that all of them share.

    Its effect keeps it alive. A chained one takes a token as its first operand, and
    returns one: what takes that in turn comes after it. Others have no outputs.
    """
    primitive, effect = Primitive(name), tracing.RecordEffect(name)
    primitive.multiple_results = True

    @primitive.def_effectful_abstract_eval
    def _abstract_eval(*avals, **params):
        return list(avals[:chained]), {effect}

    def jvp(primals, tangents, **params):
        outs = primitive.bind(*primals, **params)
        return outs, [ad.Zero(jax.typeof(x).to_tangent_aval()) for x in outs]

    def batch(axis, args, axes, *, form, **params):
        if all(at is None for at in axes):
            outs = primitive.bind(*args, form=form, **params)
            return outs, [None] * len(outs)
        tokens = [
            x if at is None else x.max(at)
            for x, at in zip(args[:chained], axes[:chained], strict=True)
        ]
        each = iter(axes[chained:])
        records = jax.tree.unflatten(form, args[chained:])
        records = [_batched(record, each, axis) for record in records]
        outs = bind(primitive, records, tokens, **params)
        return outs, [None] * len(outs)

    def transpose(cotangents, *args, keys, **params):
        raise ValueError(
            f"{listed(keys)} holds a tangent, logged in a `custom_jvp` rule or under "
            "`jax.linear_transpose`: in reverse mode it has no value. Log primals there, "
            "or use `jax.jvp` instead of `jax.grad`."
        )

    ad.primitive_jvps[primitive] = jvp
    ad.primitive_transposes[primitive] = transpose
    batching.fancy_primitive_batchers[primitive] = batch
    tracing.leave_keys_unused(primitive)
    tracing.leave_out_when_recomputed(primitive, chained)
    return primitive, effect


log_p, log_effect = record_primitive("lox_log")
"""A record that waits for the transformation that captures it."""

emit_p, emit_effect = record_primitive("lox_emit", chained=True)
"""Records on their way to the host. How they get there is in `lox._stream.emit`."""


def _stranded(*args: Any, keys: Sequence[str], **params: Any) -> NoReturn:
    raise RuntimeError(
        f"The record of {listed(keys)} reached the compiler: it was captured for a "
        "transformation of lox, but something compiled or ran this part of the program "
        "on its own (a primitive that hides a function, `jax.ensure_compile_time_eval`, "
        "or `lower` inside the function). Log outside of that part, or wrap it in "
        "`lox.nolog`."
    )


log_p.def_impl(_stranded)
mlir.register_lowering(log_p, lambda ctx, *args, **params: _stranded(*args, **params))


def holds_records(*programs: Any) -> bool:
    """Return whether a program or an equation holds a record, on its way or not."""
    return any(not RECORD_EFFECTS.isdisjoint(program.effects) for program in programs)


RECORD_EFFECTS = frozenset({log_effect, emit_effect})


def bind(
    primitive: Primitive, records: Sequence[Record], tokens: Sequence[Any] = (), **params
) -> list:
    """Let a primitive carry records; `form` holds all of them but the arrays."""
    leaves, form = jax.tree.flatten(tuple(records))
    # The hash of `form` does not tell keys apart, and JAX caches by the parameters.
    keys = tuple(key for record in records for key in record.keys)
    return primitive.bind(*tokens, *leaves, form=form, **{**params, "keys": keys})


def _batched(record: Record, axes: Iterator[int | None], axis: Any) -> Record:
    """The record with its batch axis in front. One that has any is batched whole."""
    leaves, form = jax.tree.flatten(record)
    own = list(it.islice(axes, len(leaves)))
    if all(at is None for at in own):
        return record
    arrays = [
        jnp.broadcast_to(x, (axis.size, *jnp.shape(x)))
        if at is None
        else jnp.moveaxis(x, at, 0)
        for x, at in zip(leaves, own, strict=True)
    ]
    batched = jax.tree.unflatten(form, arrays)
    outer = batched.outer + sharding.is_around_shard_map(axis)
    return batched.replace(batch=(axis.size, *batched.batch), outer=outer)


def is_array(x: Any) -> bool:
    """Whether `x` is an array of a dtype that JAX has."""
    if isinstance(x, jax.Array):
        return True
    if not isinstance(x, np.ndarray | np.generic):
        return False
    return jnp.issubdtype(x.dtype, np.number) or x.dtype == np.bool_


def listed(keys: Iterable[str]) -> str:
    """The keys as they stand in a message."""
    return ", ".join(map(repr, dict.fromkeys(keys)))
