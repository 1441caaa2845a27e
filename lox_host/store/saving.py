"""Save finished logs: add their rows to the runs of a store, or replace these runs.

Rows are added where their run already is, at the end of its newest session, so that a run
that is saved two hundred times is one session of a few files. If that cannot be added to,
because it is damaged or of an older format, what it has is copied to a new one.

    lox.save(logs, "results", key=7)       the store has run 7 in session A, run 8 in B

    mode "a"    A: run 7, now with more rows      B
    mode "w"    C: run 7, with the new rows       A: without run 7, or removed      B
    mode "x"    an error

New rows are written before old ones are removed. A process that is killed in between leaves
a run twice, of which readers take the newest, and never none at all.
"""

import contextlib
import dataclasses
import time
from collections.abc import Mapping, Sequence

from lox_host.rows import Block
from lox_host.runs.run import Run
from lox_host.store.address import is_url, remote
from lox_host.store.folder import (
    Path,
    begin_session,
    check_mode,
    is_store,
    remove_session,
    sessions_of,
)
from lox_host.store.format.frame_reader import StaleSession
from lox_host.store.format.journal import NAME
from lox_host.store.format.lock import is_locked
from lox_host.store.reader import Reader, read_session
from lox_host.store.session import Session, SessionBusy

# How many seconds another process may take to save to the same run.
PATIENCE = 5.0
# How many small frames a run may have before they are joined.
SMALL_FRAMES = 64


def save_runs(
    path: Path,
    mode: str,
    runs: Sequence[Run],
    keys: tuple[str, ...],
    blocks: Sequence[Block],
) -> None:
    """Save the rows of some runs.

    Args:
        path: The folder of the store.
        mode: `"a"` adds the rows to the runs with the same keys, `"w"` replaces these, and
            no others, `"x"` raises if there is a store.
        runs: The runs. Their ids are those in the blocks.
        keys: All keys that were logged, in their order.
        blocks: The rows.
    """
    check_mode(mode)
    if is_url(path):
        remote().save_runs(path, mode, runs, keys, blocks)
        return
    # Before anything is written: in mode "w", what is written now must not be removed.
    older = [] if mode == "x" or not is_store(path) else _read_sessions(path)
    if mode == "a":
        newest = newest_sessions(older, runs)
        for reader in dict.fromkeys(newest.values()):
            its_runs = [run for run in runs if newest.get(run.id) is reader]
            _add_to(path, reader, its_runs, keys, _of_runs(blocks, its_runs))
        runs = [run for run in runs if run.id not in newest]
    if runs:
        save_session(path, mode, runs, keys, _of_runs(blocks, runs))
    if mode == "w":
        for reader in older:
            _remove_from(reader, runs)


def save_session(
    path: Path,
    mode: str,
    runs: Sequence[Run],
    keys: tuple[str, ...],
    blocks: Sequence[Block],
) -> None:
    """Save the rows of some runs as a new session, whatever other sessions have."""
    if is_url(path):
        remote().save_runs(path, mode, runs, keys, blocks)
        return
    first = runs[0]
    # Remove the old runs only after the new ones are written.
    folder = begin_session(path, "a" if mode == "w" else mode, first.process, first.job)
    session = Session(folder)
    for run in runs:
        session.open(run, keys)
    session.append(blocks)
    session.end()


def _add_to(
    path: Path,
    reader: Reader,
    runs: Sequence[Run],
    keys: tuple[str, ...],
    blocks: Sequence[Block],
) -> None:
    """Add rows to runs that a session has already."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            session = Session.reopen(reader)
            break
        except StaleSession:
            reader = read_session(reader.folder)
        except SessionBusy:
            if time.monotonic() > deadline:
                raise RuntimeError(
                    f"A logger is writing the run {runs[0].name!r} to {str(path)!r}, so "
                    "nothing can be added to it. Call `logger.finish` first, or save under "
                    "another `key`."
                ) from None
            time.sleep(0.05)
    ids = {run.key: id for id, run in reader.runs.items()}
    if session is None:
        # It cannot be added to, so what it has of these runs is written again, in front of
        # the new rows.
        before = [
            block.renamed({ids[run.key]: run.id})
            for run in runs
            for block in reader.blocks([ids[run.key]])
        ]
        saved = (reader.saved_keys(ids[run.key]) for run in runs)
        all_keys = tuple(dict.fromkeys([*(key for some in saved for key in some), *keys]))
        same = []
        for run in runs:
            # It stays the same run: by what it is known to people, and by its identity.
            old = reader.runs[ids[run.key]]
            fields = {name: getattr(old, name) for name in ("name", "config", "group")}
            same.append(dataclasses.replace(run, **fields, tags=old.tags))
        save_session(path, "a", same, all_keys, [*before, *after(before, blocks)])
        return
    for run in runs:
        old = reader.runs[ids[run.key]]
        saved = reader.saved_keys(old.id)
        # Another line for the run, with more keys: the last one counts.
        if not set(keys) <= set(saved):
            session.open(old, tuple(dict.fromkeys([*saved, *keys])))
    renamed = {run.id: ids[run.key] for run in runs}
    session.append([block.renamed(renamed) for block in blocks])
    session.end(small_frames=SMALL_FRAMES)


def after(before: Sequence[Block], blocks: Sequence[Block]) -> list[Block]:
    """Number the rows of some blocks so that they come after those of others."""
    first = max((int(block.order.max()) + 1 for block in before if len(block)), default=0)
    return [dataclasses.replace(block, order=block.order + first) for block in blocks]


def _remove_from(reader: Reader, runs: Sequence[Run]) -> None:
    """Remove runs with the same keys from a session, unless it is being written."""
    replaced = {(run.key, run.process) for run in runs}
    ids = {id for id, run in reader.runs.items() if (run.key, run.process) in replaced}
    if not ids or is_locked(reader.folder / NAME):
        return
    if ids == reader.runs.keys():
        remove_session(reader.folder)
        return
    # What cannot be changed stays an older session of the run.
    with contextlib.suppress(StaleSession, SessionBusy):
        session = Session.reopen(reader)
        if session is not None:
            session.remove(ids)
            session.close()


def _read_sessions(path: Path) -> list[Reader]:
    """Open all sessions that can be read, without a warning about the others."""
    readers = []
    for folder in sessions_of(path)[0]:
        with contextlib.suppress(OSError):
            readers.append(read_session(folder))
    return readers


def newest_sessions(readers: Sequence[Reader], runs: Sequence[Run]) -> Mapping[int, Reader]:
    """Return, by the id of each run that the store has, its newest session there."""
    newest: dict[tuple[tuple[int, ...], int], Reader] = {}
    for reader in readers:
        for run in reader.runs.values():
            newest[run.key, run.process] = reader
    places = {run.id: newest.get((run.key, run.process)) for run in runs}
    return {id: reader for id, reader in places.items() if reader is not None}


def _of_runs(blocks: Sequence[Block], runs: Sequence[Run]) -> list[Block]:
    return [block.of_runs([run.id for run in runs]) for block in blocks]
