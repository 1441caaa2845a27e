"""What can be said of a program before it is evaluated."""

from collections.abc import Iterator
from typing import Any

import jax
from jax.extend.core import JaxprEqn, Literal, Var

from lox._core.record import (
    Record,
    emit_p,
    holds_records,
    listed,
    log_effect,
    log_p,
)
from lox._core.rules.table import rule_of
from lox._jax import equations, sharding, tracing


def records_in(params: Any, *, on_their_way: bool = True) -> Iterator[Record]:
    """Yield the records in a program or in the parameters of an equation.

    They have variables in place of values. Those that are on their way to the host already
    are among them, unless `on_their_way` is false. A record inside a `shard_map` has a
    batch axis for the devices, as its rows will have.
    """
    wanted = (log_p, emit_p) if on_their_way else (log_p,)
    for jaxpr in equations.jaxprs_in(params):
        for eqn in jaxpr.eqns:
            if eqn.primitive in wanted:
                operands = eqn.invars[len(eqn.outvars) :]  # without the token
                yield from jax.tree.unflatten(eqn.params["form"], operands)
            elif holds_records(eqn):
                devices = sharding.device_counts(eqn)
                for record in records_in(eqn.params, on_their_way=on_their_way):
                    outer, inner = (
                        record.batch[: record.outer],
                        record.batch[record.outer :],
                    )
                    yield record.replace(batch=(*outer, *devices, *inner))


def check(jaxpr: Any, seen: set[int] | None = None) -> None:
    """Raise if a record is in an equation that does not show it, and would be lost."""
    seen = set() if seen is None else seen
    for eqn in jaxpr.eqns:
        for inner in equations.jaxprs_in(eqn.params):
            hidden = log_effect in inner.effects and log_effect not in eqn.effects
            # What has a rule shows what it runs; what it may run later is not lost.
            if hidden and rule_of(eqn) is None:
                raise unsupported(eqn)
            if id(inner) not in seen:
                seen.add(id(inner))
                check(inner, seen)


def unsupported(eqn: JaxprEqn) -> NotImplementedError:
    """Return the error for an equation that holds records and has no rule."""
    keys = listed(key for record in records_in(eqn.params) for key in record.keys)
    return NotImplementedError(
        f"lox does not know how logs leave `{equations.primitive_name(eqn)}`, which holds "
        f"{keys} (at {tracing.source_line(eqn)}). Log outside of it, or wrap what is "
        "inside in `lox.nolog`."
    )


def donates(jaxpr: Any) -> bool:
    """Return whether a jitted function in the program takes over buffers."""
    return any(any(eqn.params.get("donated_invars", ())) for eqn in jaxpr.eqns)


def last_uses(jaxpr: Any) -> dict[Var, float]:
    """Return for each variable the last equation that reads it; for outputs infinity."""
    uses: dict[Var, float] = {}
    for i, eqn in enumerate(jaxpr.eqns):
        uses.update(dict.fromkeys(variables(eqn.invars), i))
    uses.update(dict.fromkeys(variables(jaxpr.outvars), float("inf")))
    return uses


def variables(atoms: Any) -> list[Var]:
    """Return the atoms of an equation that are not literals."""
    return [atom for atom in atoms if not isinstance(atom, Literal)]
