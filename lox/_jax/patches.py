"""Everything that importing lox changes in JAX, as a table, and `install`, which does it.

JAX has rules for what its transformations do to an equation. For a few equations lox must
know more than a rule of its own primitive tells it: which examples of a batch take a
branch, or which of two runs of a loop is the real one. There it wraps the function that
JAX calls, and calls JAX's own at once if the program holds no logs.

The table says what is wrapped, and why. The wrappers live in the modules that know what
to do, most of them in `lox._core.rules`, and are declared there:

    @patches.implements("cond under vmap")
    def _batched_cond(original, ...): ...

`import lox` ends with `install()`. A test takes a snapshot of JAX before and after it, and
compares the difference with the tables; the page "What importing lox changes in JAX" shows
both of them.
"""

import functools as ft
import os
import pkgutil
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

import jax
import jax._src.api
from jax.core import AbstractValue
from jax.typing import ArrayLike

from lox._jax.extend import ClosedJaxpr, source_info_util

Version = tuple[int, int, int]


class Patch(NamedTuple):
    """A function of JAX that lox wraps.

    Attributes:
        name: What modules and the docs call the patch.
        target: The function, or the registry that holds it, as `module:attribute`.
        key: In a registry, where the key of the function is; usually a primitive.
        without: What happens to a program that logs, without the patch.
        change: What lox does about it.
        since: The first version of JAX that has what is wrapped, if it is new.
        until: The first version of JAX that does not need the patch, if there is one.
        issue: The number of an issue of JAX about it, where there is one.
    """

    name: str
    target: str
    without: str
    change: str
    key: str | None = None
    since: Version = (0, 0, 0)
    until: Version | None = None
    issue: int | None = None

    @property
    def is_needed(self) -> bool:
        """Whether this version of JAX needs the patch."""
        version = jax.__version_info__[:3]
        return self.since <= version and (self.until is None or version < self.until)

    @property
    def place(self) -> str:
        """The whole name of what is wrapped."""
        target = self.target.replace(":", ".")
        return target if self.key is None else f"{target}[{self.key.split(':')[1]}]"

    def locate(self) -> tuple[object, Any]:
        """Find what holds the function, an object or a registry, and its name in there."""
        if self.key is not None:
            return pkgutil.resolve_name(self.target), pkgutil.resolve_name(self.key)
        module, path = self.target.split(":")
        *owners, name = path.split(".")
        return pkgutil.resolve_name(f"{module}:{'.'.join(owners)}"), name

    def apply(self, wrapper: Callable) -> None:
        """Replace the original function by `wrapper(original, *args, **params)`."""
        owner, name = self.locate()
        if isinstance(owner, dict):
            owner[name] = _wrapped(owner.get(name), wrapper)
        else:
            setattr(owner, name, _wrapped(getattr(owner, name), wrapper))


def _wrapped(original: Callable | None, wrapper: Callable) -> Callable:
    # A closure and not a `partial`: as an attribute of a class it must become a method.
    def wrapped(*args: object, **params: object) -> object:
        return wrapper(original, *args, **params)

    return wrapped if original is None else ft.wraps(original)(wrapped)


# Where `grad`, `vjp` and `linearize` begin: before JAX 0.10, a function below `grad` and
# `vjp`.
_REVERSE_MODE = (
    "jax._src.api:_vjp"
    if hasattr(jax._src.api, "_vjp")
    else "jax._src.interpreters.ad:linearize"
)

PATCHES = (
    Patch(
        name="reverse mode in watch",
        target=_REVERSE_MODE,
        without="From outside `jax.grad`, `lox.watch` sees one program with both passes, "
        "in which activations, cotangents and stored intermediate values look alike.",
        change="While `lox.watch` traces a function, watches each function inside before "
        "JAX differentiates it.",
    ),
    Patch(
        name="forward mode in watch",
        target="jax._src.api:_jvp",
        without="The same for `jax.jvp`: activations and tangents look alike.",
        change="The same for `jax.jvp`.",
    ),
    Patch(
        name="cond under vmap",
        target="jax.interpreters.batching:fancy_primitive_batchers",
        key="jax.lax:cond_p",
        without="Every branch runs for every example, so every example logs in all of "
        "them.",
        change="Gives the logs in a branch a mask that says which examples took it.",
        issue=19314,
    ),
    Patch(
        name="while under vmap",
        target="jax.interpreters.batching:fancy_primitive_batchers",
        key="jax.lax:while_p",
        without="The body runs until the last example has finished, so all of them log "
        "until then.",
        change="Gives the logs in the loop a mask that says which examples are still "
        "running.",
        issue=20628,
    ),
    Patch(
        name="branches that return logs",
        target="jax._src.lax.control_flow.conditionals:_check_branch_outputs",
        without="If a branch such as `lambda: lox.log(...)` returns its record and another "
        "one does not, the error is about pytrees.",
        change="Adds what to write instead to the error.",
    ),
    Patch(
        name="cond",
        target="jax.lax:cond",
        without="`lambda: lox.log(...)` cannot be a branch if another one does not return "
        "the same record.",
        change="Lets JAX trace such branches again, and returns None.",
    ),
    Patch(
        name="switch",
        target="jax.lax:switch",
        without="The same.",
        change="The same.",
    ),
    Patch(
        name="order of prints",
        target="jax._src.interpreters.pxla:lower_sharding_computation",
        without="Records that nothing collects are printed in any order around branches, "
        "loops and calls.",
        change="Puts the host calls of a program that prints in the order of the program, "
        "before it is lowered.",
    ),
    Patch(
        name="packets before host calls",
        target="jax._src.interpreters.pxla:ExecuteReplicated.__call__",
        without="What a jitted step returns to `lox.tap` may be delivered after what a "
        "program that was called later sends by host calls.",
        change="Before a program starts that calls the host, waits until what earlier "
        "steps return has been delivered.",
    ),
    Patch(
        name="shard_map under vmap",
        target="jax._src.interpreters.batching:BatchTrace.process_shard_map",
        without="Inside the `shard_map`, its own batch axes and those of a `vmap` around "
        "it look the same, so rows come out in the wrong order.",
        change="Remembers which `vmap`s are around the `shard_map` while its body is "
        "traced.",
    ),
    Patch(
        name="examples of a vmap",
        target="jax._src.interpreters.batching:BatchTrace.process_primitive",
        without="A batched program does not say which axis holds the examples, so "
        "`lox.find_nan` could not name the example that has a NaN.",
        change="Marks this axis, but only in programs that `lox.find_nan` traces.",
    ),
    Patch(
        name="pvary under vmap",
        target="jax._src.core:pvary_p.bind",
        without="If a `vmap` with `spmd_axis_name` is around a `shard_map`, JAX makes "
        "values vary along axes that they vary along already, and fails.",
        change="In such a `vmap`, leaves these axes out.",
    ),
    Patch(
        name="scan under grad",
        target="jax.lax:scan_p.bind",
        without="JAX moves what stays the same in all iterations out of the loop, and a "
        "log of it then happens once.",
        change="Ties such logs to a counter that the loop carries.",
        issue=16637,
    ),
    Patch(
        name="while under grad",
        target="jax.lax:while_p.bind",
        without="A derivative that only logs would use makes JAX run the loop twice, or "
        "fail in reverse mode.",
        change="Stops derivatives of inputs that nothing but logs depends on.",
    ),
    Patch(
        name="while under linearize",
        target="jax.interpreters.partial_eval:custom_partial_eval_rules",
        key="jax.lax:while_p",
        without="JAX runs the loop once for its values and once more for its derivatives, "
        "and logs twice.",
        change="Removes the logs from the second run.",
    ),
    Patch(
        name="while under checkpoint",
        target="jax.interpreters.partial_eval:partial_eval_jaxpr_custom_rules",
        key="jax.lax:while_p",
        without="The same inside `jit` and `jax.checkpoint`.",
        change="Removes the logs from the second run.",
    ),
    Patch(
        name="equations that wait under grad",
        target="jax._src.interpreters.partial_eval:new_eqn_recipe",
        without="JAX drops a `cond` or a `custom_vjp` function in a loop if nothing uses "
        "its results, even if it logs. In second derivatives, the backward rule of a "
        "`custom_vjp` function in a loop gets wrong residuals if the function computes "
        "something from constants, even if that is only logged.",
        change="Keeps the function, and moves the residuals, if it logs.",
    ),
    Patch(
        name="leaks under grad",
        target="jax._src.interpreters.partial_eval:JaxprTrace.invalidate",
        without="With `jax_check_tracer_leaks`, JAX mistakes logs in a `scan` under `grad` "
        "for leaks, and `jax.debug.print` too, because a trace that has ended keeps its "
        "effects.",
        change="Lets go of them when the trace ends.",
    ),
    Patch(
        name="transposed operators",
        target="jax._src.lax.control_flow.solves:_transpose_one_output",
        without="JAX transposes the operator of a `custom_linear_solve` (of `gmres` and "
        "`bicgstab`, too) whether it needs that or not, and fails if the operator logs.",
        change="Leaves logs out of the transpose.",
    ),
    Patch(
        name="custom_vjp in silence",
        target="jax.custom_derivatives:custom_vjp_call_p.bind",
        without="The backward rule of a function called in `lox.silent()` or `lox.nolog` "
        "runs later, outside it, and logs.",
        change="Keeps the rules silent if the call was silent.",
    ),
    Patch(
        name="memoized rules",
        target="jax._src.interpreters.partial_eval:_memoize",
        without="JAX traces the rules of a `custom_jvp` or `custom_vjp` in a jitted "
        "function once. Rules that were first traced in silence never log again.",
        change="Caches them separately for captured, printed and silent logs.",
    ),
    Patch(
        name="hijax",
        target="jax._src.hijax:call_hi_primitive_p.bind",
        without="With JAX's upgrade flags, a `jax.checkpoint` that is differentiated logs "
        "twice, and rules of functions called in silence log. JAX does not know that a "
        "`HiPrim` whose `expand` logs has an effect.",
        change="Binds a `jax.checkpoint` that logs as without the flag `jax_remat3`, keeps "
        "rules of a call in silence silent, and says that a `HiPrim` logs.",
        since=(0, 11, 2),
    ),
    Patch(
        name="nn.scan of flax",
        target="jax.interpreters.partial_eval:dce_jaxpr",
        without="Flax linen's `nn.scan` mistakes a log in its body for something that its "
        "shared variables depend on, and raises.",
        change="Leaves logs out of the check that flax makes. JAX itself calls another "
        "name of this function.",
    ),
    Patch(
        name="closed_call under checkpoint",
        target="jax.extend.core.primitives:closed_call_p.bind",
        without="JAX turns a loop in a differentiated `jax.checkpoint` into calls, and "
        "drops a call that has logs but no outputs.",
        change="Evaluates a call that logs in place.",
        until=(0, 12, 0),
    ),
    Patch(
        name="effects of custom_vmap",
        target="jax._src.custom_batching:custom_vmap_p.abstract_eval",
        without="An equation of a `custom_vmap` does not say that its function has "
        "effects, and `jit` drops its logs.",
        change="Says so.",
        until=(0, 8, 2),
    ),
    Patch(
        name="sums of literals",
        target="jax._src.ad_util:raw_jaxval_adders",
        key="jax._src.literals:LiteralArray",
        without="Outside `jit`, a derivative fails if it adds a constant of a program.",
        change="Adds it with `jax.lax.add`.",
        until=(0, 8, 0),
    ),
)


class Addition(NamedTuple):
    """Something that lox adds to a registry of JAX, for itself.

    Attributes:
        what: What is added.
        why: What it is for.
        registries: Where it is found afterwards, as `module:attribute`.
    """

    what: str
    why: str
    registries: tuple[str, ...]


ADDITIONS = (
    Addition(
        what="Rules for lox's own primitives",
        why="`lox_log` and the others can be batched, differentiated and compiled.",
        registries=(
            "jax.interpreters.ad:primitive_jvps",
            "jax.interpreters.ad:primitive_transposes",
            "jax.interpreters.batching:fancy_primitive_batchers",
            "jax.interpreters.batching:primitive_batchers",
            "jax.experimental.jet:jet_rules",
            "jax.interpreters.mlir:_lowerings",
            "jax.interpreters.mlir:_platform_specific_lowerings",
        ),
    ),
    Addition(
        what="Signatures for `jax.debug_key_reuse`",
        why="Logging a PRNG key does not use it up.",
        registries=("jax.experimental.key_reuse._core:key_reuse_signatures",),
    ),
    Addition(
        what="Primitives that know their devices when they are compiled",
        why="In a program over many devices, the host is called once per record.",
        registries=("jax._src.dispatch:prim_requires_devices_during_lowering",),
    ),
    Addition(
        what="Two user contexts (`jax.make_user_context`)",
        why="JAX keeps separate cache entries for a function that was traced in silence, "
        "one that logs, and one that is watched.",
        registries=("jax._src.config:register_trace_context_callback",),
    ),
    Addition(
        what="Pytrees, and how `jax.export` writes them",
        why="Functions can take and return logs.",
        registries=(
            "jax._src.tree_util:_registry",
            "jax._src.export._export:serialization_registry",
            "jax._src.export._export:deserialization_registry",
        ),
    ),
    Addition(
        what="The folder of lox, among those that JAX skips in tracebacks",
        why="Messages and profiles name your line that logs, not ours.",
        registries=("jax._src.source_info_util:_exclude_paths",),
    ),
)

_wrappers: dict[str, Callable] = {}
_installed: set[str] = set()


def implements(name: str) -> Callable[[Callable], Callable]:
    """Declare a function to be the wrapper of the patch called `name`."""
    assert name in {patch.name for patch in PATCHES}, name

    def declare(wrapper: Callable) -> Callable:
        _wrappers[name] = wrapper
        return wrapper

    return declare


def install() -> None:
    """Apply every patch that this version of JAX needs; a second call does nothing."""
    if not _installed:
        source_info_util.register_exclusion(os.path.dirname(os.path.dirname(__file__)))
    for patch in PATCHES:
        if patch.is_needed and patch.name not in _installed:
            patch.apply(_wrappers[patch.name])
            _installed.add(patch.name)


@implements("effects of custom_vmap")
def _custom_vmap_effects(
    original: Callable, *avals: AbstractValue, call: ClosedJaxpr, **params: object
) -> tuple[Sequence[AbstractValue], Collection[object]]:
    return call.out_avals, call.effects


@implements("sums of literals")
def _add_literals(original: None, x: ArrayLike, y: ArrayLike) -> jax.Array:
    return jax.lax.add(x, y)


@implements("leaks under grad")
def _forget_effects(original: Callable, trace: Any) -> None:
    original(trace)
    trace.effect_handles.clear()
