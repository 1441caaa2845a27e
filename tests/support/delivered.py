"""What `tap` delivered, against the records of the eager run."""

import functools as ft
import itertools as it
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

import lox
from support.truth import Record, assert_close, keep, plain, row_block


def heard(transform: Callable, x: Any) -> tuple[Any, list[lox.logdict]]:
    """The result of a tapped function, and what it delivered.

    Args:
        transform: From a callback to the function.
        x: Its argument.
    """
    found: list[lox.logdict] = []
    out = transform(found.append)(x)
    lox.barrier()
    return out, found


def assert_delivered(
    found: Sequence[lox.logdict],
    records: Sequence[Record],
    *,
    by_key: bool = False,
    tol: float = 1e-4,
) -> None:
    """Check that `found` are `records`, in the order in which each example logs them.

    Args:
        found: What the callback got.
        records: What the eager run wrote down.
        by_key: Only the order of the rows of one key counts.
        tol: Relative and absolute, for floats.
    """
    records = [record for record in records if record.data]
    sizes = max((record.sizes for record in records), key=len, default=())
    for logs in found:
        assert logs, "nothing was logged, but the callback called"
        for leaf in jax.tree.leaves(logs):
            assert isinstance(leaf, np.ndarray), f"{type(leaf)} in {logs}"
    keys = {key for record in records for key in record.data}
    for lane in it.product(*map(range, sizes)):
        mine = [r for r in records if r.lanes == lane[: len(r.lanes)]]
        rows = [row for logs in found for row in rows_of(logs, records, lane, sizes)]
        for key in sorted(keys) if by_key else [None]:
            expected = [
                r.only({key}) if key else r for r in mine if not key or key in r.data
            ]
            own = [row for row in rows if key is None or key in row[0]]
            if key is not None:
                own = [({key: data[key]}, {key: steps[key]}) for data, steps in own]
            where = f"{key or 'what was delivered'} of example {lane}"
            assert len(own) == len(expected), (
                f"{where}: {len(own)} records instead of {len(expected)}: "
                f"{[data for data, _ in own]} for {[r.data for r in expected]}"
            )
            for i, ((data, steps), record) in enumerate(zip(own, expected, strict=True)):
                assert_record(f"record {i} of {where}", data, steps, record, tol)


def assert_record(where: str, data: dict, steps: dict, record: Record, tol: float) -> None:
    assert data.keys() == record.data.keys(), f"{where}: {data} for {record.data}"
    for key, value in data.items():
        jax.tree.map(
            ft.partial(assert_close, f"{key!r} in {where}", tol=tol),
            value,
            record.data[key],
        )
        assert steps[key].keys() == record.steps.keys(), f"steps of {where}: {steps}"
        for name, step in steps[key].items():
            assert_close(f"step {name!r} of {where}", step, record.steps[name], tol=tol)


def rows_of(logs: lox.logdict, records: Sequence[Record], lane: tuple, sizes: tuple):
    """The rows that one delivery has for an example: their values and steps by key."""
    example = next(iter(logs.steps.get("example", {}).values()), None)
    if example is not None and not is_in(example, logs, lane):
        return
    single: tuple[dict, dict] = {}, {}
    for key in logs:
        sample = next(r for r in records if key in r.data)
        rows = logs.rows()[key]
        block = ft.partial(row_block, lane=lane, sizes=sizes, timed=rows.time)
        mask = None if rows.valid is None else block(plain(rows.valid), shape=())
        shapes = jax.tree.map(np.shape, sample.data[key])
        leaves, treedef = jax.tree.flatten(rows.value)
        forms = treedef.flatten_up_to(shapes)
        columns = [
            keep(block(x, shape=s), mask) for x, s in zip(leaves, forms, strict=True)
        ]
        steps = {}
        for name, step in rows.steps.items():
            if name == "example":
                continue
            there = None
            if name in rows.masks:
                there = keep(block(plain(rows.masks[name]), shape=()), mask)
            owner = next((r for r in records if key in r.data and name in r.steps), None)
            if owner is None:
                # Only a branch that was not taken logs the step.
                assert there is not None, f"nothing was logged with the step {name!r}"
                assert not there.any(), f"nothing was logged with the step {name!r}"
                continue
            shape = np.shape(owner.steps[name])
            steps[name] = keep(block(plain(step), shape=shape), mask), there
        for i in range(len(columns[0])):
            value = jax.tree.unflatten(treedef, [column[i] for column in columns])
            own = {
                n: step[i]
                for n, (step, there) in steps.items()
                if there is None or there[i]
            }
            if rows.time:
                yield {key: value}, {key: own}
            else:
                single[0][key], single[1][key] = value, own
    if single[0]:
        yield single


def is_in(example: np.ndarray, logs: lox.logdict, lane: tuple) -> bool:
    key, *_ = logs
    rows = logs.rows()[key]
    front = rows.time + len(rows.batch)
    assert (example == example[(0,) * front]).all()
    example = example[(0,) * front]
    index = tuple(np.atleast_1d(example))
    return index == lane[: len(index)]
