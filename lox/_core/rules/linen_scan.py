"""Logs in the body of flax linen's `nn.scan`.

Before flax runs such a loop, it checks that variables which all iterations share do not
depend on the iteration: it traces the body, drops what these variables do not need with
`jax.interpreters.partial_eval.dce_jaxpr`, and looks at which inputs are left. A log has an
effect and is never dropped, so its value looks like something that the variables need. In
this check alone, logs are left out. The loop itself is traced again, with all of them.
"""

from collections.abc import Callable, Sequence

from lox._core.interpreter import without_records
from lox._core.record import holds_records
from lox._jax import equations, patches
from lox._jax.extend import Jaxpr


@patches.implements("nn.scan of flax")
def _checked_without_logs(
    original: Callable,
    jaxpr: Jaxpr,
    used_outputs: Sequence[bool],
    *args: object,
    **options: object,
) -> tuple:
    if jaxpr.debug_info.traced_for == "flax scan" and holds_records(jaxpr):
        jaxpr = _bare(jaxpr)
    return original(jaxpr, used_outputs, *args, **options)


def _bare(jaxpr: Jaxpr) -> Jaxpr:
    """Return a program without records that has the same constants and inputs."""
    number = len(jaxpr.constvars)
    program = equations.close(equations.constants_as_inputs(jaxpr))
    bare = without_records(program)
    assert not bare.consts
    variables = bare.jaxpr.invars
    return bare.jaxpr.replace(constvars=variables[:number], invars=variables[number:])
