"""How logs leave a `shard_map`: those of all devices, side by side on one more axis.

Inside, each device logs its own values. Outside, there is one array with an axis of
devices: after time and the axes of the `vmap`s around, but before those of the `vmap`s
inside. Here, two devices log a scalar in a loop of three iterations:

    device 0   [ a0, a1, a2 ]                     [[ a0, b0 ],
    device 1   [ b0, b1, b2 ]       ->             [ a1, b1 ],      (time, devices)
                                                   [ a2, b2 ]]

If a `vmap` around has an `spmd_axis_name`, JAX splits its examples over these axes of the
mesh. Then the devices along the other axes make the axis of devices.

Values that JAX knows to be the same on all devices (`check_vma`) get no such axis. This is
only known once the body has been staged, but a `shard_map` needs the specs of its outputs
beforehand. So the body is staged first, inside a `shard_map` without outputs.
"""

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike

from lox._core.analysis import records_in
from lox._core.interpreter import Interpreter
from lox._core.rules.registry import rule_for
from lox._core.staging import Staged, stage
from lox._jax import sharding
from lox._jax.extend import JaxprEqn
from lox._jax.sharding import Division
from lox._jax.types import PyTree
from lox._rows.accumulator import Accumulator, Entry
from lox._rows.collected import Collected, Keys, Threaded
from lox._rows.merge import combine
from lox._rows.rows import Rows


@rule_for("shard_map")
def _shard_map(
    interpreter: Interpreter, eqn: JaxprEqn, *args: ArrayLike
) -> tuple[list, Collected]:
    axes = sharding.mapped_axes(eqn)
    given, tree = jax.tree.flatten(interpreter)
    divided = interpreter.handler.per_device(list(records_in(eqn.params)))
    divisions = jax.tree.leaves(divided)
    in_specs = ([d.spec(axes) for d in divisions], list(eqn.params["in_specs"]))
    staged: list[Staged] = []
    spread: set[Keys] = set()

    def run(given: list, args: list) -> tuple[list, Collected]:
        """Run the body on one device, and give its logs an axis of devices of size 1."""
        # What is divided has one row of its axis of devices here: the own one.
        pairs = zip(given, divisions, strict=True)
        leaves = [lax.squeeze(x, (d.axis,)) if d.spread else x for x, d in pairs]
        interpreter = jax.tree.unflatten(tree, leaves).on_device()
        outs, logs = interpreter(eqn.params["jaxpr"], *args)
        logs = _split_by_devices(logs, eqn, spread)
        groups = {
            keys: _on_axis(entry) if keys in spread else entry
            for keys, entry in logs.groups.items()
        }
        state = _state_on_axis(logs.threaded, divided.threaded(), tuple(axes))
        return outs, Collected(groups, logs.order, state)

    def look(given: list, args: list) -> tuple:
        staged.append(stage(run, given, args))
        return ()

    def flat(given: list, args: list) -> list:
        return jax.tree.leaves(staged[0](*given, *args))

    # First pass, without outputs: stage the body, and find out what is `spread`.
    inputs = given, list(args)
    with sharding.splitting_examples():
        jax.eval_shape(sharding.shard_map(look, eqn, in_specs, ()), *inputs)
    form = staged[0].shape[1]
    # Second pass: run it, now that the specs of all outputs are known.
    groups = {k: _divided(entry, k in spread) for k, entry in form.groups.items()}
    state = divided.threaded().limited_to(form.threaded)
    log_divisions = jax.tree.leaves(Collected(groups, form.order, state))
    out_specs = [*eqn.params["out_specs"], *(d.spec(axes) for d in log_divisions)]
    with sharding.splitting_examples():
        leaves = sharding.shard_map(flat, eqn, in_specs, out_specs)(*inputs)
    outs, logs = staged[0].output(leaves)
    groups = {}
    for keys, entry in logs.groups.items():
        outside = _outside(entry, axes, keys in spread)
        groups[keys] = _combined(keys, outside) if keys in spread else outside
    return outs, logs.replace(groups=groups)


@rule_for("xla_pmap")
def _pmap(
    interpreter: Interpreter, eqn: JaxprEqn, *args: ArrayLike
) -> tuple[list, Collected]:
    return interpreter(sharding.pmap_as_shard_map(eqn, *args), *args)


def _split_by_devices(logs: Collected, eqn: JaxprEqn, spread: set[Keys]) -> Collected:
    """Split groups into keys that may differ from device to device, and other keys.

    The former are added to `spread`.
    """
    axes, is_known = sharding.mapped_axes(eqn).keys(), eqn.params["check_vma"]

    def differs(entry: Entry) -> bool:
        others = axes - {name for names in entry.outer for name in names}
        is_combined = isinstance(entry, Accumulator) and bool(entry.reduction.devices)
        leaves = jax.tree.leaves(entry)
        return (
            not is_known
            or is_combined
            or any(sharding.varying_axes(x) & others for x in leaves)
        )

    groups: dict[Keys, Entry] = {}
    for group in logs.groups:
        parts: dict[bool, list[str]] = {}
        for key in group:
            parts.setdefault(differs(logs[(key,)]), []).append(key)
        for is_spread, keys in parts.items():
            groups[tuple(keys)] = logs[tuple(keys)]
            spread.update([tuple(keys)] if is_spread else [])
    return logs.replace(groups=groups)


def _state_on_axis(
    state: Threaded, divided: Threaded, devices: tuple[str, ...]
) -> Threaded:
    """Return the state of one device in the form in which it leaves the `shard_map`.

    Offsets, and what each device has seen, get back their axis of devices. An offset that
    has none counts for all devices together: it is the largest of all. Each device has its
    own token, but all tokens are zero: any of them will do, and nothing is exchanged.
    """
    offsets = {
        key: lax.expand_dims(x, (divided.offsets[key].axis,))
        if divided.offsets[key].spread
        else lax.pmax(x, devices)
        for key, x in state.offsets.items()
    }
    token = None if state.token is None else sharding.make_unvarying(state.token)
    seen = state.seen
    if seen is not None:
        seen = jax.tree.map(lambda x, d: lax.expand_dims(x, (d.axis,)), seen, divided.seen)
    return Threaded(offsets, state.buffer, token, seen)


def _on_axis(entry: Entry) -> Entry:
    """Return the rows of one device, with an axis of devices, which it has one row of.

    ([time,] *outer, *inner, ...) -> ([time,] *outer, 1, *inner, ...)
    """
    axis = len(entry.outer)
    if isinstance(entry, Accumulator):
        return entry.map(lambda x: lax.expand_dims(x, (axis,)))
    # The count has no axis of time.
    count = None if entry.count is None else lax.expand_dims(entry.count, (axis,))
    wide = entry.map(lambda x: lax.expand_dims(x, (entry.time + axis,)))
    return wide.replace(ndim=entry.ndim + 1, count=count)


def _divided(entry: Entry, is_spread: bool) -> Entry:
    """Return how each array is divided among the devices, in place of the array."""
    divided = entry.map(lambda _: Division(entry.outer, int(entry.time), is_spread))
    if not isinstance(entry, Rows) or entry.count is None:
        return divided
    return divided.replace(count=Division(entry.outer, 0, is_spread))


def _outside(entry: Entry, axes: dict[str, int], is_spread: bool) -> Entry:
    """Return the rows of all devices, once they have left the `shard_map`."""
    batch = Division(entry.outer, 0, is_spread).batch(entry.batch, axes)
    return entry.replace(batch=batch, outer=((),) * len(entry.outer))


def _combined(keys: Keys, entry: Entry) -> Entry:
    """Reduce the values of all devices to one, if the reduction asks for it."""
    if not isinstance(entry, Accumulator) or not entry.reduction.devices:
        return entry
    # (*outer, devices, *inner) -> (devices, *outer, *inner)
    axis, rest = len(entry.outer), list(entry.batch)
    size = rest.pop(axis)
    stacked = entry.map(lambda x: jnp.moveaxis(x, axis, 0), batch=(size, *rest))
    total = _folded(stacked)
    if callable(stacked.reduction.devices):
        # A user's function sees the accumulators of one example: (devices, ...) -> (...)
        over = stacked.reduction.devices
        for _ in total.batch:
            over = jax.vmap(over, in_axes=1)
        value = [over(x) for x in stacked.value]
        _check_combined(keys[0], value, total.value)
        total = total.replace(value=value)
    return total.replace(paths=stacked.paths)


def _check_combined(key: str, given: PyTree, wanted: PyTree) -> None:
    """Raise if a user's function did not combine all accumulators into one."""
    given, wanted = (
        jax.tree.map(lambda x: f"{jnp.result_type(x)}{list(jnp.shape(x))}", tree)
        for tree in (given, wanted)
    )
    if given != wanted:
        raise ValueError(
            f"`devices` of the reduction of {key!r} returns {given}, but it must return "
            f"one accumulator, {wanted}. Its argument is the accumulators of all devices, "
            "stacked along a new first axis."
        )


def _folded(stacked: Accumulator) -> Accumulator:
    """Combine neighbours until one is left, in the order of the devices.

    [a b c d e]  ->  [ab cd e]  ->  [abcd e]  ->  [abcde]
    """
    size = stacked.batch[0]
    if size == 1:
        return stacked.map(lambda x: x[0], batch=stacked.batch[1:])
    n = size // 2
    pairs = [
        stacked.map(lambda x, i=i: x[i : 2 * n : 2], batch=(n, *stacked.batch[1:]))
        for i in (0, 1)
    ]
    both = combine(("",), pairs)
    if size % 2:
        last = stacked.map(lambda x: x[2 * n :], batch=(1, *stacked.batch[1:]))
        joined = jax.tree.map(
            lambda *xs: jnp.concatenate(xs),
            *(x.replace(batch=(), paths=()) for x in (both, last)),
        )
        both = joined.replace(batch=(n + 1, *stacked.batch[1:]))
    return _folded(both)
