"""Print records in the order of execution, even across calls, branches and loops.

A record that nothing collects becomes a host call while JAX traces the program, and takes
the token of the call before it (see `host_call_order.py`). That works within one program,
but not into or out of an inner one: while a branch is traced, the program around it is not
visible.

    emit 1                    token -> emit 1 -> token
    cond { emit 2 }     ->    token -> cond { token -> emit 2 -> token } -> token
    emit 3                    token -> emit 3

So lox puts a program in order when it is complete, which is when JAX lowers it. The program
is evaluated again, and the token is passed through everything that holds a host call,
by the same rules as for `tap`.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Self

import jax
from jax.typing import ArrayLike

from lox._core.handler import Handler, Idle
from lox._core.interpreter import Interpreter
from lox._core.record import Delivery, Record, bind, emit_effect, emit_p
from lox._core.rules.registry import rules
from lox._core.staging import stage_once
from lox._jax import equations, patches
from lox._jax.extend import ClosedJaxpr, Jaxpr, JaxprEqn
from lox._jax.types import AnyArray, Code, Params
from lox._rows.collected import Threaded
from lox._stream.default_print import print_packet
from lox._stream.host_call_order import new_token
from lox_host.frozen import frozen


@patches.implements("order of prints")
def _lower_in_order(
    lower: Callable, jaxpr: ClosedJaxpr, *args: object, **params: object
) -> object:
    # Host calls that are all at the top level are in order already, and those of `tap` have
    # been put in order by its handler.
    if (
        emit_effect in jaxpr.effects
        and _has_inner_calls(jaxpr.jaxpr)
        and _prints(jaxpr.jaxpr)
    ):
        in_order = stage_once(_in_order, jaxpr, *jaxpr.in_avals).jaxpr
        jaxpr = equations.with_debug_info_of(in_order, jaxpr)
    return lower(jaxpr, *args, **params)


def _in_order(jaxpr: ClosedJaxpr, *args: ArrayLike) -> list:
    return Interpreter(Order(new_token()))(jaxpr, *args)[0]


@jax.tree_util.register_dataclass
@frozen
class Order(Handler):
    """Leave host calls where they are, and let each take the token of the one before.

    Attributes:
        token: The token of the last host call. The next call takes it, to come after.
    """

    token: AnyArray

    effects = frozenset({emit_effect})

    def concerns(self, program: Code) -> bool:
        """Return whether there are host calls inside. Without a rule, leave them alone."""
        if not super().concerns(program):
            return False
        if not isinstance(program, JaxprEqn):
            return True
        return program.primitive is emit_p or _has_rule(program)

    def emit(
        self, records: Sequence[Record | Delivery], token: AnyArray, params: Params
    ) -> AnyArray:
        return bind(emit_p, records, [self.token], **params)[0]

    def emitted(self, token: AnyArray) -> Threaded:
        return Threaded(token=token)

    def carries(self) -> bool:
        return True

    def threaded(self) -> Threaded:
        return Threaded(token=self.token)

    def after(self, state: Threaded) -> Self:
        token = self.token if state.token is None else state.token
        return dataclasses.replace(self, token=token)

    def collecting(self, capacity: int | None = None) -> Idle:
        return Idle()


def _has_rule(eqn: JaxprEqn) -> bool:
    return equations.primitive_name(eqn) in rules


def _has_inner_calls(program: Jaxpr) -> bool:
    """Return whether a host call is inside an equation of a program."""
    return any(
        emit_effect in eqn.effects and eqn.primitive is not emit_p for eqn in program.eqns
    )


def _prints(program: Jaxpr) -> bool:
    """Return whether a program holds a host call that prints."""
    for eqn in program.eqns:
        if emit_effect not in eqn.effects:
            continue
        if eqn.primitive is emit_p:
            if eqn.params["callback"] is print_packet:
                return True
        elif any(map(_prints, equations.jaxprs_in(eqn.params))):
            return True
    return False
