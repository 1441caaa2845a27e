"""`lox.load`: the logs of a store on disk."""

import itertools as it
import os
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.random import wrap_key_data

from lox._io.save import key_words
from lox._logdict.logdict import logdict
from lox._rows.rows import Rows
from lox_host.store.folder import existing
from lox_host.store.reader import Reader, Snapshot, Stale, snapshots
from lox_host.store.series import Series, aligned, no_rows, series
from lox_host.tree import leaves, map_arrays


def load(
    path: str | os.PathLike,
    argnames: str | Sequence[str] | None = None,
    key: Any = None,
    *,
    session: str | None = None,
) -> logdict:
    """Load the logs of a run: of its newest session, or of the one that is asked for.

    Values are NumPy arrays, typed PRNG keys are what they were. Nothing else is read than
    the keys that are asked for, and no code from the files is run. This also works while
    another process writes.

    Args:
        path: The folder of the store.
        argnames: The key or keys to load. None: all.
        key: The PRNG key of the run. None: the only run, or all of them in the order in
            which they were started, with an axis of runs in front; they then need the same
            number of rows. A run that each process of `jax.distributed` wrote for itself
            counts as several.
        session: The name of a session, the `run.session` of `lox.runs`. None: of each run
            its newest.

    Returns:
        The logs that were saved, without the rows that had not really been logged.

    Raises:
        LookupError: If there is no such key, run or session.

    Example:
        >>> lox.save(lox.logdict({"loss": 0.5, "accuracy": 0.9}), "results")
        >>> lox.load("results", "loss")
        {'loss': 0.5}
    """
    wanted = [argnames] if isinstance(argnames, str) else argnames
    words = None if key is None else tuple(key_words(key).tolist())
    while True:
        try:
            return _load(path, wanted, words, session)
        except Stale:
            continue


def of_run(path: Any, now: Snapshot, run: int, keys: Sequence[str]) -> logdict:
    """Some keys of a run in one session."""
    [own] = _of_session(path, now, [run], keys)
    return logdict.of({key: _rows(rows) for key, rows in own.items()})


def _load(
    path: Any,
    wanted: Sequence[str] | None,
    key: tuple[int, ...] | None,
    session: str | None,
) -> logdict:
    chosen = _chosen(path, key, session)
    logs = [
        own
        for now, pairs in it.groupby(chosen, key=lambda pair: pair[0])
        for own in _of_session(path, now, [run for _, run in pairs], wanted)
    ]
    if len(logs) > 1:
        return logdict.of(_stacked(path, logs))
    return logdict.of({key: _rows(own) for key, own in logs[0].items()})


def _chosen(
    path: Any, key: tuple[int, ...] | None, session: str | None
) -> list[tuple[Snapshot, int]]:
    """For each run that is asked for, its newest session and its id in it.

    If several processes have written it together, those of all of them.
    """
    newest: dict[tuple[int, ...], dict[int, tuple[Snapshot, int]]] = {}
    groups: dict[tuple[int, ...], str] = {}
    for now, run in _runs(path, session):
        words, group = tuple(run["key"]), run["group"]
        # A run that is there again has the place of its newest session.
        before = newest.pop(words, {}) if groups.get(words) == group else {}
        newest.pop(words, None)
        newest[words] = {**before, run["process"]: (now, run["id"])}
        groups[words] = group
    where = "" if session is None else f" in the session {session!r}"
    if not newest:
        raise LookupError(f"The store in {str(path)!r} has no runs yet{where}.")
    if key is None:
        return _by_process(*newest.values())
    if key not in newest:
        raise LookupError(
            f"The store in {str(path)!r} has no run with the key {key}{where}. It has runs "
            f"with the keys {', '.join(map(str, sorted(newest)))}: see `lox.runs(path)`."
        )
    return _by_process(newest[key])


def _by_process(*runs: dict[int, Any]) -> list:
    """The runs of the first process, then those of the next one, and so on."""
    every = [(process, own) for each in runs for process, own in each.items()]
    return [own for _, own in sorted(every, key=lambda pair: pair[0])]


def _runs(path: Any, name: str | None) -> list[tuple[Snapshot, dict[str, Any]]]:
    """The runs of all sessions, or of the one with this name."""
    every = list(snapshots(existing(path)))
    names = [now.folder.name for now in every]
    if name is not None and name not in names:
        raise LookupError(
            f"The store in {str(path)!r} has no session {name!r}. It has "
            f"{', '.join(names) or 'none'}: see `run.session` of `lox.runs(path)`."
        )
    chosen = (now for now in every if name in (None, now.folder.name))
    return [(now, run) for now in chosen for run in now.runs.values()]


def _of_session(
    path: Any, now: Snapshot, ids: Sequence[int], wanted: Sequence[str] | None
) -> list[dict[str, Series]]:
    """The logs of some runs of a session."""
    keys = now.keys if wanted is None else [key for key in wanted if key in now.keys]
    with Reader(now) as reader:
        every = {key: series(reader, key, ids) for key in keys}
    logs = []
    for run in ids:
        empty = {key: no_rows(now, key) for key in now.empty(run)}
        found = {key: every[key].get(run, empty.get(key)) for key in keys}
        mine = {key: own for key, own in found.items() if own is not None}
        missing = [key for key in wanted or () if key not in mine]
        if missing:
            raise LookupError(
                f"The run {now.runs[run]['name']!r} in {str(path)!r} has no key "
                f"{missing[0]!r}. All keys of its session are {now.keys}."
            )
        logs.append(mine)
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
    value = map_arrays(restored, own.value)
    steps, masks, valid = (map_arrays(placed, x) for x in (own.steps, own.masks, own.valid))
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


def _stacked(path: Any, logs: Sequence[dict[str, Series]]) -> dict[str, Rows]:
    """The logs of several runs with an axis of runs in front."""
    keys = dict.fromkeys(it.chain(*logs))
    try:
        every = {key: aligned([own[key] for own in logs]) for key in keys}
        return {k: jax.tree.map(_stack, *map(_rows, own)) for k, own in every.items()}
    except (KeyError, TypeError, ValueError) as error:
        lengths = [{key: len(rows) for key, rows in own.items()} for own in logs]
        other = next((own for own in lengths if own != lengths[0]), lengths[0])
        raise ValueError(
            f"The {len(logs)} runs in {str(path)!r} cannot be loaded as one: they differ "
            "in their keys, shapes, dtypes or numbers of rows, such as "
            f"{lengths[0]} and {other}. Load each alone, "
            "`lox.load(path, key=run.key, session=run.session)` for a run of "
            "`lox.runs(path)`."
        ) from error


def _stack(*xs: Any) -> Any:
    return jnp.stack(xs) if isinstance(xs[0], jax.Array) else np.stack(xs)
