"""The independent truth: an eager run that writes down every `log` call."""

import contextlib
import dataclasses
import functools as ft
import itertools as it
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lox
from support.compiled import way
from support.programs import PROGRAMS, Program


@dataclasses.dataclass(frozen=True)
class Record:
    """One call of `log`, and which example of each `vmap` around it made it."""

    data: dict[str, Any]
    steps: dict[str, Any]
    tags: tuple[str, ...]
    lanes: tuple[int, ...]
    sizes: tuple[int, ...]
    raw: dict[str, Any]  # the values before they were unwrapped, for an inner `spool`

    def only(self, keys: set[str]) -> "Record":
        return dataclasses.replace(
            self, data={k: v for k, v in self.data.items() if k in keys}
        )


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Lanes:
    """Which example of each `vmap` a derivative rule was called for, and how silently."""

    lanes: tuple[tuple[int, int], ...] = dataclasses.field(metadata={"static": True})
    muted: int = dataclasses.field(metadata={"static": True})


CustomVjp = jax.custom_vjp


class Recorder:
    """Stands in for `lox`, and for what JAX cannot do eagerly, example by example."""

    def __init__(self):
        self.records: list[Record] = []
        self.lanes: list[tuple[int, int]] = []
        self.muted = 0

    def log(self, data, *, tags=(), prefix="", reduce=None, **steps):
        raw = {prefix + key: value for key, value in data.items()}
        if not self.muted:
            self.records.append(
                Record(
                    {key: jax.tree.map(concrete, value) for key, value in raw.items()},
                    jax.tree.map(concrete, steps),
                    as_tuple(tags),
                    tuple(lane for lane, _ in self.lanes),
                    tuple(size for _, size in self.lanes),
                    raw,
                )
            )
        return raw

    def spool(self, fun, argnames=None, tags=None, keep_logs=False, *, prefix=""):
        def spooled(*args, **kwargs):
            start = len(self.records)
            out = fun(*args, **kwargs)
            inner, self.records[start:] = self.records[start:], []
            taken = [record.only(chosen(record, argnames, tags)) for record in inner]
            left = [
                record.only(set(record.data) - set(kept.data))
                for record, kept in zip(inner, taken, strict=True)
            ]
            self.records += (
                inner if keep_logs else [record for record in left if record.data]
            )
            return out, {
                prefix + key: stacked(rows) for key, rows in by_key(taken, "raw").items()
            }

        return spooled

    @contextlib.contextmanager
    def silent(self):
        self.muted += 1
        try:
            yield
        finally:
            self.muted -= 1

    def quiet(self, fun):
        @ft.wraps(fun)
        def quiet(*args, **kwargs):
            with self.silent():
                return fun(*args, **kwargs)

        return quiet

    def vmap(self, fun, in_axes=0, out_axes=0, axis_size=None):
        """One run per example: also a `cond` inside then takes one branch only."""

        def looped(*args):
            axes = in_axes if isinstance(in_axes, tuple) else (in_axes,) * len(args)
            sizes = [
                leaf.shape[a]
                for arg, a in zip(args, axes, strict=True)
                if a is not None
                for leaf in jax.tree.leaves(arg)
            ]
            size = axis_size or sizes[0]
            outs = []
            for lane in range(size):
                self.lanes.append((lane, size))
                outs.append(
                    fun(*(take(arg, a, lane) for arg, a in zip(args, axes, strict=True)))
                )
                self.lanes.pop()
            return jax.tree.map(lambda *ys: jnp.stack(ys, out_axes), *outs)

        return looped

    def custom_vjp(self, fun, **options):
        """A function whose backward rule knows which examples it runs for."""

        class Ruled(CustomVjp):
            def defvjp(ruled, forward, backward, **options):
                def run_forward(*args):
                    out, residuals = forward(*args)
                    return out, (Lanes(tuple(self.lanes), self.muted), residuals)

                def run_backward(*args):
                    *static, (lanes, residuals), cotangents = args
                    around = self.lanes, self.muted
                    self.lanes, self.muted = list(lanes.lanes), lanes.muted
                    try:
                        return backward(*static, residuals, cotangents)
                    finally:
                        self.lanes, self.muted = around

                super().defvjp(run_forward, run_backward, **options)

        return Ruled(fun, **options)

    def stand_ins(self) -> list[tuple[Any, str, Callable]]:
        """What takes the place of which function."""
        return [
            (lox, "log", self.log),
            (lox, "spool", self.spool),
            (lox, "nolog", self.quiet),
            (lox, "silent", self.silent),
            (jax, "vmap", self.vmap),
            (jax, "custom_vjp", self.custom_vjp),
            (jax.lax, "map", self.map),
            (jax, "eval_shape", self.quiet(jax.eval_shape)),
            # A checkpointed block would log again when it is computed again.
            (jax, "checkpoint", lambda fun=None, **_: fun or (lambda fun: fun)),
        ]

    def map(self, fun, xs, *, batch_size=None):
        if batch_size is None:
            return jax.lax.scan(lambda _, x: ((), fun(x)), (), xs)[1]
        blocks = jax.tree.map(lambda x: x.reshape(-1, batch_size, *x.shape[1:]), xs)
        ys = self.map(self.vmap(fun), blocks)
        return jax.tree.map(lambda y: y.reshape(-1, *y.shape[2:]), ys)


def run(fun: Callable, *args: Any) -> tuple[Any, list[Record]]:
    """The result of `fun` and what it logged, from an eager run."""
    recorder = Recorder()
    with replaced(recorder.stand_ins()), jax.disable_jit():
        out = fun(*args)
    return out, recorder.records


def run_in_python(fun: Callable, *args: Any) -> tuple[Any, list[Record]]:
    """The same three times as quickly, if `fun` has no other loops, branches and calls.

    Without `disable_jit`, the functions of `jnp` stay compiled.
    """
    recorder = Recorder()
    with replaced([*recorder.stand_ins(), *CONTROL_FLOW]):
        out = fun(*args)
    return out, recorder.records


@contextlib.contextmanager
def upgrades_off() -> Iterator[None]:
    """Turn JAX's upgrade flags off: they stage functions that would run eagerly."""
    names = [name for name in UPGRADES if getattr(jax.config, name, False)]
    for name in names:
        jax.config.update(name, False)
    try:
        yield
    finally:
        for name in names:
            jax.config.update(name, True)


UPGRADES = ("jax_remat3", "jax_custom_vjp3", "jax_custom_jvp3")


@contextlib.contextmanager
def replaced(stand_ins: Sequence[tuple[Any, str, Callable]]) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        stack.enter_context(upgrades_off())
        for target, name, stand_in in stand_ins:
            stack.enter_context(mock.patch.object(target, name, stand_in))
        yield


def scan(fun, init, xs, *, reverse=False, unroll=1):
    carry, ys = init, []
    rows = [take(xs, 0, i) for i in range(len(jax.tree.leaves(xs)[0]))]
    for row in reversed(rows) if reverse else rows:
        carry, y = fun(carry, row)
        ys.append(y)
    ys = ys[::-1] if reverse else ys
    return carry, jax.tree.map(lambda *each: jnp.stack(each), *ys)


def fori_loop(lower, upper, fun, init):
    for i in range(lower, upper):
        init = fun(jnp.int32(i), init)
    return init


def while_loop(condition, fun, state):
    while concrete(condition(state)):
        state = fun(state)
    return state


CONTROL_FLOW = [
    (jax, "jit", lambda fun: fun),
    (jax.lax, "scan", scan),
    (jax.lax, "fori_loop", fori_loop),
    (jax.lax, "while_loop", while_loop),
    (jax.lax, "cond", lambda pred, yes, no, *xs: (yes if concrete(pred) else no)(*xs)),
    (jax.lax, "switch", lambda index, branches, *xs: branches[concrete(index)](*xs)),
]


def run_each(fun: Callable, xs: jax.Array) -> tuple[Any, list[Record]]:
    """One eager run per example."""
    return run(lambda xs: jax.vmap(fun)(xs), xs)


def of_example(found: tuple[Any, list[Record]], lane: int) -> tuple[Any, list[Record]]:
    """What `run` would have found for one of the examples of the outermost `vmap`."""
    out, records = found
    mine = [
        dataclasses.replace(record, lanes=record.lanes[1:], sizes=record.sizes[1:])
        for record in records
        if record.lanes[0] == lane
    ]
    return take(out, 0, lane), mine


@ft.cache
def records(p: Program) -> list[Record]:
    """What a program of the catalogue logs."""
    return run(p.truth, p.x)[1]


@ft.cache
def records_of_each(p: Program) -> list[Record]:
    """What it logs for each of its examples."""
    return run_each(p.truth, p.xs)[1]


@ft.cache
def records_of_grad(p: Program) -> list[Record]:
    """What the gradient of its `total` logs."""
    return run(jax.grad(total_of(p.truth)), p.x)[1]


@ft.cache
def records_in_grad(p: Program) -> list[Record]:
    """What of its own it logs in the forward pass of a gradient.

    There a derivative rule runs in place of its function.
    """
    return _in_forward_pass(p.truth, p.x, records(p))


@ft.cache
def records_of_each_in_grad(p: Program) -> list[Record]:
    """The same for each of its examples."""
    return _in_forward_pass(lambda xs: jax.vmap(p.truth)(xs), p.xs, records_of_each(p))


def _in_forward_pass(fun: Callable, x: jax.Array, own: list[Record]) -> list[Record]:
    def loss(x):
        out = fun(x)
        lox.log({"the end": 0})
        return total(out)

    _, found = run(jax.grad(loss), x)
    before = it.takewhile(lambda record: "the end" not in record.data, found)
    of_its_own = [record.only(set(by_key(own))) for record in before]
    return [record for record in of_its_own if record.data]


@way(PROGRAMS)
def result(p: Program):
    """What it returns."""
    return bare(p), p.x


@way(PROGRAMS)
def result_of_each(p: Program):
    """What it returns for each of its examples."""
    return bare(p, jax.vmap), p.xs


@way([p for p in PROGRAMS if p.grad])
def slope_of(p: Program):
    """The gradient of its `total`."""
    return bare(p, lambda fun: jax.grad(total_of(fun))), p.x


def bare(p: Program, transform: Callable = lambda fun: fun) -> Callable:
    """The program without logs; one that computes with its own logs needs them."""
    return transform(p.equivalent) if p.equivalent else without_logs(transform(p.fun))


def total_of(fun: Callable) -> Callable:
    return lambda x: total(fun(x))


def total(out: Any) -> Any:
    """A number that depends on all floats in `out`."""
    leaves = [a for a in jax.tree.leaves(out) if jnp.issubdtype(a.dtype, jnp.floating)]
    return sum((jnp.sum(jnp.sin(a)) for a in leaves), start=jnp.float32(0))


def without_logs(fun: Callable) -> Callable:
    """`fun` as if its log calls had never been written."""

    @ft.wraps(fun)
    def bare(*args, **kwargs):
        with mock.patch.object(lox, "log", lambda data, **_: dict(data)):
            return fun(*args, **kwargs)

    return bare


# Comparing ----------------------------------------------------------------------------


def assert_logs(
    logs: Any,
    records: Sequence[Record],
    *,
    natural: Callable[[str], bool],
    batch_first: bool = False,
    tol: float = 1e-4,
) -> None:
    """Check that `logs` are `records`, row by row and example by example.

    That is their values, dtypes, steps and tags.

    Args:
        logs: What `spool` returned.
        records: What the eager run wrote down.
        natural: Says whether a key has the shape it was logged with, and no time axis.
        batch_first: The examples come before time, as in `vmap(spool(f))`.
        tol: Relative and absolute, for floats; the compiler may reorder what it adds up.
    """
    expected = by_key(records)
    assert set(expected) <= set(logs), f"lost {sorted(set(expected) - set(logs))}: {logs}"
    for key in logs:
        if key not in expected:
            assert not logged_rows(logs, key), f"{key!r} was not logged: {logs[key]}"
            continue
        timed = not natural(key)
        if timed and batch_first:
            logs_of = ft.partial(jax.tree.map, lambda a: np.moveaxis(plain(a), 1, 0))
        else:
            logs_of = ft.partial(jax.tree.map, plain)
        assert_key(key, logs, logs_of, expected[key], timed, tol)


def assert_key(
    key: str,
    logs: Any,
    normal: Callable,
    records: Sequence[Record],
    timed: bool,
    tol: float,
) -> None:
    sizes = max((record.sizes for record in records), key=len)
    value = normal(logs[key])
    assert jax.tree.structure(value) == jax.tree.structure(records[0].data[key]), (
        f"{key!r}: {value}"
    )
    shapes = jax.tree.map(
        np.shape, records[0].data[key], is_leaf=lambda x: isinstance(x, np.ndarray)
    )
    names = {name for name in logs.steps if key in logs.steps[name]}
    assert {name for record in records for name in record.steps} <= names, (
        f"{key!r} has only the steps {names}"
    )
    assert {tag for record in records for tag in record.tags} <= set(
        logs.tags.get(key, ())
    ), f"tags of {key!r}"
    for lane in it.product(*map(range, sizes)):
        at = ft.partial(row_block, lane=lane, sizes=sizes, timed=timed)
        mask = at(normal(logs.valid[key]), shape=()) if key in logs.valid else None
        rows = jax.tree.map(lambda a, s: keep(at(a, shape=s), mask), value, shapes)
        mine = [record for record in records if record.lanes == lane[: len(record.lanes)]]
        where = f"{key!r} of example {lane}" if lane else f"{key!r}"
        assert_rows(where, rows, [record.data[key] for record in mine], tol)
        for name in names:
            step, is_there = logs.steps[name], [name in record.steps for record in mine]
            if key in step.valid:
                found = keep(at(normal(step.valid[key]), shape=()), mask)
                assert list(found) == is_there, (
                    f"step {name!r} of {where}: there for {found}, not for {is_there}"
                )
            else:
                assert all(is_there), f"step {name!r} of {where}: rows without it have one"
            shape = next(
                (
                    np.shape(record.steps[name])
                    for record in records
                    if name in record.steps
                ),
                (),
            )
            rows = keep(keep(at(normal(step[key]), shape=shape), mask), is_there)
            assert_rows(
                f"step {name!r} of {where}",
                rows,
                [r.steps[name] for r in mine if name in r.steps],
                tol,
            )


def logged_rows(logs: Any, key: str) -> int:
    if key in logs.valid:
        return int(np.sum(logs.valid[key]))
    return min(np.size(leaf) for leaf in jax.tree.leaves(logs[key]))


def assert_rows(what: str, rows: Any, expected: list, tol: float) -> None:
    counts = {len(leaf) for leaf in jax.tree.leaves(rows)}
    assert counts == {len(expected)}, (
        f"{what}: {counts} rows, but {len(expected)} were logged: {rows} for {expected}"
    )
    for i, row in enumerate(expected):
        jax.tree.map(
            ft.partial(assert_close, f"row {i} of {what}", tol=tol),
            jax.tree.map(lambda a: a[i], rows),
            row,
        )


def assert_close(what: str, found: Any, expected: Any, *, tol: float = 1e-4) -> None:
    found, expected = plain(found), plain(expected)
    assert found.dtype == expected.dtype, f"{what}: {found.dtype} for {expected.dtype}"
    assert found.shape == expected.shape, (
        f"{what}: shape {found.shape} for {expected.shape}"
    )
    if found.dtype.kind in "biu":
        assert np.array_equal(found, expected), f"{what}: {found} for {expected}"
        return
    if found.dtype.kind == "V":  # bfloat16 and its kin
        found, expected, tol = (
            found.astype(np.float32),
            expected.astype(np.float32),
            max(tol, 1e-2),
        )
    assert np.allclose(found, expected, rtol=tol, atol=tol, equal_nan=True), (
        f"{what}: {found} for {expected}"
    )


def assert_trees_close(found: Any, expected: Any, *, tol: float = 1e-4) -> None:
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    jax.tree.map(ft.partial(assert_close, "the result", tol=tol), found, expected)


def row_block(
    array: np.ndarray, *, shape: tuple, lane: tuple, sizes: tuple, timed: bool
) -> np.ndarray:
    """The rows (time, *shape) of one example.

    There is no axis for a `vmap` that the key does not depend on.
    """
    array = array if timed else array[None]
    axes = array.shape[1 : array.ndim - len(shape)]
    assert array.shape[1 + len(axes) :] == shape, (
        f"rows of shape {array.shape[1:]} for {shape} in {sizes} examples"
    )
    matches = [
        m
        for m in it.combinations(range(len(sizes)), len(axes))
        if tuple(sizes[i] for i in m) == axes
    ]
    assert matches, f"axes {axes} for {sizes} examples"
    return array[(slice(None), *(lane[i] for i in matches[0]))]


def keep(rows: np.ndarray, mask: Any) -> np.ndarray:
    return rows if mask is None else rows[np.asarray(mask, bool)]


def by_key(records: Sequence[Record], field: str = "data") -> dict[str, list]:
    """For each key, in the order of the first log, its records (`raw`: their values)."""
    found: dict[str, list] = {}
    for record in records:
        for key in record.data:
            found.setdefault(key, []).append(record if field == "data" else record.raw[key])
    return found


def raises(error: type[Exception], *words: str) -> Any:
    """Expect an error whose message has these words, in this order."""
    return pytest.raises(error, match="(?s)" + ".*".join(words))


# Helpers ------------------------------------------------------------------------------


def concrete(x: Any) -> np.ndarray:
    """The NumPy array inside the tracers of `grad`, `jvp` and `linearize`."""
    while isinstance(x, jax.core.Tracer):
        if hasattr(x, "primal"):
            x = x.primal
        elif (
            getattr(x, "batch_dim", 0) is None
        ):  # unbatched, in a `vmap` of JAX's own (`jacfwd`)
            x = x.val  # pyright: ignore[reportAttributeAccessIssue]
        else:
            raise TypeError(
                f"The truth met {x} of type {type(x)}: write this program's truth by hand."
            )
    return plain(x)


def plain(x: Any) -> np.ndarray:
    """As a NumPy array with JAX's dtype; typed PRNG keys as their data."""
    if isinstance(x, jax.Array) and jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key):
        return np.asarray(jax.random.key_data(x))
    array = np.asarray(x)  # not of `jnp`: we may be in a rule that is being traced
    return array.astype(jax.dtypes.canonicalize_dtype(array.dtype))


def take(tree: Any, axis: int | None, lane: int) -> Any:
    return (
        tree
        if axis is None
        else jax.tree.map(
            lambda x: jax.lax.index_in_dim(x, lane, axis, keepdims=False), tree
        )
    )


def stacked(rows: list) -> Any:
    return (
        rows[0]
        if len(rows) == 1
        else jax.tree.map(lambda *leaves: jnp.stack(leaves), *rows)
    )


def chosen(record: Record, argnames: Any, tags: Any) -> set[str]:
    if tags is not None and not set(as_tuple(tags)) & set(record.tags):
        return set()
    return {key for key in record.data if argnames is None or key in as_tuple(argnames)}


def as_tuple(names: str | Sequence[str]) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)
