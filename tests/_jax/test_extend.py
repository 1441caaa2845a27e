"""The names that lox takes from inside JAX are those of `jax.extend`."""

import jax.extend
import jax.extend.core
import jax.extend.linear_util
import pytest

from lox._jax import extend

CORE = ["ClosedJaxpr", "Jaxpr", "JaxprEqn", "Literal", "Primitive", "Var", "jaxpr_as_fun"]


@pytest.mark.parametrize("name", CORE)
def test_they_are_the_same_objects(name):
    assert getattr(extend, name) is getattr(jax.extend.core, name)


def test_the_modules_have_the_same_functions():
    assert extend.WrappedFun is jax.extend.linear_util.WrappedFun
    # `wrap_init` of `jax.extend` only adds a default that lox does not use.
    assert extend.linear_util.transformation2 is jax.extend.linear_util.transformation2
    public = jax.extend.source_info_util
    for name in ("current", "current_name_stack", "register_exclusion", "summarize"):
        assert getattr(extend.source_info_util, name) is getattr(public, name)
    for name in ("transform_name_stack", "user_context"):
        assert getattr(extend.source_info_util, name) is getattr(public, name)
