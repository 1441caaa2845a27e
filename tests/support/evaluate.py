"""Programs run by NumPy: quicker than XLA for a program that runs once, and stricter.

XLA takes a tenth of a second to compile a small program. NumPy runs it in milliseconds,
equation by equation, which says as much about the program that lox made. It says more, in
fact: each value must have the shape and dtype that its equation promises, and the host
calls must be in order by their tokens, not just by luck. For that, each value knows which
host calls are over once it is there:

    token = lox_emit[...] token a      call 0: what needs `token` comes after {0}
    x = sin a                          after {}: XLA may compute it before call 0
    token = lox_emit[...] token x      call 1 comes after {0}, that is after all others

What it cannot say is how lox and JAX lower the program, so each way to run programs is
compiled for some of them, too.
"""

import itertools as it
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal

from lox._jax.equations import close, scan_sizes
from lox._stream.default_print import print_packet


class Value(NamedTuple):
    array: Any
    after: frozenset[int] = frozenset()  # the host calls that are over when it is there


def evaluated(fun: Callable, *args: Any) -> Any:
    """What `jax.jit(fun)` returns, from NumPy."""
    return outcome_of(jax.jit(fun).trace(*args), *args)


def outcome_of(traced: Any, *args: Any) -> Any:
    """The same of a function that was traced with such arguments."""
    inputs = [Value(np.asarray(x)) for x in jax.tree.leaves(args)]
    with np.errstate(all="ignore"):
        outs = Evaluation().program(traced.jaxpr, inputs)
    return jax.tree.unflatten(
        jax.tree.structure(traced.out_info), [out.array for out in outs]
    )


def holds_keys(jaxpr: Jaxpr) -> bool:
    """Whether a program computes with typed PRNG keys, which NumPy does not have."""
    variables = [*jaxpr.invars, *(var for eqn in jaxpr.eqns for var in eqn.outvars)]
    if any(jnp.issubdtype(var.aval.dtype, jax.dtypes.prng_key) for var in variables):
        return True
    inside = (
        x for eqn in jaxpr.eqns for x in jax.tree.leaves(eqn.params, is_leaf=is_program)
    )
    return any(holds_keys(close(x).jaxpr) for x in inside if is_program(x))


class Evaluation:
    """One run of a program."""

    def __init__(self):
        self.calls: list[JaxprEqn] = []

    def program(self, program: Any, inputs: Sequence[Value]) -> list[Value]:
        closed = close(program)
        jaxpr, consts = closed.jaxpr, closed.consts
        values = {
            var: Value(np.asarray(x))
            for var, x in zip(jaxpr.constvars, consts, strict=True)
        }
        values |= zip(jaxpr.invars, inputs, strict=True)

        def read(atom):
            if isinstance(atom, Literal):
                return Value(np.asarray(atom.val, atom.aval.dtype))
            return values[atom]

        for eqn in jaxpr.eqns:
            outs = self.equation(eqn, [read(atom) for atom in eqn.invars])
            for var, out in zip(eqn.outvars, outs, strict=True):
                found = np.shape(out.array), out.array.dtype
                assert found == (var.aval.shape, var.aval.dtype), f"{found} from {eqn}"
                values[var] = out
        return [read(atom) for atom in jaxpr.outvars]

    def equation(self, eqn: JaxprEqn, inputs: list[Value]) -> list[Value]:
        name = eqn.primitive.name
        if name in CALLS:
            return self.program(next(filter(is_program, eqn.params.values())), inputs)
        arrays, after = [x.array for x in inputs], latest(inputs)
        if name in CONTROL:
            # XLA begins with a loop or a branch when all of its operands are there, and
            # what comes out of it is there when it is over.
            return CONTROL[name](self, [Value(x, after) for x in arrays], **eqn.params)
        # What is printed is put in order when a program is lowered, which is after this.
        if name == "lox_emit" and callback_of(eqn) is not print_packet:
            self.check_order(eqn, after)
            after |= {len(self.calls)}
            self.calls.append(eqn)
        if name in NUMPY:
            outs = NUMPY[name](*arrays, **eqn.params)
        else:
            outs = eqn.primitive.bind(*arrays, **eqn.params)
        outs = outs if eqn.primitive.multiple_results else [outs]
        return [Value(np.asarray(out), after) for out in outs]

    def check_order(self, eqn: JaxprEqn, after: frozenset[int]) -> None:
        """Check that a host call of `tap` waits for all before, as an example sees them."""
        for number, before in enumerate(self.calls):
            if callback_of(before) is callback_of(eqn) and not exclusive(before, eqn):
                assert number in after, f"Not in order:\n{before}\n{eqn}"

    def run_whole(self, program: Any, inputs: Sequence[Value]) -> list[Value]:
        """Run a branch, or one turn of a loop: all of it is over before anything else."""
        begun, first = latest(inputs), len(self.calls)
        outs = self.program(program, [Value(x.array, begun) for x in inputs])
        over = begun.union(range(first, len(self.calls)))
        return [Value(out.array, over) for out in outs]

    def cond(self, inputs, *, branches, **_):
        index, *operands = inputs
        branch = branches[np.clip(int(index.array), 0, len(branches) - 1)]
        return self.run_whole(branch, operands)

    def while_loop(
        self, inputs, *, cond_nconsts, body_nconsts, cond_jaxpr, body_jaxpr, **_
    ):
        of_cond, rest = inputs[:cond_nconsts], inputs[cond_nconsts:]
        of_body, carry = rest[:body_nconsts], rest[body_nconsts:]
        # A vmapped loop goes on while some example does, and leaves the others alone.
        while (goes_on := self.program(cond_jaxpr, [*of_cond, *carry])[0].array).any():
            outs = self.run_whole(body_jaxpr, [*of_body, *carry])
            carry = [
                Value(where(goes_on, new.array, old.array), new.after)
                for new, old in zip(outs, carry, strict=True)
            ]
        return carry

    def scan(self, inputs, *, jaxpr, length, reverse, **params):
        num_consts, num_carry = scan_sizes(params)
        consts, rest = inputs[:num_consts], inputs[num_consts:]
        carry, xs = rest[:num_carry], rest[num_carry:]
        rows, over = [], latest(inputs)
        for i in reversed(range(length)) if reverse else range(length):
            row = [Value(x.array[i], over) for x in xs]
            outs = self.run_whole(jaxpr, [*consts, *carry, *row])
            carry, over = outs[:num_carry], over | latest(outs)
            rows.append([out.array for out in outs[num_carry:]])
        forms = [var.aval for var in close(jaxpr).jaxpr.outvars[num_carry:]]
        columns = zip(*(rows[::-1] if reverse else rows), strict=True)
        ys = [np.stack(column) for column in columns] if rows else []
        ys = ys or [np.empty((0, *form.shape), form.dtype) for form in forms]
        return [*carry, *(Value(y, over) for y in ys)]


def latest(values: Sequence[Value]) -> frozenset[int]:
    return frozenset().union(*(value.after for value in values))


def callback_of(eqn: JaxprEqn) -> Any:
    return eqn.params["callback"]


def exclusive(a: JaxprEqn, b: JaxprEqn) -> bool:
    """Whether no example makes both host calls, as in two branches of a vmapped `cond`."""

    def differ(a, b):
        taken = {branch.cond: branch.index for branch in a}
        return any(taken.get(branch.cond, branch.index) != branch.index for branch in b)

    return all(it.starmap(differ, it.product(paths_of(a), paths_of(b))))


def paths_of(eqn: JaxprEqn) -> list[Sequence[Any]]:
    """For each record that a host call brings, the branches around it."""
    form = eqn.params["form"]
    return [record.path for record in jax.tree.unflatten(form, [0] * form.num_leaves)]


def is_program(x: Any) -> bool:
    return isinstance(x, Jaxpr | ClosedJaxpr)


def where(mask: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.where(mask.reshape(mask.shape + (1,) * (np.ndim(x) - mask.ndim)), x, y)


def elementwise(fun: Callable) -> Callable:
    return lambda *arrays, **_: fun(*arrays)


def divide(x, y):
    return x / y if x.dtype.kind == "f" else jax.lax.div(x, y)


def broadcast_in_dim(x, *, shape, broadcast_dimensions, **_):
    axes = [1] * len(shape)
    for axis, size in zip(broadcast_dimensions, x.shape, strict=True):
        axes[axis] = size
    return np.broadcast_to(x.reshape(axes), shape)


def iota(*, dtype, shape, dimension, **_):
    axes = [size if axis == dimension else 1 for axis, size in enumerate(shape)]
    return np.broadcast_to(np.arange(shape[dimension], dtype=dtype).reshape(axes), shape)


def reduction(ufunc: np.ufunc) -> Callable:
    return lambda x, *, axes, **_: np.asarray(ufunc.reduce(x, axes, dtype=x.dtype))


def write(*operands, batch, masked, differentiable):
    """Rows go into their rings one by one: `lox._rows.ring_write` says what that means."""
    number = (len(operands) - 1 - masked) // 2
    *rows, count = operands[number : 2 * number + 1]
    columns, count = [np.array(x) for x in operands[:number]], np.array(count)
    valid = operands[-1] if masked else np.ones((len(rows[0]), *count.shape), bool)
    # Axes of examples that share a count are between those that do not and the rows.
    shared = (slice(None),) * (batch - count.ndim)
    for time, *index in np.argwhere(valid).tolist():
        place = count[(*index,)] % columns[0].shape[batch]
        for column, row in zip(columns, rows, strict=True):
            column[(*index, *shared, place)] = row[(time, *index)]
        count[(*index,)] += 1
    return [*columns, count]


# Their programs run in place.
CALLS = {
    *("jit", "pjit", "closed_call", "core_call", "checkpoint", "remat2"),
    *("custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr"),
}
CONTROL = {
    "cond": Evaluation.cond,
    "scan": Evaluation.scan,
    "while": Evaluation.while_loop,
}
# What the programs of the tests are full of. JAX runs other primitives by itself.
ELEMENTWISE = {
    "add": np.add,
    "add_any": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": divide,
    "neg": np.negative,
    "max": np.maximum,
    "min": np.minimum,
    "sin": np.sin,
    "cos": np.cos,
    "tanh": np.tanh,
    "exp": np.exp,
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "not": np.invert,
    "rem": np.fmod,
    "clamp": lambda low, x, high: np.minimum(np.maximum(x, low), high),
    "abs": np.abs,
    "floor": np.floor,
    "is_finite": np.isfinite,
    "sign": np.sign,
    "sqrt": np.sqrt,
    "square": np.square,
    "stop_gradient": lambda x: x,
    "one_minus_square": lambda x: 1 - x * x,
}
NUMPY = {
    **{name: elementwise(fun) for name, fun in ELEMENTWISE.items()},
    "reduce_sum": reduction(np.add),
    "reduce_or": reduction(np.bitwise_or),
    "reduce_and": reduction(np.bitwise_and),
    "reduce_max": reduction(np.maximum),
    "reduce_min": reduction(np.minimum),
    "broadcast_in_dim": broadcast_in_dim,
    "iota": iota,
    "convert_element_type": lambda x, *, new_dtype, **_: np.asarray(x).astype(new_dtype),
    "reshape": lambda x, *, new_sizes, **_: np.reshape(x, new_sizes),
    "squeeze": lambda x, *, dimensions, **_: np.squeeze(x, dimensions),
    "transpose": lambda x, *, permutation, **_: np.transpose(x, permutation),
    "rev": lambda x, *, dimensions, **_: np.flip(x, dimensions),
    "select_n": lambda which, *cases: np.choose(which.astype(np.intp), cases),
    "stack": lambda *xs, axis: np.stack(xs, axis),
    "unstack": lambda x, *, axis: list(np.moveaxis(x, axis, 0)),
    "integer_pow": lambda x, *, y, **_: x**y,
    "lox_write": write,
    "concatenate": lambda *xs, dimension, **_: np.concatenate(xs, dimension),
}
