"""The folder of a store: what marks it, its sessions, and what may be removed."""

import contextlib
import json
import os
import pathlib
import re
import secrets
import time

from lox_host.store import journal

MARKER, FORMAT = "lox.json", 1
_SESSION = re.compile(r"\d{8}-\d{6}-\d{9}-\d+-[0-9a-f]{8}")
_FILE = re.compile(r"journal(\.new)?|\d{4,}\.arrows(\.new)?")

Path = str | os.PathLike[str]


def is_store(path: Path) -> bool:
    """Return whether a folder is a store."""
    return os.path.isfile(os.path.join(path, MARKER))


def find_stores(folder: Path) -> list[str]:
    """Return the stores in a folder, at most two folders deep."""
    here = pathlib.Path(folder)
    found = (here.glob(f"{depth}{MARKER}") for depth in ("", "*/", "*/*/"))
    return [str(path.parent) for paths in found for path in sorted(paths)]


def begin_session(path: Path, mode: str, process: int = 0, job: str = "") -> pathlib.Path:
    """Make the folder of a new session, and the store if there is none.

    What other processes of the same job have just written stays, whatever the mode.

    Args:
        path: The folder of the store.
        mode: `"a"` adds to what is there, `"w"` removes what lox wrote there before, `"x"`
            raises if there is a store.
        process: The number of this process.
        job: The same for all processes that belong together, eight hexadecimal digits.
    """
    folder, job = pathlib.Path(os.path.expanduser(path)), job or secrets.token_hex(4)
    check_mode(mode)
    if mode == "x" and _is_taken(folder, process, job):
        raise FileExistsError(
            f"There is a store in {str(path)!r} already, and `mode` is 'x'. Use another "
            "path, `mode='a'` to add to it, or `mode='w'` to write it anew."
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for session in _older_sessions(folder, process, job) if mode == "w" else []:
            _remove(session)
        session = folder / _session_name(process, job)
        session.mkdir()
        # After the session: a store without any is not one that this job has just begun.
        _mark(folder)
    except OSError as error:
        raise type(error)(
            f"Cannot write to a store in {str(path)!r}: {error.strerror} "
            f"({error.filename!r}). Give a folder that can be written to, or made."
        ) from error
    return session


def check_mode(mode: str) -> None:
    """Raise if a mode is none of those of `begin_session`."""
    if mode not in ("a", "w", "x"):
        raise ValueError(f'`mode` is {mode!r}; it is "a" (add), "w" (write anew) or "x".')


def sessions_of(path: Path) -> list[pathlib.Path]:
    """Return the folders of all sessions of a store, the oldest first."""
    folder = pathlib.Path(os.path.expanduser(path))
    if not is_store(folder):
        what = "is not there" if not folder.exists() else f"has no file {MARKER!r}"
        raise FileNotFoundError(
            f"There is no store in {str(path)!r}: it {what}. Give the path that "
            "`lox.save` or `SaveLogger` was given."
        )
    version = json.loads((folder / MARKER).read_text())["format"]
    if version > FORMAT:
        raise ValueError(
            f"The store in {str(path)!r} has the format {version}, and this version of lox "
            f"knows none after {FORMAT}. Install a newer one: `pip install -U jax-lox`."
        )
    return sorted(s for s in _session_folders(folder) if (s / journal.NAME).is_file())


def _session_folders(store: pathlib.Path) -> list[pathlib.Path]:
    """Return all folders with the name of a session, even those that a crash has left."""
    named = (path for path in store.iterdir() if _SESSION.fullmatch(path.name))
    return [path for path in named if path.is_dir() and not path.is_symlink()]


def _older_sessions(store: pathlib.Path, process: int, job: str) -> list[pathlib.Path]:
    """Return the sessions that other processes of the job have not just begun."""
    older = []
    for session in _session_folders(store):
        *_, its_process, its_job = session.name.split("-")
        if its_job != job or int(its_process) == process:
            older.append(session)
    return older


def _is_taken(folder: pathlib.Path, process: int, job: str) -> bool:
    """Return whether there is a store that other processes of the job have not made."""
    if not is_store(folder):
        return False
    return bool(_older_sessions(folder, process, job)) or not _session_folders(folder)


def _session_name(process: int, job: str) -> str:
    """Return a name that sorts by time, and that no other session has."""
    now = time.time_ns()
    date = time.strftime("%Y%m%d-%H%M%S", time.gmtime(now // 10**9))
    return f"{date}-{now % 10**9:09d}-{process}-{job}"


def _mark(folder: pathlib.Path) -> None:
    if is_store(folder):
        return
    # Two processes may do this at once, and a reader sees all of it or nothing.
    new = folder / f"{MARKER}.{secrets.token_hex(4)}"
    new.write_text(json.dumps({"format": FORMAT}) + "\n")
    os.replace(new, folder / MARKER)


def _remove(session: pathlib.Path) -> None:
    """Remove the files of a session, the journal first: without it nothing counts."""
    with contextlib.suppress(FileNotFoundError):  # another process does the same
        ours = [path for path in session.iterdir() if _FILE.fullmatch(path.name)]
        for path in sorted(ours, key=lambda path: path.name != journal.NAME):
            path.unlink(missing_ok=True)
        if not any(session.iterdir()):
            session.rmdir()
