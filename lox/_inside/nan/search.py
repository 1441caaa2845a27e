"""The search behind `find_nan`: three runs of a program, each closer to the NaN.

A program runs up to three times, with three handlers (see `look_at_values.py`):

    1. FindRegion      the whole program, nearly at full speed: in which iteration of which
                       loop does a NaN appear first?
    2. LookAtRegion    in that iteration, which equation makes it?
    3. KeepValues      what are the inputs and outputs of that equation?

Most programs have no NaN, and end after the first run. Its short cut (see
`program_map.py`) is not exact if arguments or constants hold NaNs from the start, and it
knows nothing about infinities. In these cases, every equation is looked at: does its output
hold a NaN that none of its inputs holds?
"""

import dataclasses
import functools as ft
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from lox._core.interpreter import Interpreter
from lox._inside.nan.example_axes import example_axes
from lox._inside.nan.find_equation import EqnPlace, Flags
from lox._inside.nan.find_region import Births, FindRegion
from lox._inside.nan.infinity_origin import OriginSearch
from lox._inside.nan.look_at_iteration import KeepValues, LookAtRegion
from lox._inside.nan.look_at_values import INFINITE, NAN, LookAtValues, Moment, State, flag
from lox._inside.nan.program_map import EqnPath, ProgramMap, is_float
from lox._inside.nan.report import Index, Loop, NanReport, find_culprit, is_inexact
from lox._inside.nan.source_lines import is_library, lines_of, phase_of, scope_of
from lox._jax import equations, sharding, tracing
from lox._jax.extend import ClosedJaxpr, JaxprEqn, Literal
from lox._jax.types import Atom

# Takes the arguments of a program. Returns the flags of its outputs, and the final state.
RunProgram = Callable[..., tuple[int, State]]


class _Values(NamedTuple):
    """The inputs and outputs of an equation, and where each output counts."""

    inputs: list
    outputs: list
    masks: list


class Searched:
    """A program to search, with its compiled runs.

    Attributes:
        jaxpr: The program.
        program_map: Where equations are.
    """

    def __init__(self, jaxpr: ClosedJaxpr):
        self.jaxpr = jaxpr
        self.program_map = ProgramMap(jaxpr)
        self._known_runs: dict[tuple[Births | None, bool, bool], RunProgram] = {}

    def find_region(
        self, births: Births | None, *, is_first: bool, masked: bool = True
    ) -> RunProgram:
        """Return a run that finds the region of a NaN. It is compiled once."""
        key = births, is_first, masked
        if key not in self._known_runs:
            handler = FindRegion.of(
                self.program_map, births, is_first=is_first, masked=masked
            )
            self._known_runs[key] = self.run(handler)
        return self._known_runs[key]

    def run(self, handler: LookAtValues) -> RunProgram:
        """Return a function that runs the program with a handler.

        It returns the flags of the outputs, and what the handler has seen.
        """

        @jax.jit  # One program, in which nothing is donated: the arguments are used again.
        def evaluate(*args: ArrayLike) -> tuple[list, State]:
            outs, logs = Interpreter(handler)(self.jaxpr, *args)
            flags = [flag(x) for x in outs if is_float(x) and x.size]
            seen = logs.threaded.seen
            return flags, handler.state if seen is None else seen[0]

        def run(*args: ArrayLike) -> tuple[int, State]:
            flags, state = evaluate(*args)
            return ft.reduce(lambda x, y: x | int(y), flags, 0), state

        return run


class Search:
    """A search for the first NaN of a program with some arguments.

    Attributes:
        program: The program.
        args: Its arguments.
        names: Their names.
        births: Which NaNs and infinities count.
        is_first: Whether the program has not run yet: its first run logs.
        masked: Whether values count only for the examples that take the branch around.
        program_map: Where equations are.
    """

    def __init__(
        self,
        program: Searched,
        args: list,
        names: list[str],
        births: Births,
        *,
        is_first: bool = True,
        masked: bool = True,
    ):
        self.program, self.args, self.names, self.births = program, args, names, births
        self.is_first, self.masked = is_first, masked
        self.program_map = program.program_map

    def run(self) -> NanReport | None:
        """Find the first NaN: the quick way, or the slow way if that is not exact."""
        outs, quick = 0, None
        if self.births == Births():
            outs, quick = self._find_region(None)
            if quick is None and not outs & NAN:
                return self._find_infinity() if outs & INFINITE else None
            report = self._report_of(quick) if quick else None
            if report is not None:
                return report if outs & NAN else _dropped(report)
        # The slow way: ask each equation whether a NaN appears in it.
        outs, moment = self._find_region(self.births)
        report = self._report_of(moment) if moment else None
        is_bad = quick or moment or outs & self.births.bad
        if report is None and self.masked and self.program_map.has_masks:
            # What an example computes in a branch that it does not take counts only if it
            # reaches the outputs, as through the derivative of the select.
            if outs & self.births.bad:
                return self._again(self.births, masked=False)
            return self._bad_argument() if is_bad and not self.births.ignored else None
        if report is None and is_bad and not self.births.ignored:
            return self._from_the_start(quick or moment)
        return report if report is None or outs & self.births.bad else _dropped(report)

    def _find_infinity(self) -> NanReport | None:
        """Find the infinity that `fun` returns, if there is no NaN."""
        return self._again(Births(infinities=True), masked=self.masked)

    def _again(self, births: Births, *, masked: bool) -> NanReport | None:
        known = self.program, self.args, self.names
        return Search(*known, births, is_first=False, masked=masked).run()

    # The three runs of the program.

    def _find_region(self, births: Births | None) -> tuple[int, Moment | None]:
        """Return the flags of the outputs, and the moment when a NaN appeared first."""
        run = self.program.find_region(births, is_first=self.is_first, masked=self.masked)
        self.is_first = False
        outs, (_, found, _) = run(*self.args)
        number, device, *iterations = (int(x) for x in found)
        if number < 0:
            return outs, None
        region = self.program_map.region(number)
        depth = len(self.program_map.loops(region))
        # Numbers behind those of its loops are filled up with -1.
        on_device = None if device < 0 else device
        return outs, Moment(region, tuple(iterations[:depth]), on_device)

    def _look_at(self, moment: Moment) -> Flags:
        """Return which values hold NaNs or infinities, at one moment."""
        handler = LookAtRegion.of(self.program_map, moment, masked=self.masked)
        _, flags = self.program.run(handler)(*self.args)
        return Flags(self.program_map, moment, handler.slots, np.asarray(flags))

    def _values(self, moment: Moment, wanted: Sequence[EqnPlace]) -> list["_Values"]:
        """Return the inputs and outputs of equations, at one moment."""
        handler = KeepValues.of(self.program_map, moment, wanted, masked=self.masked)
        _, kept = self.program.run(handler)(*self.args)
        values = []
        for (_, number), (kept_of_eqn, counts) in zip(wanted, kept, strict=True):
            eqn = self.program_map.eqn(number)
            atoms = *eqn.invars, *eqn.outvars
            pairs = zip(atoms, kept_of_eqn, strict=True)
            arrays = [_array(atom, x) for atom, x in pairs]
            masks = [None if mask is None else np.asarray(mask) for mask in counts]
            inputs = len(eqn.invars)
            values.append(_Values(arrays[:inputs], arrays[inputs:], masks))
        return values

    # The report.

    def _report_of(self, moment: Moment) -> NanReport | None:
        """Return the report of the first NaN that appears at a moment. None: none does."""
        flags = self._look_at(moment)
        place = flags.first_birth(self.births)
        if place is None:
            return None
        origin = None
        if not self.births.infinities:
            origin = OriginSearch(self.program_map, self._look_at).run(flags, place)
        if origin is None:
            (values,) = self._values(moment, [place])
            return self._report(moment, place, values, infinities=self.births.infinities)
        (first,), (later,) = self._values_of([origin, (moment, place)])
        became = self._report(moment, place, later, infinities=False)
        cause = self._report(*origin, first, infinities=True)
        return dataclasses.replace(cause, became=became)

    def _values_of(self, wanted: Sequence[tuple[Moment, EqnPlace]]) -> list[list]:
        """Return the inputs and outputs of equations, in as few runs as possible."""
        (first, place), (second, other) = wanted
        if first == second:
            values = self._values(first, [place, other])
            return [[value] for value in values]
        return [self._values(first, [place]), self._values(second, [other])]

    def _report(
        self, moment: Moment, place: EqnPlace, values: "_Values", *, infinities: bool
    ) -> NanReport:
        path, number = place
        eqn, (inputs, outputs, masks) = self.program_map.eqn(number), values
        index, culprit = find_culprit(eqn, inputs, outputs, masks, infinities=infinities)
        lines = lines_of(self.program_map, path, eqn)
        # The innermost line may be of a library. Then say which line of the user led there.
        users_line = next((line for line in lines if not is_library(line)), None)
        return NanReport(
            operation=equations.primitive_name(eqn),
            culprit=culprit,
            index=index,
            line=lines[0] if lines else None,
            called_from=users_line if lines and users_line != lines[0] else None,
            scope=scope_of(self.program_map, path, eqn),
            phase=phase_of(self.program_map, path, eqn),
            loops=self._loops(path, moment),
            example=self._example(path, eqn, outputs, index),
            device=self._device(path, moment),
            inputs=tuple(inputs),
            outputs=tuple(outputs),
            eqn=eqn,
        )

    def _loops(self, path: EqnPath, moment: Moment) -> tuple[Loop, ...]:
        loops, counts = [], iter(moment.iterations)
        for i, number in enumerate(path):
            eqn = self.program_map.eqn(number)
            if eqn in self.program_map.loops((number,)):
                # A `scan` in reverse begins with the last of `xs`; people count by `xs`.
                count = next(counts)
                if eqn.params.get("reverse"):
                    count = eqn.params["length"] - 1 - count
                lines = lines_of(self.program_map, path[:i], eqn)
                kind = equations.primitive_name(eqn)
                loops.append(Loop(kind, count, lines[0] if lines else None))
        return tuple(loops)

    def _example(
        self,
        path: EqnPath,
        eqn: JaxprEqn,
        outputs: Sequence[np.ndarray | None],
        index: Index | None,
    ) -> int | tuple[int, ...] | None:
        if index is None:
            return None
        # The output that the index belongs to is the first with such a shape.
        for var, out in zip(eqn.outvars, outputs, strict=True):
            if out is not None and np.ndim(out) == len(index):
                axes = example_axes(self.program_map, path, eqn, var)
                numbers = tuple(index[axis] for axis in axes)
                return numbers[0] if len(numbers) == 1 else numbers or None
        return None

    def _device(self, path: EqnPath, moment: Moment) -> dict[str, int] | None:
        if moment.device is None:
            return None
        around = map(self.program_map.eqn, path)
        mapped = next(eqn for eqn in around if eqn.primitive.name == "shard_map")
        axes = sharding.mapped_axes(mapped)
        position = np.unravel_index(moment.device, tuple(axes.values()))
        return {axis: int(i) for axis, i in zip(axes, position, strict=True)}

    def _bad_argument(self) -> NanReport | None:
        """Report the first argument that is not finite."""
        for name, x in zip(self.names, self.args, strict=True):
            held = int(flag(jnp.asarray(x))) if is_float(x) and np.size(x) else 0
            if held & self.births.bad:
                what = "NaN" if held & NAN else "an infinity"
                note = f"The argument {name} already contains {what} before `fun` runs."
                return NanReport("argument", (name,), inputs=(np.asarray(x),), note=note)
        return None

    def _from_the_start(self, moment: Moment | None) -> NanReport:
        """Report a NaN that does not appear in an equation: an argument or a constant."""
        argument = self._bad_argument()
        if argument is not None:
            return argument
        if moment is None:
            note = "A constant of the program is not finite to begin with."
            return NanReport("constant", note=note)
        place = self._look_at(moment).first_use()
        if place is None:
            note = (
                "It appears in this iteration, but not when lox looks at each operation: "
                "the compiler then computes them in a different way."
            )
            loops = self._loops(moment.region, moment)
            return NanReport("an unknown operation", loops=loops, note=note)
        (values,) = self._values(moment, [place])
        report = self._report(moment, place, values, infinities=False)
        note = "A constant of the program is not finite to begin with."
        return dataclasses.replace(report, note=note)


def _dropped(report: NanReport) -> NanReport:
    """Return the report of something that the program does not return."""
    line = (report.became or report).line
    what = "infinity" if report.became is None and not _has_nan(report) else "NaN"
    note = f"The function does not return this {what}. If it is harmless, ignore it"
    note += f': `lox.find_nan(f, ignore="{line}")`.' if line else " with `ignore`."
    return dataclasses.replace(report, note=note)


def _has_nan(report: NanReport) -> bool:
    floats = [x for x in report.outputs if x is not None and is_inexact(x)]
    return any(np.isnan(x).any() for x in floats)


def _array(atom: Atom, x: ArrayLike | None) -> np.ndarray | None:
    """Return an input or output of an equation as a NumPy array, if it is one."""
    if isinstance(atom, Literal):
        return np.asarray(tracing.literal_value(atom))
    return None if x is None else np.asarray(x)
