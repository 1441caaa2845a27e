"""`progress`: a progress bar for a program, made from its loops.

A handler, `Count`, cuts loops into chunks, as `tap` does for `batch`, and calls the host
after each chunk with the number of iterations that are done. Long loops are counted
themselves; short ones are followed into the loops inside, which have more iterations:

    scan, length 5            fewer than `_FEW`: not counted
      scan, length 1000       counted, 10 iterations per call (`_MOVES` calls)

So the total is 5000, known before the program starts, unless there is a `while`.
"""

import contextlib
import dataclasses
import functools as ft
import math
import weakref
from collections.abc import Callable, Sequence
from typing import Self

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from lox._core import context as _context
from lox._core.handler import Handler, Idle
from lox._core.interpreter import Interpreter
from lox._core.log import check_function
from lox._core.record import Record
from lox._core.rules.registry import rules
from lox._core.staging import trace
from lox._core.transform import transformed
from lox._jax import equations, sharding
from lox._jax.extend import JaxprEqn
from lox._jax.types import AnyArray, Code, Program, PyTree
from lox._rows.collected import Collected, Threaded
from lox._rows.rows import static
from lox._rows.types import P, R
from lox._stream.callbacks import awaited, call_soon, start_callbacks
from lox._stream.emit import emit
from lox._stream.host_call_order import new_token
from lox._stream.packet import Packet
from lox_host.display.progress_bar import Bar

# How often the bar moves at least, if a loop has that many iterations.
_MOVES = 100
# In a loop with fewer iterations, the iterations of the loops inside are counted instead.
_FEW = 20


def progress(fun: Callable[P, R], *, title: str | None = None) -> Callable[P, R]:
    """Show the progress of `fun` while it runs, without changing it.

    It counts the iterations of the loops in `fun`, and shows how many are done, how many
    run per second and, if the length of the loop is known, how much time is left. On a
    terminal this is a bar, elsewhere a line every ten seconds, both on standard error. The
    logs of `fun` are not printed.

    Args:
        fun: Any JAX function, usually a jitted one. It does not have to log anything.
        title: The text in front of the bar. By default, the name of the function.

    Returns:
        A function that does and returns what `fun` does.

    Example:
        >>> train = jax.jit(lambda x: jax.lax.fori_loop(0, 1000, lambda i, x: x / 2, x))
        >>> lox.progress(train)(1.0)
        Array(0., dtype=float32, weak_type=True)
    """
    check_function("lox.progress", fun)
    name: str = getattr(fun, "__name__", "progress") if title is None else title
    start_callbacks()
    return awaited(transformed(fun, ft.partial(_count, name), name))


def _count(title: str, fun: Callable, *args: PyTree, **kwargs: PyTree) -> PyTree:
    # Logs are left for the transformations around, but never printed: lines would break up
    # the bar.
    is_printed = _context.state() == "printed"
    with _context.silent() if is_printed else contextlib.nullcontext():
        traced = trace(fun, *args, **kwargs)
    program = equations.close(traced.jaxpr).jaxpr
    display = Display(Bar(title, _expected(program)))
    count, has_loops = Count(new_token(), display), bool(_loops(program))
    begin = count.tell("begin", 0) if has_loops else Threaded()
    interpreter = Interpreter(count).on_device().after(begin)
    outs, logs = interpreter(traced.jaxpr, *traced.args)
    if has_loops:
        interpreter.handler.after(logs.threaded).tell("end", 0)
    return traced.output(outs)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Count(Handler):
    """Tell the host how many iterations of loops are done.

    Attributes:
        token: The token of the last host call. The next call takes it, to come after.
        display: The callback on the host.
        tells: Whether this device calls the host: one of several does. None: there is only
            one.
    """

    token: AnyArray
    display: "Display" = static()
    tells: AnyArray = None

    def concerns(self, program: Code) -> bool:
        if isinstance(program, JaxprEqn):
            return _is_or_holds_loop(program)
        return bool(_loops(program))

    def tell(self, key: str, number: ArrayLike) -> Threaded:
        values = (jnp.asarray(number, jnp.int32),)
        record = Record(values=values, steps={}, valid=self.tells, keys=(key,))
        return Threaded(token=emit([record], self.display, self.token))

    def deliver(
        self, parts: Sequence[Collected], iterations: ArrayLike
    ) -> Sequence[Collected]:
        return [Collected(threaded=self.tell("done", iterations))]

    def carries(self) -> bool:
        return True

    def chunk(
        self, body: Sequence[Program], rows: Callable[[], int], length: int | None
    ) -> int | None:
        return _chunk(body, length)

    def threaded(self) -> Threaded:
        return Threaded(token=self.token)

    def after(self, state: Threaded) -> Self:
        token = self.token if state.token is None else state.token
        return dataclasses.replace(self, token=token)

    def unbatched(self, batched: PyTree) -> Self:
        token = self.token.max(0) if batched.token else self.token
        return dataclasses.replace(self, token=token)

    def on_device(self) -> Self:
        # Of the devices of a `shard_map`, the one at the origin of the mesh tells.
        coordinates = list(sharding.coordinates().values())
        tells = jnp.stack(coordinates).sum() == 0 if coordinates else self.tells
        return dataclasses.replace(self, tells=tells)

    def collecting(self, capacity: int | None = None) -> Idle:
        return Idle()


@dataclasses.dataclass(frozen=True)
class Display:
    """Takes packets on threads of JAX, and moves a bar."""

    bar: Bar

    def __call__(self, packet: Packet) -> None:
        call_soon(self, self._move, packet)

    def _move(self, packet: Packet) -> None:
        for record in packet.records():
            (key,), (number,) = record.keys, record.values
            {"begin": self.bar.begin, "done": self.bar.advance, "end": self.bar.end}[key](
                int(number.max())
            )


def _chunk(body: Sequence[Program], length: int | None) -> int | None:
    """Return the number of iterations per move of the bar. None: count the loops inside."""
    inside = any(map(_loops, body))
    if length is None:
        return 1 if inside else _MOVES
    if inside and length < _FEW:
        return None
    return max(1, length // _MOVES)


def _expected(program: Program) -> float:
    """Return how many iterations will be counted. Infinity: that is not known."""
    return sum(map(_iterations, _loops(program)))


def _iterations(eqn: JaxprEqn) -> float:
    name, params = equations.primitive_name(eqn), eqn.params
    if name == "while":
        return math.inf
    jaxprs = list(equations.jaxprs_in(params))
    if name != "scan":
        return (max if name == "cond" else sum)(map(_expected, jaxprs))
    # Either the iterations of this loop are counted, or those of the loops inside.
    length = params["length"]
    if not length or _chunk(jaxprs, length) is not None:
        return length
    return length * sum(map(_expected, jaxprs))


def _loops(program: Program) -> list[JaxprEqn]:
    """Return the equations of a program that are loops or hold some."""
    if program not in _found:
        _found[program] = [eqn for eqn in program.eqns if _is_or_holds_loop(eqn)]
    return _found[program]


def _is_or_holds_loop(eqn: JaxprEqn) -> bool:
    """Return whether an equation is a loop or holds one that a rule can reach."""
    name = equations.primitive_name(eqn)
    is_loop = name in ("scan", "while")
    inside = equations.jaxprs_in(eqn.params) if name in rules else ()
    return is_loop or any(map(_loops, inside))


# Programs do not change, and are asked about once for each loop around them.
_found: weakref.WeakKeyDictionary[Program, list[JaxprEqn]] = weakref.WeakKeyDictionary()
