"""The table of rules: how logs leave each higher-order primitive.

A program holds other programs: the body of a `scan`, the branches of a `cond`. Their logs
have to come out. How depends on the primitive. Its rule says so once, for all
transformations:

    rule(interpreter, eqn, *args) -> (outs, logs)

`interpreter(jaxpr, *args)` evaluates an inner program and returns its outputs and its logs.
The rule does so inside the primitive, and brings the logs out along with the outputs. For
example, a call has one program and runs it once:

    @rule_for("closed_call")
    def _call(interpreter, eqn, *args):
        return interpreter(eqn.params["call_jaxpr"], *args)

Three things keep the rules short and lasting:

- A rule never asks which transformation it serves. The handler knows.
- It uses the public function behind the primitive, or binds the primitive with all of its
  parameters except the programs unchanged, because parameters change between JAX releases.
- The interpreter holds a handler, which may hold arrays. A function that is staged takes
  the interpreter as an argument, or these arrays would be constants of the wrong trace.

A primitive that holds a record but has no rule is an error, so no record is lost.
"""

from collections.abc import Callable

from lox._jax import equations
from lox._jax.extend import JaxprEqn
from lox._rows.collected import Collected

Rule = Callable[..., tuple[list, Collected]]

rules: dict[str, Rule] = {}


def rule_for(*names: str) -> Callable[[Rule], Rule]:
    """Register a rule under the names that JAX has, or had, for a primitive."""

    def register(rule: Rule) -> Rule:
        rules.update(dict.fromkeys(names, rule))
        return rule

    return register


def rule_of(eqn: JaxprEqn) -> Rule | None:
    """Return the rule of an equation. None: there is none.

    A primitive of hijax may have a rule of its own. Otherwise it has the one for all.
    """
    return rules.get(equations.primitive_name(eqn)) or rules.get(eqn.primitive.name)
