"""A million records through `tap`, of all sizes. Run by `make soak`."""

import resource
import time

import jax
import jax.numpy as jnp
import numpy as np

import lox

RECORDS = 10**6
SIZES = [1, 1, 1, 1, 1, 1, 1, 10, 100, 1000]  # one in a thousand has 10^5 elements


def test_soak_of_a_million_records():
    def fun(start):
        def step(carry, i):
            x = carry * 0.5 + i.astype(jnp.float32)
            for site, size in enumerate(SIZES):
                lox.log({f"x{site}": jnp.full(size, x), "i": i}, step=i)
            jax.lax.cond(
                i % 100 == 0,
                lambda: lox.log({"large": jnp.full(10**5, x)}) and None,
                lambda: None,
            )
            return x, None

        return jax.lax.scan(step, 0.0, start + jnp.arange(1000))[0]

    seen, wrong, large = 0, 0, 0

    def callback(logs):
        nonlocal seen, wrong, large
        if "large" in logs:
            large += 1
            wrong += not (logs["large"].shape == (10**5,) and np.ptp(logs["large"]) == 0)
            return
        step, site = divmod(seen, len(SIZES))
        value = logs[f"x{site}"]
        wrong += not (value.shape == (SIZES[site],) and logs["i"] == step)
        seen += 1

    tapped = jax.jit(lox.tap(fun, callback))
    before, start = 0, time.monotonic()
    for run in range(RECORDS // 1000 // len(SIZES)):
        tapped(jnp.int32(1000 * run))
        if run == 10:
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    lox.barrier()
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    seconds, more = time.monotonic() - start, (after - before) / 1024
    print(f"{seen + large} records in {seconds:.0f} s, {more:.0f} MiB more at the end")
    assert (seen, large, wrong) == (RECORDS, RECORDS // len(SIZES) // 100, 0)
    assert after - before < 200 * 1024  # KiB
