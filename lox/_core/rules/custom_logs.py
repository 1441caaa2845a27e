"""What a function with a custom rule logs when its rule runs in its place.

JAX runs either the function or its rule, never both, and their outputs must have the same
form, logs included. A rule need not log what its function logs:

    the rule logs a key     what happens
    as the function does    its rows are the function's rows
    in another form         the function runs too, for this key only
    not at all              the key is a gap: it gets a mask, which is false under the rule

For example, the rule of `f` does not call `f`, but logs a key of its own:

    f        logs a, b           gaps = {b}; what leaves the function or the rule:
    rule     logs a, c               function    a=row              b=row valid=1
                                     rule        a=row of the rule  b=zeros valid=0
                                     and `c` is passed on outwards

`find_gaps` looks for gaps before the function is rebuilt. `evaluate_separately` runs the
function and `run_rule` the rule, so that both return logs of one form.
"""

import dataclasses
import functools as ft
import operator
from collections.abc import Callable, Iterable, Sequence

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from lox._core import context as _context
from lox._core.analysis import keys_in
from lox._core.interpreter import Interpreter
from lox._core.record import listed
from lox._core.rules.loop_with_logs import collecting_only
from lox._core.staging import Staged, trace
from lox._jax.types import AnyArray, Program, PyTree
from lox._rows.accumulator import Entry
from lox._rows.collected import Collected, Threaded, signature
from lox._rows.rows import Rows
from lox._rows.several_reductions import split_entry_key

# The keys that a function logs and its rule does not.
Gaps = frozenset[str]

# `fit(logs, form, gaps, given)` brings logs into a form in which the gaps may be missing.
# `given` is the state before the logs, for what they do not change.
Fit = Callable[[Collected, Collected, Gaps, Threaded], Collected]


def fit_gaps(logs: Collected, form: Collected, gaps: Gaps, given: Threaded) -> Collected:
    """Bring logs into a form in which some keys may be missing."""
    if gaps:
        # As for a `cond` with two branches, of which the second does not log the gaps: in
        # the form that both share, these keys have a mask.
        groups = form.groups.items()
        kept = {
            keys: entry for keys, entry in groups if split_entry_key(keys[0])[0] not in gaps
        }
        form = Collected.either([form, Collected.of(kept, form.threaded)])
    return logs.fitted(form, given)


def fit_each_example(
    size: int, logs: Collected, form: Collected, gaps: Gaps, given: Threaded
) -> Collected:
    """Bring logs into a form, where all arrays have an axis of examples in front."""
    if not gaps:
        return logs.fitted(form, given)
    one = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), form)
    fit_one = lambda logs, given: fit_gaps(logs, one, gaps, given)  # noqa: E731
    return jax.vmap(fit_one, axis_size=size)(logs, given)


def _batched_like(args: PyTree, logs: Collected) -> Collected:
    """Return the same logs, all of them batched if anything in `args` is.

    JAX requires that the outputs of a function are batched exactly where those of its rule
    are. But rows that fill a gap are constants, which are never batched. So each array is
    selected from itself and itself, by a condition that depends on all arguments. The
    compiler drops the select.
    """
    is_key = ft.partial(jnp.issubdtype, arg2=jax.dtypes.prng_key)
    arrays = [x for x in jax.tree.leaves(args) if not is_key(jnp.result_type(x))]
    condition = ft.reduce(operator.or_, (jnp.any(x != x) for x in arrays), False)
    return jax.tree.map(lambda x: jnp.where(condition, x, x), logs)


def find_gaps(
    interpreter: Interpreter, call: Program, rule: Callable, *args: PyTree
) -> Gaps:
    """Return the keys that a custom function logs and its rule does not.

    The two are like the branches of a `cond`: if one of them does not log a key, a mask
    says whether the key was logged. The mask must exist before JAX differentiates or
    batches the function, so the rule is traced here, only to look at its records.
    """
    expected = keys_in(call)
    if not interpreter.handler.captures or not expected:
        return frozenset()
    try:
        with _context.searched():
            return expected - keys_in(trace(rule, *args).jaxpr)
    except Exception:  # A rule that fails here fails again when it is needed.
        return frozenset()


def run_rule(
    interpreter: Interpreter,
    gaps: Gaps,
    rule: Callable,
    itself: Callable[..., Staged],
    primals: Sequence[AnyArray],
    *others: PyTree,
    adapt: Callable[[Collected], Collected] = lambda logs: logs,
    fit: Fit = fit_gaps,
) -> tuple[PyTree, Collected]:
    """Run the rule of a custom function, and find the logs of the function among its logs.

    A rule usually calls its function and logs what the function logs: these are the
    function's logs. Its other logs are passed on outwards. A key that the rule does not log
    has not been logged, as the function itself is not run. If the rule logs a key in
    another form, as that of a `custom_root` before JAX 0.12 does, lox cannot tell which
    rows are the function's. Only then is the function run, for these keys alone.

    Args:
        interpreter: The interpreter for the function.
        gaps: The keys that only the function logs.
        rule: The user's rule, called as `rule(primals, *others)`.
        itself: `itself(interpreter, primals, *others)` stages the function itself.
        primals: The arguments of the function.
        *others: What else the rule takes, such as tangents.
        adapt: Turns logs as the rule returns them into logs as the function returns them.
        fit: Brings logs into a form, see `Fit`.
    """
    args = primals, *others
    if _context.state() == "searched":
        return rule(*args), _nothing(interpreter, gaps, itself, *args, fit=fit)
    traced = interpreter.trace(rule, *args)
    # Compare what both log. For this, any capacity of rings will do.
    looking = collecting_only(interpreter, capacity=1)
    expected = _logs_of(itself, looking, *args)
    found = looking.stage(traced.jaxpr, *traced.args).shape[1]
    found = jax.eval_shape(adapt, found)
    same = _same(expected, found)
    absent = {key for key in expected.order if found.get((key,)) is None}
    # A gap has its mask already. It is too late for any other key that is missing now.
    unexpected = {split_entry_key(key)[0] for key in absent} - gaps
    if unexpected:
        raise _unsettled(unexpected)
    # Run the rule. It collects the keys that it logs as the function does, no others.
    selective = interpreter.with_handler(interpreter.handler.only(same))
    outs, logs = selective(traced.jaxpr, *traced.args)
    parts = [adapt(logs)]
    # same, absent and different: each key of the function is in exactly one of them.
    different = frozenset(expected.order) - same - absent
    if different:
        # `quiet`, because the rule has passed these records on already.
        rest = interpreter.handler.after(logs.threaded).only(different).quiet()
        parts.append(itself(interpreter.with_handler(rest), *args).run()[1])
    # Threaded state that neither run has touched is handed on, in the form of the logs.
    given = adapt(Collected(threaded=interpreter.handler.threaded())).threaded
    form = _logs_of(itself, interpreter, *args)
    logs = fit(Collected.joined(parts).separated(), form, gaps, given)
    return traced.output(outs), _batched_like(primals, logs) if gaps else logs


def _nothing(
    interpreter: Interpreter,
    gaps: Gaps,
    itself: Callable[..., Staged],
    *args: PyTree,
    fit: Fit,
) -> Collected:
    """Return zeros in place of the logs, for a trace in which nothing uses them."""
    if not interpreter.handler.captures:
        return Collected()
    form = _logs_of(itself, interpreter, *args)
    if gaps:
        form = jax.eval_shape(lambda logs: fit(logs, logs, gaps, logs.threaded), form)
    return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), form)


def _same(expected: Collected, found: Collected) -> frozenset[str]:
    """Return the keys that are logged in the same form in both."""
    same = set()
    for key in expected.order:
        mine, others = expected[(key,)], found.get((key,))
        if others is not None and _comparable(mine) == _comparable(others):
            same.add(key)
    return frozenset(same)


def _comparable(entry: Entry) -> tuple:
    """Return the form of an entry, with its vmapped `cond`s numbered from 0.

    A rule may differentiate its function. The derivative of a `cond` is a `cond` with the
    same branches, but with a number of its own.
    """
    paths = (entry.path,) if isinstance(entry, Rows) else entry.paths
    conds = dict.fromkeys(branch.cond for path in paths for branch in path)
    number_of = {cond: number for number, cond in enumerate(conds)}
    renumbered = tuple(
        tuple(dataclasses.replace(branch, cond=number_of[branch.cond]) for branch in path)
        for path in paths
    )
    if isinstance(entry, Rows):
        return signature(entry.replace(path=renumbered[0]))
    return signature(entry.replace(paths=renumbered))


def _unsettled(keys: Iterable[str]) -> NotImplementedError:
    return NotImplementedError(
        f"{listed(sorted(keys))} is logged by a function with a custom rule for "
        "derivatives or batches. The rule logs it too, but not if JAX differentiates or "
        "batches only some of the arguments, as here. Log the same keys in all cases, or "
        "put the lox transformation around the derivative or `vmap`."
    )


def evaluate_separately(
    interpreter: Interpreter, gaps: Gaps, jaxpr: Program, *args: ArrayLike
) -> tuple[list, Collected]:
    """Evaluate a custom function, and return its logs with a group for each key.

    Keys that one call of `log` logs share a group, but a rule may log them one by one, or
    only some of them.
    """
    outs, logs = interpreter(jaxpr, *args)
    logs = logs.separated()
    if gaps:
        logs = fit_gaps(logs, logs, gaps, interpreter.handler.threaded())
        logs = _batched_like(args, logs)
    return outs, logs


def _logs_of(
    itself: Callable[..., Staged], interpreter: Interpreter, *args: PyTree
) -> Collected:
    """Return the logs of a function with a group for each key, as abstract arrays."""
    quiet = interpreter.with_handler(interpreter.handler.quiet())
    return itself(quiet, *args).shape[1].separated()
