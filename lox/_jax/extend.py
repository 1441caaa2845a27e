# ruff: noqa: F401
"""The names of `jax.extend` that lox needs, without importing `jax.extend`.

`import jax.extend` imports Pallas, which takes as long as half of lox. Here are the same
objects, from where `jax.extend` takes them. If a later version of JAX moves one of them,
lox imports `jax.extend` after all.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jax.extend import (
        linear_util as linear_util,
        source_info_util as source_info_util,
    )
    from jax.extend.core import (
        ClosedJaxpr as ClosedJaxpr,
        Jaxpr as Jaxpr,
        JaxprEqn as JaxprEqn,
        Literal as Literal,
        Primitive as Primitive,
        Var as Var,
        jaxpr_as_fun as jaxpr_as_fun,
    )
    from jax.extend.linear_util import WrappedFun as WrappedFun
else:
    try:
        from jax._src import core as _core, linear_util, source_info_util
        from jax._src.core import Jaxpr, JaxprEqn, Literal, Primitive, Var, jaxpr_as_fun
        from jax._src.linear_util import WrappedFun

        # JAX 0.12 has one class for both.
        ClosedJaxpr = getattr(_core, "ClosedJaxpr", Jaxpr)
    except ImportError:
        from jax.extend.core import (
            Jaxpr,
        )
