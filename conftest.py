"""The names that examples in docstrings use without importing them."""

import pytest


@pytest.fixture(autouse=True)
def _names(doctest_namespace: dict) -> None:
    import jax
    import jax.numpy as jnp

    import lox

    doctest_namespace.update(jax=jax, jnp=jnp, lox=lox)
