"""These tests need eight devices: `JAX_NUM_CPU_DEVICES=8 pytest -n0 tests/sharded`.

A process has as many devices as it was started with, so `tests/test_sharded.py` runs them
in processes of their own.
"""

import jax

if jax.config.jax_num_cpu_devices != 8:
    collect_ignore_glob = ["*"]
