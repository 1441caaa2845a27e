"""Find the records that JAX would move out of a `scan` that is being differentiated.

JAX takes what is the same in all iterations out of the loop and runs it once. It decides by
dependencies: what depends on the carry or on `xs` changes from iteration to iteration and
stays in the loop. Everything else leaves it, records included.

    scan { c ; k x.         k is a constant of the loop, c the carry
      y = mul c x           changes
      z = sin k             leaves
      lox_log[y] y          changes, so it stays
      lox_log[z] z          leaves, and would be logged only once: a loose record
    }

Calls, branches and loops inside are split in the same way, so the analysis follows the
changes into them. A carry may start to change only after some iterations, so the analysis
of a loop is repeated until nothing new changes (a fixed point):

    scan { a b ; x.         carry (a, b)
      c = add a x           1st pass: c changes, and with it the carry a
      in (c, a) }           2nd pass: b, which is the old a, changes too

Where it is not certain that JAX leaves a record in the loop, the record counts as loose: an
anchor that is not needed changes no log.
"""

from collections.abc import Sequence

from lox._core.record import holds_records
from lox._core.staging import split
from lox._jax import equations
from lox._jax.extend import Jaxpr, JaxprEqn, Literal
from lox._jax.types import Atom, Program

# For each of some values, whether it changes from iteration to iteration.
Changes = tuple[bool, ...]


def has_loose_records(jaxpr: Jaxpr, num_consts: int) -> bool:
    """Return whether a record in the body of a `scan` may be moved out of it."""
    changes = tuple(i >= num_consts for i in range(len(jaxpr.invars)))
    return _Analysis().through(jaxpr, changes)[1]


class _Analysis:
    """Follow changes through a program. Loops ask again, so answers are remembered."""

    def __init__(self):
        self._answers: dict[tuple[Jaxpr, Changes], tuple[Changes, bool]] = {}

    def through(self, jaxpr: Program, changes: Sequence[bool]) -> tuple[Changes, bool]:
        """Return which outputs change, given the inputs, and whether a record is loose."""
        # The constants of a closed program never change.
        program, given = getattr(jaxpr, "jaxpr", jaxpr), tuple(changes)
        if (program, given) not in self._answers:
            self._answers[program, given] = self._evaluate(program, given)
        return self._answers[program, given]

    def _evaluate(self, jaxpr: Jaxpr, given: Changes) -> tuple[Changes, bool]:
        changing = {v for v, changes in zip(jaxpr.invars, given, strict=True) if changes}

        def change(atoms: Sequence[Atom]) -> Changes:
            return tuple(not isinstance(x, Literal) and x in changing for x in atoms)

        loose = False
        for eqn in jaxpr.eqns:
            outs, is_loose = self._equation(eqn, change(eqn.invars))
            changing.update(
                v for v, changes in zip(eqn.outvars, outs, strict=True) if changes
            )
            loose = loose or is_loose
        return change(jaxpr.outvars), loose

    def _equation(self, eqn: JaxprEqn, given: Changes) -> tuple[Changes, bool]:
        name = equations.primitive_name(eqn)
        programs = list(equations.jaxprs_in(eqn.params))
        sizes = len(eqn.invars), len(eqn.outvars)
        everything = (True,) * sizes[1]
        if not any(given):
            return (False,) * sizes[1], holds_records(eqn)
        if name == "scan":
            return self._scan(eqn, given)
        if name == "while":
            return self._while(eqn, given)
        if name == "cond":
            if given[0]:  # an index that changes keeps the whole `cond` in the loop
                return everything, False
            outs, loose = zip(*(self.through(p, given[1:]) for p in programs), strict=True)
            return tuple(map(any, zip(*outs, strict=True))), any(loose)
        # One program with the inputs and outputs of the equation: a call of any kind.
        if [(len(p.invars), len(p.outvars)) for p in programs] == [sizes]:
            return self.through(programs[0], given)
        return everything, bool(programs) and holds_records(eqn)

    def _scan(self, eqn: JaxprEqn, given: Changes) -> tuple[Changes, bool]:
        consts, carry, xs = split(given, *equations.scan_sizes(eqn.params))
        while True:
            outs, loose = self.through(eqn.params["jaxpr"], (*consts, *carry, *xs))
            after, _ = split(outs, len(carry))
            if not _add(carry, after):
                return outs, loose

    def _while(self, eqn: JaxprEqn, given: Changes) -> tuple[Changes, bool]:
        sizes = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
        cond_consts, body_consts, carry = split(given, *sizes)
        while True:
            (running,), _ = self.through(eqn.params["cond_jaxpr"], (*cond_consts, *carry))
            if running:  # a predicate that changes keeps the whole loop
                return (True,) * len(carry), False
            after, _ = self.through(eqn.params["body_jaxpr"], (*body_consts, *carry))
            if not _add(carry, list(after)):
                # JAX runs such a loop twice: once outside, once for what stays.
                return after, holds_records(eqn)


def _add(carry: list[bool], after: list[bool]) -> bool:
    """Mark the carry as changing where it changes in an iteration. Return if it's new."""
    both = [x or y for x, y in zip(carry, after, strict=True)]
    is_new, carry[:] = both != carry, both
    return is_new
