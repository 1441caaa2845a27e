"""Arguments that a function updates in place: the modules and optimizers of flax nnx.

A transformation traces its function with copies of the arguments, as `jax.jit` does, so an
update of a module would be lost with its copy:

    model ──copy──▶ traced copy ──updated──▶ (gone)

Flax's own transformations solve this by taking the objects apart, and so do we. The objects
become a graph, which is static, and a state, which is a pytree of arrays. What is traced is
a pure function from the old state to the new one; the new state is then written into the
objects that the caller holds:

    model ──split──▶ state ──pure function──▶ new state ──merge──▶ the same model

`nnx.update_context` keeps track of which object is which, so that changes of the graph
(a new attribute, a returned object) arrive too. lox never imports flax: a program that has
such an object has already imported it.
"""

import dataclasses
import functools as ft
import sys
from collections.abc import Callable, Sequence
from types import ModuleType

import jax

from lox._jax.types import PyTree
from lox_host.frozen import frozen

# Names our level in flax's stack of contexts.
_TAG = "lox"


def calls_in_place(call: Callable, fun: Callable, args: tuple, kwargs: dict) -> PyTree:
    """Return `call(fun, *args, **kwargs)`, and let `fun` update objects of flax nnx.

    Args:
        call: A transformation applied to a function and its arguments. It calls or traces
            the function, and returns its output, alone or in a pytree.
        fun: The function.
        args: Its positional arguments.
        kwargs: Its keyword arguments.
    """
    nnx = sys.modules.get("flax.nnx")
    if nnx is None:
        return call(fun, *args, **kwargs)
    objects, rest, arguments_of = _take_apart((args, kwargs), nnx)
    if not objects:
        return call(fun, *args, **kwargs)

    with nnx.update_context(_TAG):
        # 1. Take the caller's objects apart, into a static graph and a pytree of arrays.
        with nnx.split_context(_TAG) as context:
            graph, state = context.split(objects)

        # 2. Trace this: it works on copies, and returns their new state.
        @ft.wraps(fun)
        def pure(state: PyTree, rest: list) -> _Output:
            with nnx.merge_context(_TAG, True) as context:
                copies = context.merge(graph, state)
            args, kwargs = arguments_of(copies, rest)
            returned, others, output_of = _take_apart(fun(*args, **kwargs), nnx)
            with nnx.split_context(_TAG) as context:
                new_graph, new_state = context.split((list(copies), returned))
            return _Output(new_state, others, _Form(new_graph, output_of))

        # 3. Write the new state into the caller's objects, and put the output together.
        def finished(x: PyTree) -> PyTree:
            if not isinstance(x, _Output):
                return x
            with nnx.merge_context(_TAG, False) as context:
                _, returned = context.merge(x.form.graph, x.state)
            return x.form.output_of(returned, x.rest)

        result = call(pure, state, rest)
        return jax.tree.map(finished, result, is_leaf=lambda x: isinstance(x, _Output))


@dataclasses.dataclass(frozen=True, eq=False)
class _Form:
    """How to put an output together. It is compared by identity."""

    graph: object
    output_of: Callable[[Sequence[object], list], PyTree]


@jax.tree_util.register_dataclass
@frozen
class _Output:
    """What a pure function returns.

    Attributes:
        state: The state of the objects among the arguments and the outputs.
        rest: The other leaves of the output.
        form: How to make the output of both.
    """

    state: PyTree
    rest: list
    form: _Form = dataclasses.field(metadata={"static": True})


def _take_apart(tree: PyTree, nnx: ModuleType) -> tuple[list, list, Callable]:
    """Return the objects of flax in a pytree, the other leaves, and how to join them."""
    is_object = nnx.graph.is_graph_node
    leaves, treedef = jax.tree.flatten(tree, is_leaf=is_object)
    is_one = [is_object(leaf) for leaf in leaves]

    def joined(objects: Sequence[object], rest: Sequence[object]) -> PyTree:
        next_object, next_other = iter(objects), iter(rest)
        leaves = [next(next_object) if one else next(next_other) for one in is_one]
        return jax.tree.unflatten(treedef, leaves)

    pairs = list(zip(leaves, is_one, strict=True))
    objects = [leaf for leaf, one in pairs if one]
    return objects, [leaf for leaf, one in pairs if not one], joined
