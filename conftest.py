"""What examples in docstrings and pages have: some names, and a folder of their own."""

import os

import pytest

# This page has eight devices: `tests/test_sharded.py` runs it in a process of its own.
if os.environ.get("JAX_NUM_CPU_DEVICES") != "8":
    collect_ignore = ["docs/many-devices.md"]


@pytest.fixture(autouse=True)
def _names(request: pytest.FixtureRequest, doctest_namespace: dict) -> None:
    if not isinstance(request.node, pytest.DoctestItem):
        return
    import jax
    import jax.numpy as jnp

    import lox

    doctest_namespace.update(jax=jax, jnp=jnp, lox=lox)
    request.getfixturevalue("monkeypatch").chdir(request.getfixturevalue("tmp_path"))
