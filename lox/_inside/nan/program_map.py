"""Map a program: the places of its equations, and the values that reveal a NaN.

A program is a tree: equations hold programs. An equation gets a number, and its place is
the path of the numbers of the equations around it. A loop body is a *region*, and so are
the whole program and the body of a `shard_map`. Calls and branches belong to the region
around them.

    { lambda ; x. let                         region ()
        y = log x                0            place () 0
        z = jit[{ ... }] y       1            place (1,) ..., still region ()
        w = scan[{ ... }] z      2            region (2,), once per iteration
      in (w,) }

Looking at all values of a region for a NaN would be slow. But most operations turn a NaN
into a NaN. So it is enough to look at values that no such operation reads:

    y = log x           read by `add`: a NaN in y is a NaN in z
    z = add y 1.0       read by `select_n` only, which may drop it: look
    w = select_n p z x  leaves the region: look

An inner loop is another region, and a NaN must be noticed before it gets there. So a value
also needs a look if a loop comes between it and the operation that reads it.
"""

from collections.abc import Iterator, Sequence

import jax
import jax.numpy as jnp

from lox._core.record import holds_records
from lox._core.rules.registry import rules
from lox._core.staging import carry_predicate
from lox._inside.nan.counted_examples import Masks, counts_alike, find_masks
from lox._jax import equations, tracing
from lox._jax.example_marks import EXAMPLE, TAKEN
from lox._jax.extend import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var
from lox._jax.types import AnyArray, Atom

# The numbers of the equations around a program, the outermost first.
EqnPath = tuple[int, ...]

LOOPS = "scan", "while"
REGIONS = (*LOOPS, "shard_map")
# Equations that run one program, once, with their own inputs and outputs.
CALLS = (
    "jit",
    "pjit",
    "closed_call",
    "core_closed_call",
    "core_call",
    "call",
    "checkpoint",
    "remat",
    "remat2",
    "custom_jvp_call",
    "custom_vjp_call",
    "custom_vjp_call_jaxpr",
)

# The rules of these make a new program each time, whose equations are not in the map.
_CLOSED = "xla_pmap", "CustomRoot", "_RootLinearMap"

# Operations that compute each element of the output from the same element of the inputs.
_ELEMENTWISE_AND_KEEPING = """
    abs acos acosh add add_any asin asinh atan atanh cbrt ceil conj convert_element_type
    copy copy_p cos cosh digamma div erf erf_inv erfc exp exp2 expm1 floor integer_pow
    lgamma log log1p logistic max min mul name neg one_minus_square reduce_precision rem
    round rsqrt sign sin sinh sqrt square sub tan tanh
"""
_ELEMENTWISE = "atan2 clamp complex imag is_finite nextafter not pow real select_n"
# Operations whose output holds a NaN if any input does. (`clamp` and `pow` need not.)
_KEEPING = """
    all_gather broadcast_in_dim concatenate cumprod cumsum dot_general expand_dims pcast
    psum psum2 psum_invariant pvary reduce_max reduce_min reduce_prod reduce_sum reshape rev
    sharding_constraint squeeze transpose
"""
# Operations whose output holds a NaN only if an input does.
_COPYING = """
    broadcast_in_dim concatenate convert_element_type copy copy_p expand_dims name reshape
    rev select_n slice squeeze transpose
"""
_BOTH = frozenset(_ELEMENTWISE_AND_KEEPING.split()) | {EXAMPLE, TAKEN}
ELEMENTWISE = _BOTH | frozenset(_ELEMENTWISE.split())
KEEPING = _BOTH | frozenset(_KEEPING.split())
COPYING = frozenset(_COPYING.split())


def is_float(atom: Atom | AnyArray) -> bool:
    """Return whether a variable, literal or array holds numbers that may be NaN."""
    dtype = getattr(getattr(atom, "aval", atom), "dtype", None)
    return dtype is not None and jax.dtypes.issubdtype(dtype, jnp.inexact)


class ProgramMap:
    """The numbered equations of a program, and what is known about each program in it.

    Attributes:
        depth: The largest number of nested loops.
        number_of_atoms: How many inputs and outputs all equations have together.
        has_devices: Whether there is a `shard_map`.
        has_masks: Whether there are values that do not count for all examples.
    """

    def __init__(self, jaxpr: ClosedJaxpr):
        self.number_of_atoms = 0
        self.has_devices = False
        self.has_masks = False
        # By the id of an equation or a program: JAX hashes neither by its content.
        self._numbers: dict[int, int] = {}
        self._eqns: list[JaxprEqn] = []
        self._programs: list[Jaxpr] = []
        self._regions: list[EqnPath] = []
        self._numbered: dict[int, Jaxpr] = {}
        self._known_stops: dict[int, list[int]] = {}
        self._depths: dict[int, int] = {}
        self._computes: dict[int, bool] = {}
        self._checked: dict[tuple[int, bool], frozenset[Var]] = {}
        self._predicates: set[int] = set()
        self._masks: dict[int, Masks] = {}
        self.add(jaxpr.jaxpr)
        self.depth = self._depth(jaxpr.jaxpr)

    def add(self, program: Jaxpr) -> None:
        """Number the equations of a program, and of all programs in it."""
        if id(program) in self._numbered:
            return
        self._numbered[id(program)] = program  # keep it alive, so its id stays unique
        for eqn in program.eqns:
            self._numbers[id(eqn)] = len(self._eqns)
            self._eqns.append(eqn)
            self._programs.append(program)
            self.number_of_atoms += len(eqn.invars) + len(eqn.outvars)
            name = equations.primitive_name(eqn)
            self.has_masks |= name == TAKEN
            self.has_devices |= name in ("shard_map", "xla_pmap")
            for inner in equations.jaxprs_in(eqn.params):
                self.add(inner)
            if name == "while":
                predicate = eqn.params["cond_jaxpr"].jaxpr
                self._predicates.add(id(predicate))
                # If the handler has to look into a predicate, the rule of `while` moves the
                # predicate into the body.
                if self.computes(predicate):
                    with tracing.context_of(eqn):  # as around the rule: it is cached by it
                        self.add(carry_predicate(eqn.params)["body_jaxpr"].jaxpr)

    def number(self, eqn: JaxprEqn) -> int:
        return self._numbers[id(eqn)]

    def eqn(self, number: int) -> JaxprEqn:
        return self._eqns[number]

    def program(self, number: int) -> Jaxpr:
        """Return the program that an equation is in."""
        return self._programs[number]

    def is_predicate(self, program: Jaxpr) -> bool:
        """Return whether a program is the predicate of a `while`."""
        return id(program) in self._predicates

    def loops(self, path: EqnPath) -> list[JaxprEqn]:
        """Return the loops on a path, the outermost first."""
        around = map(self.eqn, path)
        return [eqn for eqn in around if equations.primitive_name(eqn) in LOOPS]

    def region_of(self, path: EqnPath) -> EqnPath:
        """Return the region that a program belongs to."""
        while path and equations.primitive_name(self.eqn(path[-1])) not in REGIONS:
            path = path[:-1]
        return path

    def region_number(self, region: EqnPath) -> int:
        """Return a number for a region."""
        if region not in self._regions:
            self._regions.append(region)
        return self._regions.index(region)

    def region(self, number: int) -> EqnPath:
        return self._regions[number]

    def enters(self, eqn: JaxprEqn) -> bool:
        """Return whether the values inside an equation are looked at."""
        name = equations.primitive_name(eqn)
        programs = list(equations.jaxprs_in(eqn.params))
        if name not in rules or name in _CLOSED:
            return False
        return any(map(self.computes, programs))

    def is_closed(self, eqn: JaxprEqn) -> bool:
        """Return whether an equation calls one of JAX's own functions.

        Many of these compute NaNs and infinities that they drop themselves, such as
        `jax.scipy.special.xlogy`. Only what they return counts. Functions with loops may
        call functions of the user, so they are open.
        """
        if equations.primitive_name(eqn) not in CALLS:
            return False
        programs = list(equations.jaxprs_in(eqn.params))
        is_own = all(map(equations.is_of_jax, programs))
        return is_own and not self._holds_region(eqn) and not holds_records(eqn)

    def computes(self, program: Jaxpr) -> bool:
        """Return whether a program computes with floats, or holds records."""
        if id(program) not in self._computes:
            self._computes[id(program)] = holds_records(program) or any(
                any(map(is_float, eqn.outvars)) or self.enters(eqn) for eqn in program.eqns
            )
        return self._computes[id(program)]

    def masks(self, program: Jaxpr) -> Masks:
        """Return which values of a program do not count for all examples."""
        if id(program) not in self._masks:
            self._masks[id(program)] = find_masks(program)
        return self._masks[id(program)]

    def checked(self, program: Jaxpr, *, is_region: bool) -> frozenset[Var]:
        """Return the variables that reveal whether any value of a program is NaN."""
        key = id(program), is_region
        if key not in self._checked:
            self._checked[key] = frozenset(self._find_checked(program, is_region))
        return self._checked[key]

    def _find_checked(self, program: Jaxpr, is_region: bool) -> Iterator[Var]:
        # A NaN in a constant did not appear here, see `Search._from_the_start`.
        reads, stops, constants = _reads(program), self._stops(program), _constants(program)
        outs = {atom for atom in program.outvars if not isinstance(atom, Literal)}
        masks = self.masks(program)
        for i, eqn in enumerate(program.eqns):
            for var in eqn.outvars:
                if equations.is_dropped(var) or not is_float(var) or var in constants:
                    continue
                own = [
                    each for each in reads.get(var, ()) if counts_alike(masks, var, each[1])
                ]
                if self._is_kept(own, stops, i):
                    continue
                # The program around a call looks at its outputs, unless a loop comes first.
                if var in outs and not is_region and not _any_between(stops, i):
                    continue
                yield var

    def _is_kept(
        self, reads: Sequence[tuple[int, JaxprEqn, int]], stops: Sequence[int], i: int
    ) -> bool:
        """Return whether a NaN in a value defined at `i` shows in another value, too.

        The other value must be computed before the next loop, at one of the `stops`.
        """
        for reader, eqn, position in reads:
            if _any_between(stops, i, reader):
                return False
            name = equations.primitive_name(eqn)
            if name in KEEPING and any(map(is_float, eqn.outvars)):
                return True
            if name in CALLS and self._is_kept_inside(eqn, position):
                return True
        return False

    def _is_kept_inside(self, call: JaxprEqn, position: int) -> bool:
        programs = list(equations.jaxprs_in(call.params))
        is_plain = len(programs) == 1 and len(programs[0].invars) == len(call.invars)
        if not is_plain or self.is_closed(call):
            return False
        (program,) = programs
        var, masks = program.invars[position], self.masks(program)
        reads = [r for r in _reads(program).get(var, ()) if counts_alike(masks, var, r[1])]
        return self._is_kept(reads, self._stops(program), -1)

    def _stops(self, program: Jaxpr) -> list[int]:
        """Return the positions of the equations that hold another region."""
        if id(program) not in self._known_stops:
            self._known_stops[id(program)] = [
                i for i, eqn in enumerate(program.eqns) if self._holds_region(eqn)
            ]
        return self._known_stops[id(program)]

    def _holds_region(self, eqn: JaxprEqn) -> bool:
        if equations.primitive_name(eqn) in (*REGIONS, "xla_pmap"):
            return True
        programs = equations.jaxprs_in(eqn.params)
        return any(self._stops(program) for program in programs)

    def _depth(self, program: Jaxpr) -> int:
        if id(program) not in self._depths:
            self._depths[id(program)] = max(map(self._depth_of, program.eqns), default=0)
        return self._depths[id(program)]

    def _depth_of(self, eqn: JaxprEqn) -> int:
        inner = max(map(self._depth, equations.jaxprs_in(eqn.params)), default=0)
        return inner + (equations.primitive_name(eqn) in LOOPS)


def _reads(program: Jaxpr) -> dict[Var, list[tuple[int, JaxprEqn, int]]]:
    """Return the equations that read each variable, with both positions.

    These are the position of the equation in the program, and of the variable in its
    inputs.
    """
    reads: dict[Var, list[tuple[int, JaxprEqn, int]]] = {}
    for i, eqn in enumerate(program.eqns):
        for position, atom in enumerate(eqn.invars):
            if not isinstance(atom, Literal):
                reads.setdefault(atom, []).append((i, eqn, position))
    return reads


def _constants(program: Jaxpr) -> set[Var]:
    """Return the variables that are constants of a program, or copies of them."""
    constants = set(program.constvars)
    for eqn in program.eqns:
        if _copies(eqn) and all(
            isinstance(x, Literal) or x in constants for x in eqn.invars
        ):
            constants.update(eqn.outvars)
    return constants


def _copies(eqn: JaxprEqn) -> bool:
    """Return whether an equation only copies its inputs, such as a call of `jnp.where`."""
    if equations.primitive_name(eqn) not in CALLS:
        return equations.primitive_name(eqn) in COPYING
    programs = equations.jaxprs_in(eqn.params)
    return all(_copies(inner) for program in programs for inner in program.eqns)


def _any_between(stops: Sequence[int], start: int, end: float = float("inf")) -> bool:
    return any(start < stop < end for stop in stops)
