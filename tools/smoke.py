"""Use an installed lox once, as after `pip install`. Run in an empty folder."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np

import logify
import lox


def train(xs):
    def body(total, x):
        total = total + x
        lox.log({"total": total}, step=x)
        return total, None

    return jax.lax.scan(body, 0, xs)[0]


def main():
    total, logs = jax.jit(lox.spool(train))(jnp.arange(3))
    assert total == 3
    np.testing.assert_array_equal(logs["total"], [0, 1, 3])

    logger = lox.loggers.SaveLogger("results")
    logger.tap(train, logger.init(0))(jnp.arange(3))
    lox.barrier()
    np.testing.assert_array_equal(lox.load("results")["total"], [0, 1, 3])

    listed = subprocess.run(
        [sys.executable, "-m", "lox", "ls", "results"],
        check=True,
        capture_output=True,
        text=True,
    )
    assert "total" in listed.stdout, listed.stdout
    assert logify.__name__ == "logify"
    print(f"lox {lox.__version__} works, with JAX {jax.__version__}.")


if __name__ == "__main__":
    main()
