"""Trace a function, and evaluate a program, handing each of its records to a handler."""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, JaxprEqn, Literal, Primitive

from . import _compat, _context
from ._handlers import Forward
from ._log import log_effect, log_p
from ._logdict import logdict
from ._record import Record, bind, listed
from ._rows import Rows, merge
from ._rules import rules


class Handler(Protocol):
    """What a transformation does with each record. A pytree: it passes through `jit`."""

    effects: frozenset
    """The effects of the primitives whose records it is handed."""

    def __call__(
        self, record: Record, rebind: Callable[[Record], None], where: str
    ) -> dict[str, Rows]:
        """Do something with a record, and return the rows to be collected of it."""
        ...

    def only(self, keys: frozenset[str]) -> "Handler":
        """The handler that collects no other keys."""
        ...

    def quiet(self) -> "Handler":
        """The handler that collects the same, and does nothing else."""
        ...


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Walk:
    """Evaluates programs with a handler: `walk(jaxpr, *args)` gives outputs and logs."""

    handler: Any

    def __call__(self, jaxpr: ClosedJaxpr, *args: Any) -> tuple[list, logdict]:
        jaxpr = _compat.close(jaxpr)
        program, pending = jaxpr.jaxpr, []
        if self.handler.effects.isdisjoint(program.effects):
            return jax.core.eval_jaxpr(program, jaxpr.consts, *args), logdict()
        env = dict(zip(program.constvars, jaxpr.consts, strict=True))
        env.update(zip(program.invars, args, strict=True))
        last_use = _last_use(program)
        collected: dict[str, list[Rows]] = {}

        def read(atom):
            return atom.val if isinstance(atom, Literal) else env[atom]

        def flush(now: float) -> None:
            """Evaluate what is pending, and forget what is not used from `now` on."""
            outvars = [v for e in pending for v in e.outvars if last_use.get(v, -1) >= now]
            if pending:
                env.update(
                    zip(outvars, _compat.evaluate(program, pending, outvars, env), strict=True)
                )
            for eqn in pending:
                for atom in eqn.invars:
                    if not isinstance(atom, Literal) and last_use[atom] < now:
                        env.pop(atom, None)
            pending.clear()

        for now, eqn in enumerate(program.eqns):
            if self.handler.effects.isdisjoint(eqn.effects):
                pending.append(eqn)
                continue
            flush(now)
            with _compat.at(eqn):
                outs, logs = self._apply(eqn, [read(atom) for atom in eqn.invars])
            env.update(zip(eqn.outvars, outs, strict=True))
            for key, rows in logs.items():
                collected.setdefault(key, []).append(rows)
        flush(len(program.eqns))
        outs = [read(atom) for atom in program.outvars]
        return outs, logdict.of({key: merge(key, parts) for key, parts in collected.items()})

    def only(self, keys: frozenset[str]) -> "Walk":
        """Collect no other keys."""
        return Walk(self.handler.only(keys))

    def quiet(self) -> "Walk":
        """Collect the same, and let nothing go on outward."""
        return Walk(self.handler.quiet())

    def forward(self, jaxpr: ClosedJaxpr, *args: Any) -> list:
        """Evaluate a program whose records belong to whoever listens here."""
        return Walk(Forward())(jaxpr, *args)[0]

    def forwarded(self, fun: Callable) -> Callable:
        return lambda *args: interpret(fun, Forward(), *args)[0]

    def trace(self, fun: Callable, *args: Any) -> "Traced":
        return trace(fun, *args)

    def _apply(self, eqn: JaxprEqn, args: list) -> tuple[list, dict[str, Rows]]:
        if "form" in eqn.params:
            return [], self._hand_over(eqn, args)
        rule = rules.get(_compat.name_of(eqn))
        if rule is None:
            keys = listed(dict.fromkeys(k for form in forms(eqn.params) for k in form.keys))
            raise NotImplementedError(
                f"lox does not know how logs leave `{_compat.name_of(eqn)}`"
                f"{f', which holds {keys}' if keys else ''} (at {_compat.where(eqn)}). "
                "Log outside of it, or wrap what is inside in `lox.nolog`."
            )
        outs, logs = rule(self, eqn, *args)
        return outs, logs.rows()

    def _hand_over(self, eqn: JaxprEqn, args: list) -> dict[str, Rows]:
        params = dict(eqn.params)
        avals = (atom.aval for atom in eqn.invars)
        arrays = [jnp.asarray(x, aval.dtype) for x, aval in zip(args, avals, strict=True)]
        record = jax.tree.unflatten(params.pop("form"), arrays)

        def rebind(record):
            bind(eqn.primitive, record, **params)

        return self.handler(record, rebind, _compat.where(eqn))


@dataclasses.dataclass(frozen=True)
class Traced:
    """A function traced with some arguments, its logs in the program."""

    jaxpr: ClosedJaxpr
    args: list
    output: Callable[[list], Any]


def trace(fun: Callable, *args: Any, **kwargs: Any) -> Traced:
    """Trace `fun`. Arrays are traced as by `jit`, everything else stays what it is."""
    leaves, treedef = jax.tree.flatten((args, kwargs))
    at = [i for i, leaf in enumerate(leaves) if _is_array(leaf)]
    result: list = []

    def flat(*arrays):
        merged = list(leaves)
        for i, array in zip(at, arrays, strict=True):
            merged[i] = array
        args, kwargs = jax.tree.unflatten(treedef, merged)
        result[:] = jax.tree.flatten(fun(*args, **kwargs))
        # What does not depend on the trace is returned as the object that it is.
        return [leaf for leaf in result[0] if isinstance(leaf, jax.core.Tracer)]

    arrays = [leaves[i] for i in at]
    with _context.captured():
        jaxpr = jax.make_jaxpr(flat)(*arrays)
    outs, out_tree = result

    def output(values: list) -> Any:
        values = iter(values)  # pyright: ignore[reportAssignmentType]
        merged = [next(values) if isinstance(x, jax.core.Tracer) else x for x in outs]  # pyright: ignore[reportArgumentType]
        return jax.tree.unflatten(out_tree, merged)

    return Traced(jaxpr, arrays, output)


def interpret(fun: Callable, handler: Handler, *args: Any, **kwargs: Any) -> tuple[Any, logdict]:
    """Call `fun`, its records in the hands of `handler`."""
    traced = trace(fun, *args, **kwargs)
    outs, logs = Walk(handler)(traced.jaxpr, *traced.args)
    return traced.output(outs), logs


def forms(params: Any) -> Iterator[Record]:
    """The captured records in a program or in the parameters of an equation."""
    for jaxpr in _compat.jaxprs_in(params):
        for eqn in jaxpr.eqns:
            if eqn.primitive is log_p:
                yield jax.tree.unflatten(eqn.params["form"], eqn.invars)
            elif log_effect in eqn.effects:
                yield from forms(eqn.params)


def _last_use(jaxpr: Any) -> dict[Any, float]:
    """For each variable, the number of the last equation that reads it."""
    uses: dict[Any, float] = {}
    for i, eqn in enumerate(jaxpr.eqns):
        uses.update((atom, i) for atom in eqn.invars if not isinstance(atom, Literal))
    end = float("inf")
    uses.update((atom, end) for atom in jaxpr.outvars if not isinstance(atom, Literal))
    return uses


def _is_array(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array | np.ndarray | np.generic)
