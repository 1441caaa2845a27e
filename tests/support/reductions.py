"""The truth of reductions and intervals: NumPy over the rows of the eager run."""

import contextlib
import dataclasses
import functools as ft
import itertools as it
from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

import lox
from support.truth import Record, assert_close, by_key, plain, row_block

# A reduction of our own that is not commutative: each row weighs half of its successor.
FADING = lox.Reduction(
    empty=lambda row: (jnp.zeros(row.shape, jnp.float32), jnp.float32(1)),
    lift=lambda row: (row.astype(jnp.float32), jnp.float32(0.5)),
    combine=lambda a, b: (b[1] * a[0] + b[0], a[1] * b[1]),
    finish=lambda acc: acc[0],
)


def fading(rows: np.ndarray) -> np.ndarray:
    weights = 0.5 ** np.arange(len(rows))[::-1]
    return np.tensordot(weights, rows, 1)


def numbers(rows: np.ndarray) -> np.ndarray:
    """The rows in 64 bits, for sums that are exact enough."""
    if rows.dtype.kind in "biu":
        return rows.astype(np.int64)
    return rows.astype(np.complex128 if rows.dtype.kind == "c" else np.float64)


def averaged(dtype: np.dtype) -> Any:
    return np.float32 if dtype.kind in "biu" else dtype


def summed(dtype: np.dtype) -> Any:
    wide = {"b": np.int32, "i": np.int32, "u": np.uint32}
    return wide.get(dtype.kind, dtype)


def spread(dtype: np.dtype) -> Any:
    return np.float32 if dtype.kind in "biuc" else dtype


def same(dtype: np.dtype) -> Any:
    return dtype


# For each reduction what it does in NumPy, and the dtype of its value.
TRUTH: dict[str, tuple[Callable, Callable]] = {
    "mean": (lambda rows: numbers(rows).mean(0), averaged),
    "sum": (lambda rows: numbers(rows).sum(0), summed),
    "min": (lambda rows: rows.min(0), same),
    "max": (lambda rows: rows.max(0), same),
    "first": (lambda rows: rows[0], same),
    "last": (lambda rows: rows[-1], same),
    "replace": (lambda rows: rows[-1], same),
    "count": (len, lambda _: np.int32),
    "std": (lambda rows: numbers(rows).std(0), spread),
    "var": (lambda rows: numbers(rows).var(0), spread),
    "fading": (lambda rows: fading(numbers(rows)), lambda _: np.float32),
}
NAMES = list(TRUTH)
# Those that differ in more than one line from the others.
DISTINCT = ["mean", "sum", "min", "first", "last", "count", "std", "fading"]
ANY_DTYPE = ["first", "last", "replace", "count"]
UNORDERED = ["mean", "sum", "std", "var", *ANY_DTYPE]


def asked(name: str) -> Any:
    """What `spool` is given for a reduction of these tests."""
    return FADING if name == "fading" else name


def possible(value: Any) -> list[str]:
    """The reductions that a value has, by its dtypes."""
    dtypes = [jnp.asarray(leaf).dtype for leaf in jax.tree.leaves(value)]
    if any(jnp.issubdtype(dtype, jax.dtypes.prng_key) for dtype in dtypes):
        return ANY_DTYPE
    if any(jnp.issubdtype(dtype, jnp.complexfloating) for dtype in dtypes):
        return UNORDERED
    return NAMES


def reduce_rows(name: str, rows: Sequence[np.ndarray]) -> np.ndarray:
    rows = np.stack(rows)
    apply, dtype = TRUTH[name]
    with np.errstate(all="ignore"):
        return np.asarray(apply(rows)).astype(dtype(rows.dtype))


# Every reduction at once --------------------------------------------------------------


@contextlib.contextmanager
def every_reduction(names: Sequence[str] = DISTINCT):
    """Let `log` log each key once more for each reduction, as `key:name`.

    All of them then run in one program, beside the rows themselves.
    """
    log = lox.log

    def manifold(data, **options):
        more = {
            f"{key}:{name}": value
            for key, value in data.items()
            for name in possible(value)
            if name in names
        }
        log({**data, **more}, **options)
        return data

    with mock.patch.object(lox, "log", manifold):
        yield


def reductions_of(fun: Callable, x: Any) -> dict[str, Any]:
    """The mapping for `spool(reduce=)` of what `fun` logs with `every_reduction`."""
    _, logs = jax.eval_shape(lox.spool(fun), x)
    return {key: asked(named(key)[1]) for key in logs if named(key)[1]}


def named(key: str) -> tuple[str, str]:
    """The key that was logged, and the name of a reduction or nothing."""
    origin, _, name = key.partition(":")
    return origin, name


# Comparing ----------------------------------------------------------------------------


def thinned(records: Sequence[Record], key: str, every: int) -> list[Record]:
    """Of the records of a key rows 0, k, 2k, ..., of each example by itself."""
    mine = [record for record in records if key in record.data]
    sizes = max((record.sizes for record in mine), key=len, default=())
    kept = []
    for lane in it.product(*map(range, sizes)):
        own = [r for r in mine if r.lanes == lane[: len(r.lanes)]]
        kept += [dataclasses.replace(r, lanes=lane, sizes=sizes) for r in own[::every]]
    return kept


def assert_reduced(
    logs: Any,
    records: Sequence[Record],
    name: Callable[[str], tuple[str, str]] | str,
    *,
    tol: float = 1e-4,
) -> None:
    """Check that each key of `logs` is the reduction of its rows, for each example.

    Args:
        logs: What `spool` returned.
        records: What the eager run wrote down.
        name: The reduction, or from a key of `logs` to that of its rows and the
            reduction.
        tol: As for `assert_logs`.
    """
    expected = by_key(records)
    names = (lambda key: (key, name)) if isinstance(name, str) else name
    for key in logs:
        origin, reduction = names(key)
        if origin in expected:
            assert_reduced_key(logs, key, expected[origin], origin, reduction, tol)
        else:
            assert not np.any(logs.valid[key]), f"{key!r} was not logged: {logs[key]}"


def assert_reduced_key(
    logs: Any, key: str, records: Sequence[Record], origin: str, name: str, tol: float
) -> None:
    sizes = max((record.sizes for record in records), key=len)
    value = jax.tree.map(plain, logs[key])
    sample = records[0].data[origin]
    shapes = [() if name == "count" else np.shape(leaf) for leaf in jax.tree.leaves(sample)]
    assert jax.tree.structure(value) == jax.tree.structure(sample), f"{key!r}: {value}"
    for lane in it.product(*map(range, sizes)):
        at = ft.partial(row_block, lane=lane, sizes=sizes, timed=False)
        where = f"{key!r} of example {lane}" if lane else f"{key!r}"
        mine = [record for record in records if record.lanes == lane[: len(record.lanes)]]
        valid = bool(at(plain(logs.valid[key]), shape=())[0]) if key in logs.valid else True
        assert valid == bool(mine), f"{where}: valid is {valid} for {len(mine)} rows"
        if not mine:
            continue
        columns = [jax.tree.leaves(record.data[origin]) for record in mine]
        for found, shape, *rows in zip(
            jax.tree.leaves(value), shapes, *columns, strict=True
        ):
            assert_close(where, at(found, shape=shape)[0], reduce_rows(name, rows), tol=tol)
        row = mine[0 if name == "first" else -1]
        assert_steps_of(row, logs, key, records, at, where, tol)


def assert_steps_of(row, logs, key, records, at, where, tol) -> None:
    for step in {step for record in records for step in record.steps}:
        assert key in logs.steps[step], f"{where} lost its step {step!r}"
        masks = logs.steps[step].valid
        there = bool(at(plain(masks[key]), shape=())[0]) if key in masks else True
        assert there == (step in row.steps), f"step {step!r} of {where}: {there}"
        if there:
            expected = row.steps[step]
            found = at(plain(logs.steps[step][key]), shape=np.shape(expected))[0]
            assert_close(f"step {step!r} of {where}", found, expected, tol=tol)
