"""Remove sessions from object storage, as the `mode` of a writer asks for."""

import time

from lox_host.remote.bucket import Bucket
from lox_host.remote.manifest import is_over
from lox_host.remote.remote_paths import (
    MANIFESTS,
    MARKER,
    manifest_path,
    rows_path,
    runs_path,
    session_of,
)
from lox_host.store import is_session_name

# A session without an end that changed within this many seconds counts as being written.
LIVE = 60.0


def begin_remote(bucket: Bucket, mode: str, process: int, job: str) -> None:
    """Prepare a store for a session of a job.

    Args:
        bucket: The store, which may not exist yet.
        mode: `"a"` adds to the store and makes no request, so that a program starts even
            without a network. `"w"` removes all sessions that are not being written. `"x"`
            raises if there is any session. Sessions that other processes of the same job
            have just begun do not count.
        process: The number of this process.
        job: A text that is the same for all processes that belong together.
    """
    if mode == "a":
        return
    found = [session_of(manifest.path) for manifest in bucket.objects(MANIFESTS)]
    names = [name for name in found if is_session_name(name)]
    others = []
    for name in names:
        *_, its_process, its_job = name.split("-")
        if its_job != job or int(its_process) == process:
            others.append(name)
    if mode == "x" and (others or (not names and bucket.exists(MARKER))):
        raise FileExistsError(
            f"There is a store in {bucket.url!r} already, and `mode` is 'x'. Use another "
            "path, `mode='a'` to add to it, or `mode='w'` to replace it."
        )
    for name in others if mode == "w" else ():
        remove_remote(bucket, name)


def remove_remote(bucket: Bucket, session: str) -> bool:
    """Remove a session unless it is being written, and return whether it was removed."""
    objects = [
        *bucket.objects(rows_path(session).rstrip("/")),
        *bucket.objects(runs_path(session).rstrip("/")),
    ]
    newest = max((found.modified for found in objects), default=0.0)
    if time.time() - newest < LIVE and not is_over(bucket, session):
        return False
    # Delete the manifest first. Without it, lox ignores the other objects.
    bucket.delete([manifest_path(session)])
    bucket.delete([found.path for found in objects])
    return True
