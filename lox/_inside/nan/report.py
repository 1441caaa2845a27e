"""`NanReport`: describe the first NaN of a program."""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any, SupportsInt

import numpy as np
from jax.typing import ArrayLike

from lox._inside.nan.program_map import ELEMENTWISE
from lox._inside.nan.source_lines import Line
from lox._jax import equations, tracing
from lox._jax.extend import JaxprEqn

Index = tuple[int, ...]
# An input or output of an equation. None: it is no array, such as a PRNG key.
Array = np.ndarray | None


@dataclasses.dataclass(frozen=True)
class Loop:
    """An iteration of a loop.

    Attributes:
        kind: `scan` or `while`. A `fori_loop` is one of these.
        iteration: Which iteration. The first is 0, and is the one with `xs[0]`, even if a
            `scan` runs in reverse, as in the backward pass.
        line: The line that makes the loop, if it is known.
    """

    kind: str
    iteration: int
    line: Line | None

    def __str__(self) -> str:
        where = f" ({self.line})" if self.line else ""
        return f"{self.kind} iteration {self.iteration}{where}"


@dataclasses.dataclass(frozen=True)
class NanReport:
    """Where the first NaN of a program appeared. Print it to read it.

    Attributes:
        operation: The name of the operation, such as `log`. `argument` or `constant` if
            the value was there from the start.
        culprit: The values of its inputs that made the NaN, such as `(0.0,)`. Empty if no
            single values did.
        index: The index of the NaN in the output.
        line: The line of your code, with `file`, `number`, `function` and `source`.
        called_from: If that line is in a library, the line of your code that led there.
        scope: The name scopes around it (`jax.named_scope`), such as `block2/attention`.
        phase: `forward pass`, `backward pass` or `recomputed for the backward pass`. None:
            it is not in a derivative.
        loops: The iterations of the loops around it, the outermost first.
        example: The example of the `vmap` around it; a tuple for nested ones, the outermost
            first. None: there is no `vmap`.
        device: The position of the device in the mesh of a `shard_map`. None: there is
            none.
        inputs: The inputs of the equation, as NumPy arrays.
        outputs: Its outputs.
        became: If an infinity appeared first and became a NaN later: the report of the
            NaN. None: this is the NaN.
        note: A further remark.
    """

    operation: str
    culprit: tuple[object, ...] = ()
    index: Index | None = None
    line: Line | None = None
    called_from: Line | None = None
    scope: str = ""
    phase: str | None = None
    loops: tuple[Loop, ...] = ()
    example: int | Index | None = None
    device: dict[str, int] | None = None
    inputs: tuple[Any, ...] = ()
    outputs: tuple[Any, ...] = ()
    became: "NanReport | None" = None
    note: str = ""
    eqn: JaxprEqn | None = dataclasses.field(default=None, repr=False, compare=False)

    @property
    def iterations(self) -> Index:
        """The iterations of the loops around it, the outermost first."""
        return tuple(loop.iteration for loop in self.loops)

    def replay(self) -> list:
        """Run the equation again with `report.inputs`, and return its outputs."""
        if self.eqn is None:
            raise ValueError(
                f"There is no equation to run again: {self._what()} was there from the "
                "start."
            )
        if any(x is None for x in self.inputs):
            raise ValueError(
                f"`{self.operation}` takes a value that is not an array, such as a PRNG "
                "key, so it cannot be run again by itself."
            )
        if equations.named_axes(self.eqn):
            raise ValueError(
                f"`{self.operation}` exchanges values between devices or examples, so it "
                "cannot be run again by itself. `report.inputs` and `report.outputs` hold "
                "what this device had."
            )
        return tracing.bind(self.eqn, *self.inputs)

    def __str__(self) -> str:
        return "\n".join(["first non-finite value: " + self._what(), *self._body()])

    def _what(self) -> str:
        return phrase(self.operation, self.culprit)

    def _body(self) -> list[str]:
        lines = [self._where(), self._when()]
        arrays = [("input", self.inputs), ("output", self.outputs)]
        for name, values in arrays:
            for i, x in enumerate(values):
                number = f" {i}" if len(values) > 1 else ""
                # Of an elementwise operation, the input at the place of the NaN made it.
                index = self.index if name == "input" and _fits(x, self) else None
                lines.append(f"{name}{number}: {describe(x, index)}")
        if self.became is not None:
            lines.append(f"it became NaN in {self.became._what()}")
            lines += ["  " + line for line in (self.became._where(), self.became._when())]
        lines.append(self.note)
        if self.eqn is not None:
            lines.append(
                "report.inputs, report.outputs hold the arrays; report.replay() runs the "
                "failing equation again"
            )
        return ["  " + line for line in lines if line.strip()]

    def _where(self) -> str:
        parts = []
        if self.line is not None:
            parts.append(f"{self.line}  {self.line.source}".strip())
        if self.called_from is not None:
            parts.append(f"called from {self.called_from}  {self.called_from.source}")
        scope = f"in {self.scope}" if self.scope else ""
        phase = f"under grad ({self.phase})" if self.phase else ""
        parts.append(", ".join(x for x in (scope, phase) if x))
        return "    ".join(x for x in parts if x)

    def _when(self) -> str:
        parts = [str(loop) for loop in self.loops]
        if self.example is not None:
            parts.append(f"example {self.example}")
        if self.device is not None:
            axes = ", ".join(f"{axis}={i}" for axis, i in self.device.items())
            parts.append(f"device {axes}")
        return ", ".join(parts)


def phrase(operation: str, culprit: Sequence[object]) -> str:
    """Return an operation and its inputs in words: `log of 0.0`, `div of 0.0 and 0.0`."""
    inputs = " and ".join(map(str, culprit))
    if operation == "argument":
        return f"argument {inputs}"
    return f"{operation} of {inputs}" if inputs else operation


def describe(x: ArrayLike | None, index: Index | None = None) -> str:
    """Return the type of an array, its range and where its worst values are."""
    if x is None:
        return "no array"
    x = np.asarray(x)
    form = f"{x.dtype}{list(x.shape)}"
    if not x.size or x.dtype.kind == "b":
        return form
    if x.dtype.kind not in "iufc" and x.dtype.name not in _SMALL_FLOATS:
        return form
    values = np.abs(x) if x.dtype.kind == "c" else x
    values = values.astype(np.float64) if x.dtype.name in _SMALL_FLOATS else values
    parts = [form]
    bad = {"NaN": np.isnan(values), "infinite": np.isinf(values)}
    for name, where in bad.items():
        if where.any():
            place = f", first at {_first(where)}" if x.ndim else ""
            parts.append(f"{int(where.sum())} of {x.size} {name}{place}")
    good = np.isfinite(values)
    if good.any():
        low, high = np.where(good, values, np.inf), np.where(good, values, -np.inf)
        for name, found, i in (("min", low, low.argmin()), ("max", high, high.argmax())):
            place = f" at {_plain(np.unravel_index(i, x.shape))}" if x.ndim else ""
            parts.append(f"{name} {found.flat[i]:.6g}{place}")
    if index is not None and x.ndim:
        parts.append(f"{x[index]} at {_plain(index)}")
    return ", ".join(parts)


_SMALL_FLOATS = ("bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3b11fnuz")


def find_culprit(
    eqn: JaxprEqn,
    inputs: Sequence[Array],
    outputs: Sequence[Array],
    masks: Sequence[np.ndarray | None],
    *,
    infinities: bool,
) -> tuple[Index | None, tuple[object, ...]]:
    """Return the index of the first bad output that counts, and the inputs that made it."""
    for out, mask in zip(outputs, masks, strict=True):
        if out is None or not is_inexact(out):
            continue
        bad = ~np.isfinite(out) if infinities else np.isnan(out)
        bad = bad if mask is None else bad & mask
        if bad.any():
            index = _first(bad)
            return index, _operands(eqn, inputs, np.shape(out), index)
    return None, ()


def _operands(
    eqn: JaxprEqn, inputs: Sequence[Array], shape: Index, index: Index
) -> tuple[object, ...]:
    """Return the input values from which one value of the output was computed."""
    name = equations.primitive_name(eqn)
    arrays = [x for x in inputs if x is not None]
    is_alike = all(np.shape(x) in (shape, ()) for x in arrays)
    if name in ELEMENTWISE and is_alike and len(arrays) == len(inputs):
        return tuple(_scalar(x[index] if np.shape(x) else x) for x in arrays)
    # For other operations, return the first infinity of each input: these make NaNs.
    found = []
    for x in inputs:
        if x is not None and is_inexact(x) and not np.isfinite(x).all():
            found.append(_scalar(x[_first(~np.isfinite(x))]))
    return tuple(found)


def is_inexact(x: np.ndarray) -> bool:
    dtype = np.asarray(x).dtype
    return dtype.kind in "fc" or dtype.name in _SMALL_FLOATS


def _fits(x: np.ndarray | None, report: NanReport) -> bool:
    if report.index is None or x is None or not report.outputs:
        return False
    name = report.operation
    return name in ELEMENTWISE and np.shape(x) == np.shape(report.outputs[0])


def _first(where: np.ndarray) -> Index:
    return _plain(np.unravel_index(np.flatnonzero(where)[0], np.shape(where)))


def _plain(index: Iterable[SupportsInt]) -> Index:
    return tuple(int(i) for i in index)


def _scalar(x: ArrayLike) -> object:
    x = np.asarray(x)
    return x.item() if x.dtype.kind in "biufc" else float(x)
