"""What examples in docstrings and pages have: some names, and a folder of their own."""

import pytest


@pytest.fixture(autouse=True)
def _names(request: pytest.FixtureRequest, doctest_namespace: dict) -> None:
    if not isinstance(request.node, pytest.DoctestItem):
        return
    import jax
    import jax.numpy as jnp

    import lox

    doctest_namespace.update(jax=jax, jnp=jnp, lox=lox)
    request.getfixturevalue("monkeypatch").chdir(request.getfixturevalue("tmp_path"))
