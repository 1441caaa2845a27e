"""`lox.save` to a store on object storage: write a new session and upload it at once.

Objects cannot be appended to. So `lox.save` to an existing run writes the old and the new
rows to a new session, and then removes the old session if no other run is in it:

    before    session A: run 0 (rows 0 to 9)
    save      session B: run 0 (rows 0 to 9, and the new rows 10 to 14)
    after     session B

The old session goes last, so a crash leaves a run twice rather than not at all. Readers
take the newest session of a run.
"""

import contextlib
import time
from collections.abc import Sequence

from lox_host.remote.bucket import Bucket
from lox_host.remote.remote_paths import MARKER, spool_folder
from lox_host.remote.remove_sessions import LIVE, begin_remote, remove_remote
from lox_host.remote.upload import SessionUpload
from lox_host.rows import Block
from lox_host.runs.run import Run
from lox_host.store import (
    Path,
    Reader,
    Session,
    absolute,
    after,
    begin_session,
    newest_sessions,
    open_store,
    retry_if_stale,
)

# Join no small frames: the local session is removed after the upload anyway.
ALL = 1 << 62


def save_runs(
    path: Path,
    mode: str,
    runs: Sequence[Run],
    keys: tuple[str, ...],
    blocks: Sequence[Block],
) -> None:
    """Save the rows of some runs. See `lox_host.store.save_runs`.

    Raises:
        BucketError: If the upload fails. The rows are in the spool then.
    """
    url = absolute(path)
    bucket = Bucket(url)
    begin_remote(bucket, "x" if mode == "x" else "a", runs[0].process, runs[0].job)
    older = open_store(url) if mode != "x" and bucket.exists(MARKER) else []
    if mode == "a":
        keys, blocks = _with_rows_before(url, older, runs, keys, blocks)
    folder = begin_session(spool_folder(url), "a", runs[0].process, runs[0].job)
    session = Session(folder)
    for run in runs:
        session.open(run, keys)
    session.append(blocks)
    session.end(small_frames=ALL)
    with contextlib.closing(SessionUpload(bucket, folder)) as upload:
        upload.push()
    # A session that has other runs, too, stays: its rows of these runs are older ones.
    saved = {(run.key, run.process) for run in runs}
    for reader in older:
        if all((run.key, run.process) in saved for run in reader.runs.values()):
            remove_remote(bucket, reader.folder.name)


@retry_if_stale
def _with_rows_before(
    url: str,
    older: Sequence[Reader],
    runs: Sequence[Run],
    keys: tuple[str, ...],
    blocks: Sequence[Block],
) -> tuple[tuple[str, ...], list[Block]]:
    """Return the keys and rows that the runs already have, followed by the new ones."""
    newest = newest_sessions(older, runs)
    before: list[Block] = []
    known: dict[str, None] = {}
    for run in runs:
        reader = newest.get(run.id)
        if reader is None:
            continue
        if not reader.ended and time.time() - reader.last_change < LIVE:
            raise RuntimeError(
                f"A logger is writing the run {run.name!r} to {url!r}, so nothing can be "
                "added to it. Call `logger.finish` first, or save under another `key`."
            )
        id = next(id for id, old in reader.runs.items() if old.key == run.key)
        known |= dict.fromkeys(reader.saved_keys(id))
        before += [block.renamed({id: run.id}) for block in reader.blocks([id])]
    return tuple({**known, **dict.fromkeys(keys)}), [*before, *after(before, blocks)]
