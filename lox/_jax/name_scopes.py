"""Read the name scopes of equations.

JAX writes down for each equation which scopes it was traced in: those that the user opened
with `jax.named_scope`, and those of transformations. For the derivative of a function that
opens `block` and `mlp`, it shows them as `transpose(jvp(block))/mlp`. The programs inside
an equation, such as the body of a `scan`, start without any: their scopes are inside those
of the equation.
"""

import contextlib

from jax._src.source_info_util import Scope

from lox._jax.extend import JaxprEqn, source_info_util
from lox_host.frozen import frozen


@frozen
class Level:
    """One level of the scopes of an equation.

    Attributes:
        name: The name of the scope, or of the transformation.
        is_scope: Whether it is a scope that the user opened.
    """

    name: str
    is_scope: bool

    @property
    def is_derivative(self) -> bool:
        """Whether the equation was made by differentiating the user's program."""
        return not self.is_scope and self.name in ("jvp", "transpose")

    @property
    def is_watched(self) -> bool:
        """Whether lox has looked into what was differentiated, see `mark_watched`."""
        return not self.is_scope and self.name == _WATCHED


_WATCHED = "watch"


def mark_watched() -> contextlib.AbstractContextManager:
    """Mark the equations that are traced in here: `block/mlp` is `watch(block)/mlp`."""
    return source_info_util.transform_name_stack(_WATCHED)


def is_transposing() -> bool:
    """Return whether JAX is running a backward pass now."""
    stack = source_info_util.current_name_stack().stack
    return any(
        level.name == "transpose" and not isinstance(level, Scope) for level in stack
    )


def levels_of(eqn: JaxprEqn) -> tuple[Level, ...]:
    """Return the scopes of an equation and the transformations of it, outermost first."""
    stack = eqn.source_info.name_stack.stack
    return tuple(Level(level.name, isinstance(level, Scope)) for level in stack)
