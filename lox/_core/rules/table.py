"""The table of rules: how logs leave each higher-order primitive.

A program holds programs: the body of a `scan`, the branches of a `cond`. What is logged in
there has to come out. How is up to the primitive, and is said once, for all
transformations, by its rule:

    rule(interpreter, eqn, *args) -> (outs, logs)

`interpreter(jaxpr, *args)` evaluates an inner program and returns its outputs and its logs,
as if it stood outside. The rule runs it inside the primitive, and brings the logs out with
the outputs. For instance the rule of a call, which has one program and runs it once:

    @rule_for("closed_call")
    def _call(interpreter, eqn, *args):
        return interpreter(eqn.params["call_jaxpr"], *args)

Three things keep the rules short and lasting:

- A rule never asks which transformation it serves; what differs is in the handler.
- It uses the public function behind the primitive, or binds the primitive with its
  parameters as they are but for the programs: the others change between JAX releases.
- The interpreter holds a handler, and with it possibly arrays. A function that is staged
  takes it as an argument, or these arrays would be constants of the wrong trace.

A primitive that holds a record and is not in the table is an error: no record is lost.
"""

from collections.abc import Callable

import jax
from jax.extend.core import JaxprEqn

from lox._jax import equations
from lox._jax.patches import Version
from lox._rows.collected import Collected

Rule = Callable[..., tuple[list, Collected]]

rules: dict[str, Rule] = {}


def rule_for(*names: str, since: Version = (0, 0, 0)) -> Callable[[Rule], Rule]:
    """Register a rule under the names that JAX has, or had, for a primitive.

    `since` is the first version in which the primitive has the form that the rule expects.
    """

    def register(rule: Rule) -> Rule:
        if jax.__version_info__[:3] >= since:
            rules.update(dict.fromkeys(names, rule))
        return rule

    return register


def rule_of(eqn: JaxprEqn) -> Rule | None:
    """Return the rule for what an equation does. None: there is none."""
    return rules.get(equations.primitive_name(eqn)) or rules.get(eqn.primitive.name)
