"""`recorder`: keep the last records on the device, and deliver them when one fires."""

import dataclasses
import functools as ft
import os
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lox._core.analysis import keys_in, lets_buffer_through, records_in
from lox._core.collect import Collect
from lox._core.interpreter import Interpreter
from lox._core.log import check_function
from lox._core.options import check_positive, frames_of_lox, listening, selection
from lox._core.record import log_effect, log_p
from lox._core.staging import Traced
from lox._core.transform import transformed
from lox._core.when import check_when, nonfinite
from lox._inside.black_box.box import NEVER, Box, common_batch
from lox._inside.black_box.handler import RecordLast
from lox._inside.black_box.recording import Recording, Report
from lox._jax import equations, tracing
from lox._jax.extend import Jaxpr, JaxprEqn
from lox._logdict.logdict import logdict
from lox._rows.collected import Collected
from lox._rows.types import P, R
from lox._stream.callbacks import awaited, start_callbacks
from lox._stream.host_call_order import last_token
from lox_host.interrupts import watch_signals
from lox_host.store import absolute


def recorder(
    fun: Callable[P, R],
    keep: int = 64,
    when: Callable[[logdict], Any] = nonfinite,
    after: int = 8,
    then: str | Callable[[Recording], Any] = "raise",
    path: str | os.PathLike | None = None,
    *,
    argnames: str | Iterable[str] | None = None,
    tags: str | Iterable[str] | None = None,
    across_calls: bool = False,
) -> Callable[P, R]:
    """Keep the last records of `fun` on the device, and deliver them if one fires.

    This is a black box for your program: while nothing happens, no record leaves the
    device. When `when` is true for a record, lox waits for `after` more records, or for the
    end of the call. Then one host call delivers them all, and lox writes them to `path`.
    Only after that does `then` decide what happens next.

    Under `vmap`, each example has its own black box, which is delivered once, when its
    first record fires. All logs are also passed on to the next transformation outwards, but
    lox no longer prints them.

    Args:
        fun: Any JAX function, with loops of any kind.
        keep: How many records to keep, of all keys together. A record is what one call of
            `lox.log` logs.
        when: Takes a record, and returns whether it fires, such as `lox.nonfinite` or
            `lambda logs: "loss" in logs and logs["loss"] > 5`. It runs on the device, for
            each record and each example.
        after: How many more records to wait for after the one that fires.
        then: What happens when the records have been delivered. `"raise"` stops the
            program and raises `lox.Diverged`. `"stop"` stops it as Ctrl-C does: with a
            `KeyboardInterrupt`, which `except Exception` does not catch. With `"save"`, the
            program continues. A function is called with a `lox.Recording` on a separate
            thread, and the program continues.
        path: The folder of a store, for `lox.load`. Each delivery adds a session to it,
            with a run for each example that fired.
        argnames: The key or keys to record.
        tags: The tag or tags to record. With both `argnames` and `tags`, both must match.
        across_calls: Keep records from call to call, for a Python loop around a jitted
            step: `step = lox.recorder(jax.jit(step), across_calls=True)`. Otherwise each
            call starts with no records.

    Returns:
        A function that does and returns what `fun` does.

    Example:
        >>> def f(xs):
        ...     def step(total, x):
        ...         lox.log({"root": jnp.sqrt(total)}, step=x)
        ...         return total - x, None
        ...     return jax.lax.scan(step, 6.0, xs)[0]
        >>> def look(recording):
        ...     print("fired:", recording)
        ...     print(recording.logs)
        >>> y = lox.recorder(f, keep=3, after=1, then=look)(jnp.arange(8.0))
        fired: {'root': nan} step=5.0
        {'root': [1.7320508, 0.0, nan, nan]}
    """
    check_function("lox.recorder", fun)
    check_positive(keep=keep)
    _check_after(after)
    if when is None:
        check_when("lox.recorder", False)
    check_when("lox.recorder", when)
    folder = None if path is None else absolute(path)
    _check_then(then, folder)
    start_callbacks()
    watch_signals()
    collect = Collect(
        keys=selection(argnames, "argnames"),
        tags=selection(tags, "tags"),
        keep=True,
        outward=False,
        reduce=((None, "append"),),
    )
    options = _Options(collect, when, Report(int(keep), int(after), then, folder))
    if across_calls:
        return awaited(_remembering(fun, options), options.report)
    recording = transformed(fun, ft.partial(_record_alone, options), options)
    return awaited(recording, options.report)


@dataclasses.dataclass(frozen=True)
class _Options:
    """The options of a recorder, by which programs are cached."""

    collect: Collect
    when: Callable[[logdict], Any]
    report: Report


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class _Memory:
    """What is kept from call to call. Before the first call: nothing."""

    box: Box | None = None
    count: Any = None


def _record_alone(options: _Options, fun: Callable, *args: Any, **kwargs: Any) -> Any:
    return _record(options, _Memory(), fun, *args, **kwargs)[0]


def _record(
    options: _Options, memory: _Memory, fun: Callable, *args: Any, **kwargs: Any
) -> tuple[Any, _Memory]:
    """Call `fun` with a black box, and return its output and what the box has then."""
    traced, collect = listening("lox.recorder", options.collect, fun, *args, **kwargs)
    zero = np.zeros((), np.int32)
    handler = RecordLast(collect, last_token(), zero, None, options.report, options.when)
    logs = _look(handler, traced)
    if not any(records_in(traced.jaxpr)):
        warnings.warn(
            "`lox.recorder` finds no call of `lox.log` in the function, so it records "
            "nothing. Log what you want to see, or use `lox.recorder(lox.watch(f))`.",
            stacklevel=frames_of_lox() + 1,
        )
    if logs.rows:
        memory = _continued(memory, options.report, logs, traced)
        handler = dataclasses.replace(handler, box=memory.box, count=memory.count)
    interpreter = Interpreter(handler).on_device()
    outs, left = interpreter(traced.jaxpr, *traced.args)
    last = interpreter.after(left.threaded).handler
    if last.box is not None:
        # The program ends: deliver what has fired, however little came after it.
        last = last.after(last.sent(last.box.is_pending()))
        memory = _Memory(last.box, last.count)
    return traced.output(outs), memory


def _look(handler: RecordLast, traced: Traced) -> Collected:
    """Return what a program logs, as abstract arrays."""
    # For this, any capacity of rings will do.
    looking = Interpreter(handler.collecting(capacity=1).quiet()).on_device()
    return looking.stage(traced.jaxpr, *traced.args).shape[1]


def _continued(memory: _Memory, report: Report, logs: Collected, traced: Traced) -> _Memory:
    """Return the box for a program that logs this, with what is in memory."""
    has_devices = any(map(_is_shard_map, _blocks_in(traced.jaxpr.jaxpr)))
    examples = () if has_devices else common_batch(logs)
    masked = {
        key
        for record in records_in(traced.jaxpr)
        if record.valid is not None
        for key in record.keys
    }
    blocks = (keys_in(eqn.params) for eqn in _blocks_in(traced.jaxpr.jaxpr))
    masked = frozenset(masked).union(*blocks)
    together = min(_most_records(traced.jaxpr.jaxpr), _TOGETHER)
    box = Box.of(
        logs,
        masked,
        examples,
        keep=report.keep,
        after=report.after,
        together=together,
    )
    count = jnp.zeros(() if box.is_shared else examples, jnp.int32)
    if memory.box is not None and _is_like(memory, box, count):
        box, count = box.continuing(memory.box), memory.count
    return _Memory(box, count)


# How many consecutive records are added to a box at once, at most.
_TOGETHER = 8


def _most_records(jaxpr: Jaxpr) -> int:
    """Return how many records there are in one program, without those of inner ones."""
    inner = (
        _most_records(each)
        for eqn in jaxpr.eqns
        for each in equations.jaxprs_in(eqn.params)
    )
    return max(sum(eqn.primitive is log_p for eqn in jaxpr.eqns), 1, *inner)


def _is_like(memory: _Memory, box: Box, count: jax.Array) -> bool:
    """Return whether the records in memory have been counted in the same way."""
    assert memory.box is not None
    return (memory.count.shape, memory.box.last.shape) == (count.shape, box.last.shape)


def _blocks_in(jaxpr: Jaxpr) -> Iterator[JaxprEqn]:
    """Yield the equations that a box cannot be passed through."""
    for eqn in jaxpr.eqns:
        if log_effect not in eqn.effects:
            continue
        if not lets_buffer_through(eqn):
            yield eqn
            continue
        for inner in equations.jaxprs_in(eqn.params):
            yield from _blocks_in(inner)


def _is_shard_map(eqn: JaxprEqn) -> bool:
    return "shard_map" in equations.primitive_name(eqn)


def _remembering(fun: Callable, options: _Options) -> Callable:
    """Return a function that keeps its records from call to call, for each thread."""
    memories = threading.local()

    @ft.wraps(fun)
    def remembering(*args, **kwargs):
        if tracing.staged_program() is not None:
            raise RuntimeError(
                "`lox.recorder(across_calls=True)` is called inside `jit` or another JAX "
                "transformation, where it cannot keep anything between calls. Put it "
                "outside: `lox.recorder(jax.jit(step), across_calls=True)`."
            )
        call = ft.partial(_record, options)
        memory = getattr(memories, "last", None)
        if memory is None:
            # Find out what will be kept without compiling: the next call, which starts
            # with this in memory, is then the same program.
            run = transformed(fun, call, options, _Memory())
            form = jax.eval_shape(run, *args, **kwargs)[1]
            memory = _forgotten(form)
        out, memories.last = transformed(fun, call, options, memory)(*args, **kwargs)
        return out

    return remembering


def _forgotten(form: _Memory) -> _Memory:
    """Return an empty memory of this form."""
    empty = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), form)
    if empty.box is None:
        return empty
    last = jnp.full(empty.box.last.shape, NEVER)
    box = dataclasses.replace(empty.box, last=last)
    return dataclasses.replace(empty, box=box)


def _check_after(after: object) -> None:
    if isinstance(after, bool) or not isinstance(after, int | np.integer):
        raise TypeError(f"`after` must be a whole number, not {after!r}.")
    if after < 0:
        raise ValueError(f"`after` must be at least 0, not {after}.")


def _check_then(then: object, path: str | None) -> None:
    if not callable(then) and then not in ("raise", "stop", "save"):
        raise ValueError(
            '`then` of `lox.recorder` is "raise", "stop", "save" or a function that takes '
            f"a `lox.Recording`, not {then!r}."
        )
    if then == "save" and path is None:
        raise ValueError(
            '`lox.recorder(then="save")` needs a `path`: the folder of the store to write '
            "the records to."
        )
