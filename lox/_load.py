"""`lox.load`: the logs of a store on disk."""

import itertools as it
import os
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.random import wrap_key_data

from ._logdict import logdict
from ._rows import Rows
from ._save import key_words
from ._store._folder import existing
from ._store._read import Reader, Snapshot, Stale, snapshots
from ._store._series import Series, series
from ._writer import leaves, mapped


def load(
    path: str | os.PathLike, argnames: str | Sequence[str] | None = None, key: Any = None
) -> logdict:
    """Load the logs of a run: of its newest session.

    Values are NumPy arrays, typed PRNG keys are what they were. Nothing else is read than
    the keys that are asked for, and no code from the files is run. This also works while
    another process writes.

    Args:
        path: The folder of the store.
        argnames: The key or keys to load. None: all.
        key: The PRNG key of the run. None: the only run, or all of them, with an axis of
            runs in front; they then need the same number of rows.

    Returns:
        The logs that were saved, without the rows that had not really been logged.

    Example:
        >>> folder = getfixture("tmp_path")
        >>> lox.save(lox.logdict({"loss": 0.5, "accuracy": 0.9}), folder)
        >>> lox.load(folder, "loss")
        {'loss': 0.5}
    """
    wanted = [argnames] if isinstance(argnames, str) else argnames
    while True:
        try:
            return _load(
                path, wanted, None if key is None else tuple(key_words(key).tolist())
            )
        except Stale:
            continue


def _load(path: Any, wanted: Sequence[str] | None, key: tuple[int, ...] | None) -> logdict:
    chosen = _chosen(path, key)
    sessions = it.groupby(chosen, key=lambda pair: pair[0])
    logs = [
        own
        for now, pairs in sessions
        for own in _of_session(path, now, [run for _, run in pairs], wanted)
    ]
    return logdict.of(logs[0] if len(logs) == 1 else _stacked(path, logs))


def _chosen(path: Any, key: tuple[int, ...] | None) -> list[tuple[Snapshot, int]]:
    """For each run that is asked for, its newest session and its id in it."""
    newest: dict[tuple[int, ...], tuple[Snapshot, int]] = {}
    for now in snapshots(existing(path)):
        newest |= {tuple(run["key"]): (now, run["id"]) for run in now.runs.values()}
    if not newest:
        raise LookupError(f"The store in {str(path)!r} has no runs yet.")
    if key is None:
        return sorted(newest.values(), key=lambda pair: (pair[0].folder, pair[1]))
    if key not in newest:
        raise LookupError(
            f"The store in {str(path)!r} has no run with the key {key}. It has runs with "
            f"the keys {', '.join(map(str, sorted(newest)))}: see `lox.runs(path)`."
        )
    return [newest[key]]


def _of_session(
    path: Any, now: Snapshot, ids: Sequence[int], wanted: Sequence[str] | None
) -> list[dict[str, Rows]]:
    """The logs of some runs of a session."""
    only = ids[0] if len(ids) == 1 else None
    keys = now.keys if wanted is None else [key for key in wanted if key in now.keys]
    with Reader(now) as reader:
        every = {key: series(reader, key, only) for key in keys}
    by_run = {key: own.by_run() for key, own in every.items()}
    logs = []
    for run in ids:
        # A key without rows, of a loop without iterations, is one of all runs.
        mine = {
            key: by_run[key].get(run, own)
            for key, own in every.items()
            if run in by_run[key] or not now.has_rows(key)
        }
        missing = [key for key in wanted or () if key not in mine]
        if missing:
            raise LookupError(
                f"The run {now.runs[run]['name']!r} in {str(path)!r} has no key "
                f"{missing[0]!r}. All keys of its session are {now.keys}."
            )
        logs.append({key: _rows(own) for key, own in mine.items()})
    return logs


def _rows(own: Series) -> Rows:
    """The rows as they were logged: the axis of time in its place, or none."""
    form, time = own.form, own.form.time or len(own) != 1
    impls = dict(form.keys)
    number = it.count()

    def placed(x: np.ndarray) -> np.ndarray:
        # (rows, *lead, *batch, ...) -> (*lead, [time,] *batch, ...)
        return np.moveaxis(x, 0, form.lead) if time else x.reshape(x.shape[1:])

    def restored(x: np.ndarray) -> Any:
        data, impl = placed(x), impls.get(next(number))
        return data if impl is None else wrap_key_data(jnp.asarray(data), impl=impl)

    first = next(x for _, x in leaves(own.value))
    value = mapped(restored, own.value)
    steps, masks, valid = (mapped(placed, x) for x in (own.steps, own.masks, own.valid))
    return Rows(
        value=value,
        steps=steps,
        valid=valid,
        masks=masks,
        time=time,
        ndim=np.ndim(jax.tree.leaves(value)[0]) - form.lead - time,
        batch=first.shape[1 + form.lead : 1 + form.batch],
        tags=form.tags,
    )


def _stacked(path: Any, logs: Sequence[dict[str, Rows]]) -> dict[str, Rows]:
    """The logs of several runs with an axis of runs in front."""
    kinds = {str(jax.tree.map(np.shape, own)) for own in logs}
    if len(kinds) > 1:
        lengths = [{key: rows.length for key, rows in own.items()} for own in logs]
        other = next((own for own in lengths if own != lengths[0]), lengths[0])
        raise ValueError(
            f"The {len(logs)} runs in {str(path)!r} cannot be loaded as one: they differ "
            f"in their keys, steps or numbers of rows, such as {lengths[0]} and {other}. "
            "Load each alone, `lox.load(path, key=run.key)` for a run of `lox.runs(path)`."
        )
    return jax.tree.map(_stack, *logs)


def _stack(*xs: Any) -> Any:
    return jnp.stack(xs) if isinstance(xs[0], jax.Array) else np.stack(xs)
