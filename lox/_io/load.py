"""`lox.load`: read logs from stores on disk."""

import itertools as it
import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.random import wrap_key_data

from lox._io.flush_first import flush_first
from lox._io.save import words_of
from lox._logdict.logdict import logdict
from lox._rows.histogram import Histogram
from lox._rows.rows import Rows
from lox_host.histogram import histograms_in
from lox_host.reading import (
    SelectedRun,
    Where,
    all_runs,
    describe_runs,
    find_stores,
    load_key_rows,
    load_stacked,
    newest,
    no_runs,
    older_sessions,
    padded,
    pick,
    run_labels,
    select_where,
)
from lox_host.runs.run_id import Key, run_key
from lox_host.store import (
    KeyRows,
    Path,
    StackedRows,
    StoredRun,
    retry_if_stale,
)
from lox_host.tree import leaves, map_arrays

# What `run` may be in the end: a word, an element of `lox.runs`, or the data of a key.
_Word = str | StoredRun | Key


def load(
    path: Path | Iterable[Path],
    argnames: str | Sequence[str] | None = None,
    *,
    run: Any = None,
    where: Where | None = None,
    session: str | None = None,
    key: Any = None,
) -> logdict:
    """Load the logs of a run, from its newest session or from the one you name.

    Values are NumPy arrays. Histograms and typed PRNG keys come back as such. Only the
    keys that you ask for are read, and no code from the files is run. What this process
    has logged to the store so far is written first. Other processes may keep writing.

    Several runs are stacked along a leading axis, in the order in which they were started.
    If a run has fewer rows than others, or lacks a key, `logs.valid` says which rows exist.
    The tables of `logs.to_pandas()` and `logs.to_polars()` have the name and the config of
    the run in each line.

    Args:
        path: A store, which is a folder or an address such as `"s3://bucket/exp1"`; a
            folder that contains stores; a glob such as `"multirun/*/results"`; or several
            of these.
        argnames: The key or keys to load. None: all.
        run: The run: anything that `lox ls` shows, which is a name, the beginning of one,
            an index such as `"#3"`, a session, or a key; or a PRNG key, the number that
            the run was started with, or an element of `lox.runs(path)`. A number that is
            not a key is an index if all keys are PRNG keys. None: all runs.
        where: Which runs, as in `lox.runs`: `{"lr": 1e-3}` or `"lr > 1e-3"`.
        session: The name of a session: `run.session` in `lox.runs`. None: the newest
            session of each run, with a warning if there are older ones.
        key: The PRNG key of the run, as in `lox.save`; the same as `run`.

    Raises:
        LookupError: If there is no such key, run or session.

    Example:
        >>> lox.save(lox.logdict({"loss": 0.5, "accuracy": 0.9}), "results")
        >>> lox.load("results", "loss")
        {'loss': 0.5}
    """
    wanted = [argnames] if isinstance(argnames, str) else argnames
    if run is not None and key is not None:
        raise TypeError("`lox.load` got both `run` and `key`. Give only one of them.")
    paths = [path] if isinstance(path, str) or not isinstance(path, Iterable) else [*path]
    word = _word(run) if key is None else run_key(words_of(key).tolist())
    flush_first(paths)
    runs, older, rows = _load(paths, wanted, word, where, session)
    if older:
        warnings.warn(_newest_of(older, runs), stacklevel=2)
    labels = run_labels(runs, is_axis=len(runs) > 1)
    return logdict.of(rows, labels)


def _word(run: Any) -> _Word | None:
    """Return what a run was called as a word, or as the data of a key."""
    if run is None or isinstance(run, str | StoredRun):
        return run
    return run_key(words_of(run).tolist())


@retry_if_stale
def _load(
    paths: Sequence[Path],
    wanted: Sequence[str] | None,
    word: _Word | None,
    where: Where | None,
    session: str | None,
) -> tuple[list[SelectedRun], list[str], dict[str, Rows]]:
    """Read the logs of the selected runs, and find their older sessions."""
    runs, older = _select(paths, word, where, session)
    stacked = load_stacked(runs, wanted)
    if stacked is not None:
        return runs, older, {key: _rows(own, runs=1) for key, own in stacked.items()}
    logs = load_key_rows(runs, wanted)
    if len(logs) == 1:
        return runs, older, {key: _rows(own) for key, own in logs[0].items()}
    return runs, older, _stack_runs(runs, logs)


def _select(
    paths: Sequence[Path], word: _Word | None, where: Where | None, session: str | None
) -> tuple[list[SelectedRun], list[str]]:
    """Return the selected runs, each in its newest session unless one is named.

    If none is named, this also returns the names of their older sessions.
    """
    runs = all_runs(paths, session)
    if session is not None:
        runs = _of_session(paths, runs, session)
    if not runs:
        raise no_runs(find_stores(paths))
    if word is None:
        selected = newest(runs)
    elif isinstance(word, str):
        selected = pick(runs, word)
    elif isinstance(word, StoredRun):
        selected = [run for run in runs if _is_same(run, word)]
        if not selected:
            raise LookupError(f"The run {word.name!r} no longer exists.")
    else:
        selected = _with_key(runs, word, session)
    if where is not None:
        selected = _where(paths, selected, where)
    # Warn of older sessions only if the user has not said which one is meant.
    is_open = session is None and _means_the_newest(word)
    return selected, older_sessions(runs, selected) if is_open else []


def _means_the_newest(word: _Word | None) -> bool:
    """Return whether a word leaves open which session is meant."""
    if isinstance(word, str):
        return not (word.startswith("#") or "@" in word)
    return not isinstance(word, StoredRun)


def _newest_of(older: Sequence[str], runs: Sequence[SelectedRun]) -> str:
    """Say that there are older sessions than those that are loaded."""
    stores = ", ".join(repr(store) for store in dict.fromkeys(run.store for run in runs))
    others = "is an older one" if len(older) == 1 else f"are {len(older)} older ones"
    return (
        f"What you load from {stores} is the newest session. There {others}: "
        f"`lox.runs(path)` lists them, and `lox.load(path, session={older[-1]!r})` loads "
        "the last. To continue a run instead of starting it again, use `resume=True`."
    )


def _where(
    paths: Sequence[Path], selected: Sequence[SelectedRun], where: Where
) -> list[SelectedRun]:
    """Return those of the runs that meet a condition."""
    meant = {run.index for run in select_where(describe_runs(selected), where)}
    if not meant:
        stores = ", ".join(map(repr, find_stores(paths)))
        raise LookupError(
            f"None of the {len(selected)} runs in {stores} matches {where}. "
            "`lox.runs(path)` lists them."
        )
    return [run for run in selected if run.index in meant]


def _is_same(run: SelectedRun, stored: StoredRun) -> bool:
    is_same_session = run.reader.folder.name == stored.session
    own, other = (
        (run.name, run.key, run.process, run.launch, run.start, repr(run.config))
        for run in (run.run, stored)
    )
    return is_same_session and own == other


def _with_key(
    runs: Sequence[SelectedRun], key: Key, session: str | None
) -> list[SelectedRun]:
    """Return the runs that were started with a key: several if their configs differ."""
    found = [run for run in runs if run.run.key == key]
    keys = {run.run.key for run in runs}
    # PRNG keys have two or four words. If all runs have such keys, a number is an index.
    is_number = len(key) == 1 and all(len(words) in (2, 4) for words in keys)
    if not found and is_number and key[0] < len(runs):
        return [runs[key[0]]]
    if not found:
        where = "" if session is None else f" in the session {session!r}"
        stores = dict.fromkeys(run.store for run in runs)
        raise LookupError(
            f"The store in {', '.join(map(repr, stores))} has no run with the key {key}"
            f"{where}. It has runs with the keys {', '.join(map(str, sorted(keys)))}: see "
            "`lox.runs(path)`."
        )
    return newest(found)


def _of_session(
    paths: Sequence[Path], runs: Sequence[SelectedRun], session: str
) -> list[SelectedRun]:
    """Return the runs of the session with this name."""
    found = [run for run in runs if run.reader.folder.name == session]
    if found:
        return found
    names = dict.fromkeys(run.reader.folder.name for run in runs)
    raise LookupError(
        f"The store in {', '.join(map(repr, find_stores(paths)))} has no session "
        f"{session!r}. It has {', '.join(names) or 'none'}: see `run.session` of "
        "`lox.runs(path)`."
    )


def _rows(key_rows: KeyRows | StackedRows, *, runs: int = 0) -> Rows:
    """Return the rows as they were logged: the axis of time in its place, or none.

    Args:
        key_rows: The rows.
        runs: How many axes of runs their arrays have in front.
    """
    form = key_rows.form
    time = form.time or len(key_rows) != 1
    leaf = next(array for _, array in leaves(key_rows.value))
    # Leaves are numbered in order, to find those that were typed PRNG keys.
    impls = dict(form.keys)
    number = it.count()

    def place(x: np.ndarray) -> np.ndarray:
        # (*runs, rows, *lead, *batch, ...) -> (*runs, *lead, [time,] *batch, ...)
        if time:
            return np.moveaxis(x, runs, runs + form.lead)
        return x.squeeze(runs)

    def restore(x: np.ndarray) -> np.ndarray | jax.Array:
        data, impl = place(x), impls.get(next(number))
        return data if impl is None else wrap_key_data(jnp.asarray(data), impl=impl)

    value = histograms_in(map_arrays(restore, key_rows.value), Histogram)
    return Rows(
        value=value,
        steps=map_arrays(place, key_rows.steps),
        valid=map_arrays(place, key_rows.valid),
        masks=map_arrays(place, key_rows.masks),
        time=time,
        ndim=np.ndim(jax.tree.leaves(value)[0]) - runs - form.lead - time,
        batch=leaf.shape[1 + runs + form.lead : 1 + runs + form.batch],
        tags=form.tags,
    )


def _stack_runs(
    runs: Sequence[SelectedRun], logs: Sequence[dict[str, KeyRows]]
) -> dict[str, Rows]:
    """Return the logs of several runs with an axis of runs in front."""
    return {
        key: jax.tree.map(_stack, *map(_rows, padded(runs, logs, key)))
        for key in dict.fromkeys(it.chain(*logs))
    }


def _stack(*xs: np.ndarray | jax.Array) -> np.ndarray | jax.Array:
    return jnp.stack(xs) if isinstance(xs[0], jax.Array) else np.stack(xs)
