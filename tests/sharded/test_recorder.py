"""`lox.recorder` on several devices."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

import lox

MESH = Mesh(np.array(jax.devices()[:4]), "shard")
XS = jnp.arange(8.0)[None] * jnp.array([[1.0], [0.1], [0.7], [0.5]])


def negative(logs):
    return jnp.stack([x < 0 for x in jax.tree.leaves(logs.data)]).any()


def on_devices(fun):
    return jax.shard_map(fun, mesh=MESH, in_specs=P("shard"), out_specs=P("shard"))


def train(xs):
    def step(total, x):
        lox.log({"total": total}, step=x)
        return total - x, None

    return jax.lax.scan(step, 5 + 0 * xs[0], xs)[0]


def recorded(transform, xs):
    found = []
    options = {"keep": 2, "after": 1, "when": negative, "then": found.append}
    jax.block_until_ready(jax.jit(transform(lambda f: lox.recorder(f, **options)))(xs))
    lox.barrier()
    return found


def truth(xs):
    """What a recorder of one device delivers, by a loop in NumPy."""
    totals = 5 - np.concatenate([[0], np.cumsum(np.asarray(xs))])[:-1]
    first = int(np.argmax(totals < 0))
    return totals[first - 1 : first + 2] if (totals < 0).any() else None


def test_inside_a_shard_map_each_device_has_a_black_box():
    local = lambda xs: train(xs[0])[None]  # noqa: E731
    found = recorded(lambda r: on_devices(r(local)), XS)
    by_device = {int(own.fired.shard["total"]): own.logs["total"] for own in found}
    assert sorted(by_device) == [0, 2, 3]
    for i, total in by_device.items():
        np.testing.assert_allclose(total, truth(XS[i]), rtol=1e-5, atol=1e-5)


def test_around_a_shard_map_there_is_one_with_the_rows_of_all_devices():
    local = lambda xs: train(xs[0])[None]  # noqa: E731
    (recording,) = recorded(lambda r: r(on_devices(local)), XS)
    totals = np.stack([5 - np.cumsum(own) + own for own in np.asarray(XS)], 1)
    first = int(np.argmax((totals < 0).any(1)))
    np.testing.assert_allclose(
        recording.logs["total"], totals[first - 1 : first + 2], rtol=1e-5, atol=1e-5
    )


def test_a_loop_around_a_shard_map_counts_all_records():
    def body(x):
        lox.log({"x": x[0]})
        return x - 2

    def f(xs):
        def step(carry, x):
            lox.log({"mean": on_devices(body)(x).mean()})
            return carry, None

        return jax.lax.scan(step, 0, xs)[0]

    (recording,) = recorded(lambda r: r(f), XS.T)
    assert [list(record) for record in recording.records] == [["x"], ["mean"], ["x"]]
    np.testing.assert_allclose(recording.logs["x"], XS.T[:2])


def test_a_partitioned_program_has_one_black_box():
    xs = jax.device_put(XS, NamedSharding(MESH, P("shard")))
    (recording,) = recorded(lambda r: r(lambda xs: train(xs.sum(0))), xs)
    np.testing.assert_allclose(recording.logs["total"], truth(XS.sum(0)), rtol=1e-5)
    with np.testing.assert_raises_regex(lox.Diverged, "stopped the program"):
        lox.recorder(lambda xs: train(xs.sum(0)), when=negative)(xs)
