"""`lox push`: upload the sessions that dead processes have left on this machine."""

import contextlib
import dataclasses
import pathlib
from collections.abc import Sequence

from lox_host.remote.bucket import Bucket
from lox_host.remote.remote_paths import spool_folder, spool_root
from lox_host.remote.upload import SessionUpload
from lox_host.remote.upload_log import UploadBusy
from lox_host.store import absolute, has_writer, session_folders, url_of


@dataclasses.dataclass(frozen=True)
class Pushed:
    """The result of `push_others`.

    Attributes:
        url: The address of the store.
        sessions: How many sessions were uploaded.
        rows: How many rows were uploaded.
        busy: How many sessions were skipped, because a running process uploads them.
    """

    url: str
    sessions: int
    rows: int
    busy: int


def push_others(url: str, spool: pathlib.Path | None = None) -> Pushed:
    """Upload the sessions of a store whose processes are gone.

    Args:
        url: The address of the store.
        spool: The folder with its sessions. None: the one of this machine.

    Raises:
        BucketError: If an upload fails. The remaining sessions stay in the spool.
    """
    url = absolute(url)
    sessions = rows = busy = 0
    bucket = Bucket(url)
    for folder in session_folders(spool or spool_folder(url)):
        if has_writer(folder):
            busy += 1
            continue
        try:
            upload = SessionUpload(bucket, folder)
        except UploadBusy:
            busy += 1
            continue
        except FileNotFoundError:  # another process has just removed it
            continue
        with contextlib.closing(upload):
            upload.finish()
        sessions += 1
        rows += upload.sent_rows
    return Pushed(url, sessions, rows, busy)


def spooled_urls() -> Sequence[str]:
    """Return the addresses of all stores for which the spool has sessions."""
    root = spool_root()
    folders = sorted(root.iterdir()) if root.is_dir() else []
    urls = [url_of(folder) for folder in folders if session_folders(folder)]
    return [url for url in urls if url is not None]
