"""Records, and the two primitives that carry them through a program.

A call of `log` makes a `Record` and binds it to a primitive, `lox_log`, with the arrays as
operands and all else as parameters. From then on the record goes wherever JAX takes the
program. `tap` turns some into a `Delivery`, rows of several records that one host call
brings, and binds that to `lox_emit`:

    { lambda ; x. let                        { lambda ; token x. let
        y = sin x                                y = sin x
        lox_log[keys=(a, b)] x y i     ->        token = lox_emit[callback=...] token x y i
      in (y,) }                                in (y,) }

JAX's transformations treat both alike. They have an effect, so that they stay where nothing
depends on them. Under `vmap`, what they carry gets one more axis in front (`batch`), all
of it or nothing. Under `jvp` and `jet` they are bound once, for the primals. A `cond` that
is batched runs all of its branches: then `valid` says for which examples each record is
real.

`lox_log` never reaches the compiler: some transformation takes it out before. `lox_emit`
does, and is lowered in `lox._stream.emit`.
"""

import dataclasses
import itertools as it
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, NoReturn, Self, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import jet
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from lox._jax import sharding, tracing
from lox._logdict.logdict import logdict
from lox._rows.rows import Branch, Rows, Where

C = TypeVar("C", bound="Carried")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Carried:
    """What a primitive of lox carries: something that examples of a batch have logged.

    Attributes:
        valid: Which examples of the batch logged it. None: all of them.
        anchors: Operands that tie it to the loops around, see `Anchor`.
        batch: Sizes of the axes that `vmap` put in front of all arrays.
        outer: How many of these are from outside of the `shard_map` around.
        path: The branches of vmapped `cond`s around it.
        exact: Whether `valid` says nothing but which examples took `path`.
    """

    valid: Any = None
    anchors: tuple[Any, ...] = ()
    batch: tuple[int, ...] = ()
    outer: int = 0
    path: tuple[Branch, ...] = ()
    exact: bool = True

    # The attributes that hold arrays, and all others.
    arrays: ClassVar[tuple[str, ...]] = ("valid", "anchors")
    static: ClassVar[tuple[str, ...]] = ("batch", "outer", "path", "exact")

    def tree_flatten(self) -> tuple[list, tuple]:
        children = [getattr(self, name) for name in self.arrays]
        return children, tuple([getattr(self, name) for name in self.static])

    @classmethod
    def tree_unflatten(cls, form: tuple, children: Iterable[Any]) -> Self:
        # Three times as quick as `__init__`: this is done for each record that arrives.
        carried = object.__new__(cls)
        names = (*cls.arrays, *cls.static)
        carried.__dict__.update(zip(names, (*children, *form), strict=True))
        return carried

    def replace(self, **changes: Any) -> Self:
        return dataclasses.replace(self, **changes)


@jax.tree_util.register_pytree_node_class
@dataclasses.dataclass(frozen=True, kw_only=True)
class Record(Carried):
    """What one call of `log` logged.

    Attributes:
        values: One for each of `keys`, a pytree of arrays with the axes `*batch, ...`.
        steps: The steps by name, with the same axes in front.
        keys: The keys, in the order they were logged.
        tags: The tags of all keys.
        reduce: The reduction that the call of `log` asks for.
        passed_on: Whether a transformation with a filter has passed it on: who filters has
            chosen, so it is not printed any more.
    """

    values: tuple[Any, ...]
    steps: dict[str, Any]
    keys: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    reduce: Any = None
    passed_on: bool = False

    arrays = ("values", "steps", *Carried.arrays)
    static = ("keys", "tags", *Carried.static, "reduce", "passed_on")

    def only(self, keys: tuple[str, ...]) -> "Record":
        """Return the record with only some of its keys."""
        values = dict(zip(self.keys, self.values, strict=True))
        return self.replace(keys=keys, values=tuple(values[key] for key in keys))

    def with_default_steps(self, steps: Mapping[str, Any]) -> "Record":
        """Return the record with more steps, the same for all examples. Its own win."""
        more = {
            name: jnp.broadcast_to(step, (*self.batch, *jnp.shape(step)))
            for name, step in steps.items()
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
            exact=self.exact,
            where=where,
        )


@jax.tree_util.register_pytree_node_class
@dataclasses.dataclass(frozen=True, kw_only=True)
class Delivery(Carried):
    """Rows that one host call brings, and the run that they belong to.

    Attributes:
        logs: The rows, with the axes `*batch, ...`.
        run: The number or the key of the run, `*batch, ...`. None: there is none.
    """

    logs: logdict
    run: Any = None

    arrays = ("logs", "run", *Carried.arrays)

    # What the records were that it is made of is not known any more.
    tags: ClassVar[tuple[str, ...]] = ()
    reduce: ClassVar[None] = None

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(self.logs)


def record_primitive(
    name: str, *, chained: bool = False
) -> tuple[Primitive, tracing.RecordEffect]:
    """Return a primitive that carries records, with the rules that all of them share.

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
        records = [with_batch_axis(record, each, axis) for record in records]
        outs = bind(primitive, records, tokens, **params)
        return outs, [None] * len(outs)

    def taylor(primals, series, **params):
        outs = primitive.bind(*primals, **params)
        return outs, [jet.zero_series] * len(outs)

    def transpose(cotangents, *args, keys, **params):
        raise ValueError(
            f"{listed(keys)} holds a tangent, logged in a `custom_jvp` rule or under "
            "`jax.linear_transpose`: in reverse mode it has no value. Log primals there, "
            "or use `jax.jvp` instead of `jax.grad`."
        )

    ad.primitive_jvps[primitive] = jvp
    ad.primitive_transposes[primitive] = transpose
    jet.jet_rules[primitive] = taylor
    batching.fancy_primitive_batchers[primitive] = batch
    tracing.leave_keys_unused(primitive)
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
    primitive: Primitive,
    records: Sequence[Record | Delivery],
    tokens: Sequence[Any] = (),
    **params: Any,
) -> list:
    """Let a primitive carry records; `form` holds all of them but the arrays.

    A callback may refuse what it would be called with, by its method `check_steps`.
    """
    if hasattr(params.get("callback"), "check_steps"):
        params["callback"].check_steps(records)
    leaves, form = jax.tree.flatten(tuple(records))
    # The hash of `form` does not tell keys apart, and JAX caches by the parameters.
    keys = tuple(key for record in records for key in record.keys)
    return primitive.bind(*tokens, *leaves, form=form, **{**params, "keys": keys})


def with_batch_axis(record: C, axes: Iterator[int | None], axis: Any) -> C:
    """Return the record with its batch axis in front. One that has any is batched whole."""
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
    """Return whether `x` is an array of a dtype that JAX has."""
    if isinstance(x, jax.Array):
        return True
    if not isinstance(x, np.ndarray | np.generic):
        return False
    return jnp.issubdtype(x.dtype, np.number) or x.dtype == np.bool_


def listed(keys: Iterable[str]) -> str:
    """Return the keys as they stand in a message."""
    return ", ".join(map(repr, dict.fromkeys(keys)))
