"""`lox.load`: read logs from a store on disk."""

import itertools as it
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.random import wrap_key_data

from lox._io.flush_first import flush_first
from lox._io.save import words_of
from lox._logdict.logdict import logdict
from lox._rows.rows import Rows
from lox_host.run_key import run_key
from lox_host.store import (
    KeyRows,
    Path,
    Reader,
    align,
    open_store,
    read_key_rows,
    retry_if_stale,
)
from lox_host.tree import map_arrays


def load(
    path: Path,
    argnames: str | Sequence[str] | None = None,
    key: Any = None,
    *,
    session: str | None = None,
) -> logdict:
    """Load the logs of a run, from its newest session or from the one you name.

    Values are NumPy arrays, and typed PRNG keys are typed PRNG keys again. Only the keys
    that you ask for are read, and no code from the files is run. What this process has
    logged to the store so far is written first. Other processes may keep writing.

    Args:
        path: The folder of the store.
        argnames: The key or keys to load. None: all.
        key: The PRNG key of the run. None: the only run, or all runs in the order in which
            they were started, with an axis of runs in front; they then need the same number
            of rows. If each process of `jax.distributed` wrote a run of this key, they
            count as several.
        session: The name of a session: `run.session` in `lox.runs`. None: the newest
            session of each run.

    Returns:
        The logs that were saved, without masked rows.

    Raises:
        LookupError: If there is no such key, run or session.

    Example:
        >>> lox.save(lox.logdict({"loss": 0.5, "accuracy": 0.9}), "results")
        >>> lox.load("results", "loss")
        {'loss': 0.5}
    """
    wanted = [argnames] if isinstance(argnames, str) else argnames
    words = None if key is None else run_key(words_of(key).tolist())
    flush_first(path)
    logs = _load(path, wanted, words, session)
    if len(logs) == 1:
        return logdict.of({key: _rows(own) for key, own in logs[0].items()})
    return logdict.of(_stack_runs(path, logs))


@retry_if_stale
def _load(
    path: Path,
    wanted: Sequence[str] | None,
    key: tuple[int, ...] | None,
    session: str | None,
) -> list[dict[str, KeyRows]]:
    """Read the logs of the selected runs."""
    logs = []
    for reader, pairs in it.groupby(_select(path, key, session), key=lambda pair: pair[0]):
        ids = [id for _, id in pairs]
        for id, found in read_key_rows(reader, ids, wanted).items():
            missing = [key for key in wanted or () if key not in found]
            if missing:
                raise LookupError(
                    f"The run {reader.runs[id].name!r} in {str(path)!r} has no key "
                    f"{missing[0]!r}. All keys of its session are {reader.keys}."
                )
            logs.append(found)
    return logs


# A session, and the id of a run in it.
_Selected = tuple[Reader, int]


def _select(
    path: Path, key: tuple[int, ...] | None, session: str | None
) -> list[_Selected]:
    """Return the newest session of each selected run, and its id in that session.

    If several processes have written a run together, return those of all processes.
    """
    newest: dict[tuple[int, ...], dict[int, _Selected]] = {}
    groups: dict[tuple[int, ...], str] = {}
    for reader in _sessions(path, session):
        for run in reader.runs.values():
            # A run with several sessions is ordered by its newest one.
            before = newest.pop(run.key, {})
            together = before if groups.get(run.key) == run.group else {}
            newest[run.key] = {**together, run.process: (reader, run.id)}
            groups[run.key] = run.group
    where = "" if session is None else f" in the session {session!r}"
    if not newest:
        raise LookupError(f"The store in {str(path)!r} has no runs yet{where}.")
    if key is not None and key not in newest:
        raise LookupError(
            f"The store in {str(path)!r} has no run with the key {key}{where}. It has runs "
            f"with the keys {', '.join(map(str, sorted(newest)))}: see `lox.runs(path)`."
        )
    runs = newest.values() if key is None else [newest[key]]
    # The runs of the first process, then those of the next one, and so on.
    by_process = [pair for run in runs for pair in run.items()]
    return [selected for _, selected in sorted(by_process, key=lambda pair: pair[0])]


def _sessions(path: Path, name: str | None) -> list[Reader]:
    """Open all sessions, or the one with this name."""
    readers = open_store(path)
    names = [reader.folder.name for reader in readers]
    if name is not None and name not in names:
        raise LookupError(
            f"The store in {str(path)!r} has no session {name!r}. It has "
            f"{', '.join(names) or 'none'}: see `run.session` of `lox.runs(path)`."
        )
    return [reader for reader in readers if name in (None, reader.folder.name)]


def _rows(key_rows: KeyRows) -> Rows:
    """Return the rows as they were logged: the axis of time in its place, or none."""
    form, time = key_rows.form, key_rows.has_time
    # Leaves are numbered in order, to find those that were typed PRNG keys.
    impls = dict(form.keys)
    number = it.count()

    def place(x: np.ndarray) -> np.ndarray:
        # (rows, *lead, *batch, ...) -> (*lead, [time,] *batch, ...)
        return np.moveaxis(x, 0, form.lead) if time else x.reshape(x.shape[1:])

    def restore(x: np.ndarray) -> np.ndarray | jax.Array:
        data, impl = place(x), impls.get(next(number))
        return data if impl is None else wrap_key_data(jnp.asarray(data), impl=impl)

    value = map_arrays(restore, key_rows.value)
    return Rows(
        value=value,
        steps=map_arrays(place, key_rows.steps),
        valid=map_arrays(place, key_rows.valid),
        masks=map_arrays(place, key_rows.masks),
        time=time,
        ndim=np.ndim(jax.tree.leaves(value)[0]) - form.lead - time,
        batch=key_rows.examples[form.lead :],
        tags=form.tags,
    )


def _stack_runs(path: Path, logs: Sequence[dict[str, KeyRows]]) -> dict[str, Rows]:
    """Return the logs of several runs with an axis of runs in front."""
    keys = dict.fromkeys(it.chain(*logs))
    try:
        aligned = {key: align([own[key] for own in logs]) for key in keys}
        return {k: jax.tree.map(_stack, *map(_rows, own)) for k, own in aligned.items()}
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


def _stack(*xs: np.ndarray | jax.Array) -> np.ndarray | jax.Array:
    return jnp.stack(xs) if isinstance(xs[0], jax.Array) else np.stack(xs)
