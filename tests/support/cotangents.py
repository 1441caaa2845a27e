"""The truth about cotangents, without a transpose of ours: what a perturbation does.

The cotangent of `h` is the derivative of the loss by something that is added to `h`. So a
function that calls `log_grad` n times is run once to count the calls, and then
differentiated eagerly by n zeros, one of which is added at each call. JAX's own `grad` says
what flows there. The backward pass meets the calls in reverse.
"""

import contextlib
import dataclasses
import functools as ft
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp

import lox
from support import truth
from support.truth import Record, as_tuple, concrete


@dataclasses.dataclass
class Level:
    """One `grad` that is being run: its calls of `log_grad`, and what they are given."""

    calls: list[Record] = dataclasses.field(default_factory=list)
    zeros: Iterator[Any] | None = None


class Perturbed:
    """Stands in for `log_grad`, for `grad`, and for custom rules, which cut cotangents."""

    def __init__(self, recorder: truth.Recorder):
        self.recorder = recorder
        self.records: list[Record] = []
        self.levels: list[Level] = []
        self.differentiate = jax.value_and_grad

    def log_grad(self, value, key, /, *, tags=(), reduce=None, **steps):
        for level in () if self.recorder.muted else self.levels:
            lanes = tuple(lane for lane, _ in self.recorder.lanes)
            sizes = tuple(size for _, size in self.recorder.lanes)
            call = Record({key: value}, steps, as_tuple(tags), lanes, sizes, {})
            level.calls.append(call)
            if level.zeros is not None:
                value = jax.tree.map(jnp.add, value, next(level.zeros))
        return value

    def value_and_grad(self, fun: Callable, **options: Any) -> Callable:
        def run(x, *others):
            level, start = Level(), len(self.records)
            with self.listening([level]):
                fun(x, *others)
            del self.records[start:]
            zeros = [jax.tree.map(jnp.zeros_like, call.data) for call in level.calls]

            def perturbed(zeros, x):
                level.calls, level.zeros = [], (next(iter(z.values())) for z in zeros)
                with self.listening([*self.levels, level]):
                    return fun(x, *others)

            differentiated = self.differentiate(perturbed, argnums=(0, 1), **options)
            value, (cotangents, slope) = differentiated(zeros, x)
            for call, cotangent in zip(level.calls[::-1], cotangents[::-1], strict=True):
                data, steps = jax.tree.map(concrete, (cotangent, call.steps))
                self.records.append(dataclasses.replace(call, data=data, steps=steps))
            return value, slope

        return run

    def grad(self, fun: Callable) -> Callable:
        return lambda *args: self.value_and_grad(fun)(*args)[1]

    def custom(self, original: Callable, define: str) -> Callable:
        """A function with a rule of its own: no cotangent reaches what is in there."""

        def make(fun, **options):
            made = original(self.cut(fun), **options)
            defined = getattr(made, define)
            setattr(made, define, lambda *rules, **o: defined(*map(self.cut, rules), **o))
            return made

        return make

    def cut(self, fun: Callable) -> Callable:
        @ft.wraps(fun)
        def cut(*args):
            with self.listening([]):
                return fun(*args)

        return cut

    @contextlib.contextmanager
    def listening(self, levels: list[Level]) -> Iterator[None]:
        before, self.levels = self.levels, levels
        try:
            yield
        finally:
            self.levels = before


def run(fun: Callable, *args: Any) -> tuple[Any, list[Record]]:
    """The result of `fun`, and the cotangents that the gradients in it log."""
    records: list[Record] = []

    def perturbed(*args):
        stand_ins = Perturbed(lox.log.__self__)  # of the eager run around
        with contextlib.ExitStack() as stack:
            for target, name, stand_in in (
                (lox, "log_grad", stand_ins.log_grad),
                (jax, "grad", stand_ins.grad),
                (jax, "value_and_grad", stand_ins.value_and_grad),
                (jax, "custom_jvp", stand_ins.custom(jax.custom_jvp, "defjvp")),
                (jax, "custom_vjp", stand_ins.custom(jax.custom_vjp, "defvjp")),
            ):
                stack.enter_context(mock.patch.object(target, name, stand_in))
            out = fun(*args)
        records.extend(stand_ins.records)
        return out

    return truth.run(perturbed, *args)[0], records
