"""Names for the types of programs and their values, where JAX has none that are public."""

from collections.abc import Hashable
from typing import Any, Protocol

from lox._jax.extend import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var

PyTree = Any
"""Arrays in any containers: what a user logs, and what a user's reduction makes of it."""

AnyArray = Any
"""An array: under `jit` a tracer, on the host of NumPy, in a form an abstract one.

That is a `jax.Array`, an `np.ndarray` or a `jax.ShapeDtypeStruct`.
"""

PyTreeDef = Any
"""The structure of a pytree. JAX has no types for its class, `jax.tree_util.PyTreeDef`."""

DType = Any
"""A dtype of JAX. Extended ones, those of PRNG keys, are no `np.dtype`."""

Params = dict[str, Any]
"""The parameters of an equation, by name. Each primitive has its own."""

Program = ClosedJaxpr | Jaxpr
"""A jaxpr, with its constants or without."""

Code = Program | JaxprEqn
"""A program or one of its equations. Both have `effects`, and may hold programs."""


class AxisData(Protocol):
    """The axis of a `vmap`, as JAX hands it to the rules that batch a primitive.

    Attributes:
        name: The name of the axis. Without one, JAX makes up something.
        size: The number of examples.
        spmd_name: The axes of the mesh that the examples are split over, if any.
    """

    name: Hashable
    size: int
    spmd_name: tuple[str, ...] | None


Atom = Var | Literal
"""An input of an equation, or an output of a program."""
