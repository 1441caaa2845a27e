"""Find the records that JAX would move out of a `scan` that is being differentiated.

JAX takes what is the same in all iterations out of the loop, and runs it once. It goes by
the dependencies: what depends on the carry or on `xs` changes from iteration to iteration
and stays, all else goes, records included.

    scan { c ; k x.         k is a constant of the loop, c the carry
      y = mul c x           changes
      z = sin k             goes
      lox_log[y] y          changes, so it stays
      lox_log[z] z          goes, and would be logged once: a loose record
    }

Calls, branches and loops inside are split in the same way, so the question is passed on
into them. Where it is not certain that JAX leaves a record in the loop, it is called loose.
"""

from collections.abc import Sequence
from typing import Any

from jax.extend.core import Jaxpr, JaxprEqn, Literal

from lox._core.record import holds_records
from lox._core.staging import split
from lox._jax import equations

# Which of some values change from iteration to iteration.
Changes = tuple[bool, ...]


def has_loose_records(jaxpr: Jaxpr, num_consts: int) -> bool:
    """Return whether a record in the body of a `scan` may be moved out of it."""
    changes = tuple(i >= num_consts for i in range(len(jaxpr.invars)))
    return _Analysis().through(jaxpr, changes)[1]


class _Analysis:
    """Follows changes through a program. Answers are kept: loops are gone through twice."""

    def __init__(self):
        self._answers: dict[tuple[Jaxpr, Changes], tuple[Changes, bool]] = {}

    def through(self, jaxpr: Any, changes: Sequence[bool]) -> tuple[Changes, bool]:
        """Return which outputs change, given the inputs, and whether a record is loose."""
        # Its constants, if it has any, never change.
        program, given = getattr(jaxpr, "jaxpr", jaxpr), tuple(changes)
        if (program, given) not in self._answers:
            self._answers[program, given] = self._evaluate(program, given)
        return self._answers[program, given]

    def _evaluate(self, jaxpr: Jaxpr, given: Changes) -> tuple[Changes, bool]:
        changing = {v for v, changes in zip(jaxpr.invars, given, strict=True) if changes}

        def change(atoms: Sequence[Any]) -> Changes:
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
            if given[0]:  # the branch that is taken, with all that it does
                return everything, False
            outs, loose = zip(*(self.through(p, given[1:]) for p in programs), strict=True)
            return tuple(map(any, zip(*outs, strict=True))), any(loose)
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
            if running:
                return (True,) * len(carry), False
            after, _ = self.through(eqn.params["body_jaxpr"], (*body_consts, *carry))
            if not _add(carry, list(after)):
                # JAX runs such a loop once for what goes, and once for what stays.
                return after, holds_records(eqn)


def _add(carry: list[bool], after: list[bool]) -> bool:
    """Let the carry change where it does so after an iteration. Return if that is new."""
    both = [x or y for x, y in zip(carry, after, strict=True)]
    is_new, carry[:] = both != carry, both
    return is_new
