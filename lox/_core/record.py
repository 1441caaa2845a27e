"""Records, and the two primitives that carry them through a program.

A call of `log` makes a `Record` and binds it to a primitive, `lox_log`, with the arrays as
operands and everything else as parameters. From then on, the record goes wherever JAX takes
the program. `tap` turns some records into a `Delivery`, the rows of one host call, and
binds it to `lox_emit`:

    { lambda ; x. let                        { lambda ; token x. let
        y = sin x                                y = sin x
        lox_log[keys=(a, b)] x y i     ->        token = lox_emit[callback=...] token x y i
      in (y,) }                                in (y,) }

Both primitives have the same rules for JAX's transformations. They have an effect, so JAX
keeps them even though nothing depends on them. Under `vmap`, a record gets one more axis in
front (`batch`): either all of its arrays or none. Under `jvp` and `jet`, it is bound once,
for the primals. A batched `cond` runs all of its branches; `valid` then says for which
examples a record is real.

`lox_log` never reaches the compiler: a transformation removes it before. `lox_emit` does,
and is lowered in `lox._stream.emit`.
"""

import dataclasses
import itertools as it
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, NoReturn, Self, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import jet
from jax.interpreters import ad, batching, mlir

from lox._jax import sharding, tracing
from lox._jax.extend import Primitive
from lox._jax.types import AnyArray, AxisData, Code, PyTree
from lox._logdict.logdict import logdict
from lox._rows.reductions import ReductionLike
from lox._rows.rows import Branch, Rows, Where
from lox._rows.types import Splits
from lox_host.frozen import frozen

C = TypeVar("C", bound="Carried")


@frozen
class Carried:
    """What a primitive of lox carries: something that examples of a batch have logged.

    Attributes:
        valid: Which examples of the batch logged it. None: all of them.
        anchors: Operands that tie it to the loops around, see `Anchor`.
        batch: The sizes of the axes that `vmap` has put in front of all arrays.
        outer: For each of these from outside the `shard_map` around, the mesh axes that
            its `vmap` splits it over (`spmd_axis_name`).
        examples: For each batch axis, the numbers of its examples if they are split over
            devices; None: they start from 0. Empty: none is split.
        path: The branches of vmapped `cond`s around it.
        exact: Whether `valid` only says which examples took `path`.
    """

    _: dataclasses.KW_ONLY
    valid: AnyArray = None
    anchors: tuple[AnyArray, ...] = ()
    examples: tuple[AnyArray, ...] = ()
    batch: tuple[int, ...] = ()
    outer: Splits = ()
    path: tuple[Branch, ...] = ()
    exact: bool = True

    # The attributes that hold arrays, and all others.
    arrays: ClassVar[tuple[str, ...]] = ("valid", "anchors", "examples")
    static: ClassVar[tuple[str, ...]] = ("batch", "outer", "path", "exact")

    def tree_flatten(self) -> tuple[list, tuple]:
        children = [getattr(self, name) for name in self.arrays]
        return children, tuple([getattr(self, name) for name in self.static])

    @classmethod
    def tree_unflatten(cls, form: tuple, children: Iterable[PyTree]) -> Self:
        # Three times as fast as `__init__`, and called for each record on the host.
        carried = object.__new__(cls)
        names = (*cls.arrays, *cls.static)
        carried.__dict__.update(zip(names, (*children, *form), strict=True))
        return carried

    def replace(self, **changes: Any) -> Self:
        return dataclasses.replace(self, **changes)


@jax.tree_util.register_pytree_node_class
@frozen
class Record(Carried):
    """What one call of `log` logged.

    Attributes:
        values: One for each key: a pytree of arrays with the axes `*batch, ...`.
        steps: The steps by name, with the same axes in front.
        keys: The keys, in the order they were logged.
        tags: The tags of all keys.
        reduce: The reduction that the call of `log` asks for.
        passed_on: Whether a transformation has passed it on outwards. Then it is no longer
            printed if nothing else collects it.
        scope: The scope that `watch` found it in, inside a derivative. None: it was
            logged, or its keys are complete.
    """

    _: dataclasses.KW_ONLY
    values: tuple[PyTree, ...]
    steps: dict[str, AnyArray]
    keys: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    reduce: ReductionLike = None
    passed_on: bool = False
    scope: str | None = None

    arrays = ("values", "steps", *Carried.arrays)
    static = ("keys", "tags", *Carried.static, "reduce", "passed_on", "scope")

    def only(self, keys: tuple[str, ...]) -> "Record":
        """Return the record with only some of its keys."""
        values = dict(zip(self.keys, self.values, strict=True))
        return self.replace(keys=keys, values=tuple(values[key] for key in keys))

    def with_default_steps(self, steps: Mapping[str, AnyArray]) -> "Record":
        """Return the record with more steps, unless it has steps of the same name.

        The steps are the same for all examples: (...) -> (*batch, ...)
        """
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
@frozen
class Delivery(Carried):
    """Rows that one host call brings, and the run that they belong to.

    Attributes:
        logs: The rows, with the axes `*batch, ...`.
        run: The number or the key of the run, `*batch, ...`. None: there is none.
    """

    _: dataclasses.KW_ONLY
    logs: logdict
    run: AnyArray = None

    arrays = ("logs", "run", *Carried.arrays)

    # A delivery no longer knows the records it was made from.
    tags: ClassVar[tuple[str, ...]] = ()
    reduce: ClassVar[None] = None

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(self.logs)


def record_primitive(
    name: str, *, chained: bool = False
) -> tuple[Primitive, tracing.RecordEffect]:
    """Return a primitive that carries records, with the rules that all of them share.

    Its effect keeps it alive. A chained primitive takes a token as its first operand and
    returns one, so that the next call, which takes that token, comes after it. Others have
    no outputs.
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
        if all(own_axis is None for own_axis in axes):
            outs = primitive.bind(*args, form=form, **params)
            return outs, [None] * len(outs)
        # There is one call for all examples, so there is one token. All tokens are zero.
        tokens = [
            x if own_axis is None else x.max(own_axis)
            for x, own_axis in zip(args[:chained], axes[:chained], strict=True)
        ]
        rest = iter(axes[chained:])
        records = jax.tree.unflatten(form, args[chained:])
        records = [with_batch_axis(record, rest, axis) for record in records]
        outs = bind(primitive, records, tokens, **params)
        return outs, [None] * len(outs)

    def taylor(primals, series, **params):
        outs = primitive.bind(*primals, **params)
        return outs, [jet.zero_series] * len(outs)

    def transpose(cotangents, *args, keys, **params):
        raise ValueError(
            f"{listed(keys)} contains a tangent, logged in a `custom_jvp` rule or under "
            "`jax.linear_transpose`. Tangents have no value in reverse mode. Log primals "
            "there, or use `jax.jvp` instead of `jax.grad`."
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


def _stranded(*args: object, keys: Sequence[str], **params: object) -> NoReturn:
    raise RuntimeError(
        f"The record of {listed(keys)} reached the compiler. A lox transformation was to "
        "handle it, but something compiled or ran this part of the program separately (a "
        "primitive that hides a function, `jax.ensure_compile_time_eval`, or `lower` "
        "inside the function). Log outside that part, or wrap it in `lox.nolog`."
    )


log_p.def_impl(_stranded)
mlir.register_lowering(log_p, lambda ctx, *args, **params: _stranded(*args, **params))


def holds_records(*programs: Code) -> bool:
    """Return whether any program or equation holds a `lox_log` or `lox_emit`."""
    return any(not RECORD_EFFECTS.isdisjoint(program.effects) for program in programs)


RECORD_EFFECTS = frozenset({log_effect, emit_effect})


def bind(
    primitive: Primitive,
    records: Sequence[Record | Delivery],
    tokens: Sequence[AnyArray] = (),
    **params: Any,
) -> list:
    """Bind a primitive to records; the parameter `form` holds everything but the arrays.

    A callback may have a method `check_steps`, to refuse records that it cannot take.
    """
    if hasattr(params.get("callback"), "check_steps"):
        params["callback"].check_steps(records)
    leaves, form = jax.tree.flatten(tuple(records))
    # JAX caches by the parameters, and the hash of `form` does not depend on the keys.
    keys = tuple(key for record in records for key in record.keys)
    return primitive.bind(*tokens, *leaves, form=form, **{**params, "keys": keys})


def with_batch_axis(record: C, axes: Iterator[int | None], axis: AxisData) -> C:
    """Return a record with a batch axis in front: of all arrays if any has one."""
    leaves, form = jax.tree.flatten(record)
    # `axes` are those of all records of a primitive: take the next ones.
    own_axes = list(it.islice(axes, len(leaves)))
    if all(own_axis is None for own_axis in own_axes):
        return record
    arrays = [
        jnp.broadcast_to(x, (axis.size, *jnp.shape(x)))
        if own_axis is None
        else jnp.moveaxis(x, own_axis, 0)
        for x, own_axis in zip(leaves, own_axes, strict=True)
    ]
    batched = jax.tree.unflatten(form, arrays)
    batch, split = (axis.size, *batched.batch), sharding.split_around_shard_map(axis)
    outer = batched.outer if split is None else (split, *batched.outer)
    examples = batched.examples
    if split:
        # Each device has some of the examples: (size,) numbers, behind those of others.
        numbers = jax.lax.axis_index(split) * axis.size + jnp.arange(axis.size)
        # (size,) -> (*batch,)
        wide = jnp.expand_dims(numbers, range(1, len(batch)))
        numbers = jnp.broadcast_to(wide, batch)
        examples = (numbers, *(examples or [None] * len(batched.batch)))
    elif examples:
        examples = (None, *examples)
    return batched.replace(batch=batch, outer=outer, examples=examples)


def is_array(x: object) -> bool:
    """Return whether `x` is an array of a dtype that JAX has."""
    if isinstance(x, jax.Array):
        return True
    if not isinstance(x, np.ndarray | np.generic):
        return False
    return jnp.issubdtype(x.dtype, np.number) or x.dtype == np.bool_


def listed(keys: Iterable[str]) -> str:
    """Return the keys as text for a message."""
    return ", ".join(map(repr, dict.fromkeys(keys)))
