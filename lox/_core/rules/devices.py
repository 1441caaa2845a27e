"""How logs leave a `shard_map`: those of all devices, side by side on one more axis."""

import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import JaxprEqn
from jax.sharding import PartitionSpec

from lox._core.analysis import records_in
from lox._core.collect import COUNT
from lox._core.rules.table import rule_for
from lox._core.staging import Staged, stage
from lox._jax import sharding
from lox._logdict.logdict import logdict
from lox._rows.accumulator import Accumulator, combine
from lox._rows.merge import Entry
from lox._rows.rows import Rows
from lox._stream.token import is_token, same_everywhere


@rule_for("shard_map")
def _shard_map(interpreter, eqn: JaxprEqn, *args: Any) -> tuple[list, logdict]:
    """Run a `shard_map`; returns its outputs, and its logs with an axis of devices.

    What is known to be the same on all devices comes without that axis.
    """
    axes = sharding.mapped_axes(eqn)
    given, tree = jax.tree.flatten(interpreter)
    records = list(records_in(eqn.params))
    places = jax.tree.leaves(interpreter.handler.per_device(records))
    in_specs = ([_spec(at, axes) for at in places], list(eqn.params["in_specs"]))
    staged: list[Staged] = []
    spread: set[str] = set()

    def run(given: list, args: list) -> tuple[list, logdict]:
        """What one device does."""
        pairs = zip(given, places, strict=True)
        own = [x if at < 0 else lax.squeeze(x, (at,)) for x, at in pairs]
        interpreter = jax.tree.unflatten(tree, own).on_device()
        outs, logs = interpreter(eqn.params["jaxpr"], *args)
        entries = same_everywhere(logs.rows())
        spread.update(_spread(entries, eqn))
        size = math.prod(axes.values())
        return outs, logdict.of(
            {k: _on_axis(own, size) if k in spread else own for k, own in entries.items()}
        )

    def look(given: list, args: list) -> tuple:
        staged.append(stage(run, given, args))
        return ()

    def flat(given: list, args: list) -> list:
        return jax.tree.leaves(staged[0](*given, *args))

    inputs = given, list(args)
    jax.eval_shape(sharding.shard_map(look, eqn, in_specs, ()), *inputs)
    log_specs = _log_specs(staged[0].shape[1], spread, axes)
    out_specs = [*eqn.params["out_specs"], *log_specs]
    leaves = sharding.shard_map(flat, eqn, in_specs, out_specs)(*inputs)
    outs, logs = staged[0].output(leaves)
    return outs, logdict.of(
        {k: _combined(k, own) if k in spread else own for k, own in logs.rows().items()}
    )


@rule_for("xla_pmap")
def _pmap(interpreter, eqn: JaxprEqn, *args: Any) -> tuple[list, logdict]:
    return interpreter(sharding.pmap_as_shard_map(eqn, *args), *args)


def _spread(entries: Mapping[str, Entry], eqn: JaxprEqn) -> list[str]:
    """The keys that may differ from device to device, or that are needed of each."""
    axes, is_known = sharding.mapped_axes(eqn).keys(), eqn.params["check_vma"]

    def differs(own: Entry) -> bool:
        is_combined = isinstance(own, Accumulator) and bool(own.reduction.devices)
        leaves = jax.tree.leaves(own)
        return is_combined or any(sharding.varying_axes(x) & axes for x in leaves)

    return [
        key
        for key, own in entries.items()
        if not is_token(key) and (not is_known or key.startswith(COUNT) or differs(own))
    ]


def _on_axis(own: Entry, size: int) -> Entry:
    """The rows of one of `size` devices, with an axis of devices.

    It comes after time and the `vmap`s outside of the `shard_map`, before those inside.
    """
    at = own.outer
    batch = (*own.batch[:at], size, *own.batch[at:])
    if isinstance(own, Accumulator):
        return own.map(lambda x: lax.expand_dims(x, (at,)), batch=batch)
    count = None if own.count is None else lax.expand_dims(own.count, (at,))
    wide = own.map(lambda x: lax.expand_dims(x, (own.time + at,)), batch=batch)
    return wide.replace(ndim=own.ndim + 1, count=count)


def _log_specs(logs: logdict, spread: set[str], axes: dict[str, int]) -> list:
    def place(key: str, own: Entry) -> Entry:
        """Where each array has the axis of devices, -1 if it has none."""
        at = own.outer if key in spread else -1
        placed = own.map(lambda _: at if at < 0 else own.time + at)
        is_counted = isinstance(own, Rows) and own.count is not None
        return placed.replace(count=at) if is_counted else placed

    placed = logdict.of({key: place(key, own) for key, own in logs.rows().items()})
    return [_spec(at, axes) for at in jax.tree.leaves(placed)]


def _spec(at: int, axes: dict[str, int]) -> PartitionSpec:
    """The spec of an array whose axis `at` is that of the devices; -1: it has none."""
    return PartitionSpec() if at < 0 else PartitionSpec(*[None] * at, tuple(axes))


def _combined(key: str, own: Entry) -> Entry:
    """The rows with those of all devices reduced to one, if the reduction asks for it."""
    if not isinstance(own, Accumulator) or not own.reduction.devices:
        return own
    size, rest = own.batch[own.outer], list(own.batch)
    rest.pop(own.outer)
    own = own.map(lambda x: jnp.moveaxis(x, own.outer, 0), batch=(size, *rest))
    total = _folded(own)
    if callable(own.reduction.devices):
        over = own.reduction.devices
        for _ in total.batch:
            over = jax.vmap(over, in_axes=1)
        value = [over(x) for x in own.value]
        _check_combined(key, value, total.value)
        total = total.replace(value=value)
    return total.replace(paths=own.paths)


def _check_combined(key: str, given: Any, wanted: Any) -> None:
    """Raise if a function of the user's did not make one accumulator of all."""
    given, wanted = (
        jax.tree.map(lambda x: f"{jnp.result_type(x)}{list(jnp.shape(x))}", tree)
        for tree in (given, wanted)
    )
    if given != wanted:
        raise ValueError(
            f"`devices` of the reduction of {key!r} returns {given}, not one accumulator, "
            f"{wanted}. It takes those of all devices, stacked along a new first axis."
        )


def _folded(own: Accumulator) -> Accumulator:
    """Combine neighbours until one is left, in the order of the devices."""
    size = own.batch[0]
    if size == 1:
        return own.map(lambda x: x[0], batch=own.batch[1:])
    n = size // 2
    pairs = [
        own.map(lambda x, i=i: x[i : 2 * n : 2], batch=(n, *own.batch[1:])) for i in (0, 1)
    ]
    both = combine("", pairs)
    if size % 2:
        last = own.map(lambda x: x[2 * n :], batch=(1, *own.batch[1:]))
        joined = jax.tree.map(
            lambda *xs: jnp.concatenate(xs),
            *(x.replace(batch=(), paths=()) for x in (both, last)),
        )
        both = joined.replace(batch=(n + 1, *own.batch[1:]))
    return _folded(both)
