"""The folder of a store: its marker, its list of sessions, and how sessions are removed.

The file `sessions` lists all sessions, in lines like those of a journal. A session gets a
line when it begins, and another one when it is removed. So a reader notices if a session
has been lost.

    77aa01d2 {"session":"20260131-235959-..."}
    0c2f9e11 {"removed":"20260131-235959-..."}
"""

import contextlib
import datetime
import json
import os
import pathlib
import re
import time
import warnings

from lox_host.store.address import Path, is_url, remote
from lox_host.store.format import journal
from lox_host.store.format.files import file_size, is_file, read_file
from lox_host.store.format.lock import is_locked

MARKER, LIST, FORMAT = "lox.json", "sessions", 3
# The format of stores on object storage, whose rows are in Parquet.
OBJECTS_FORMAT = 2
_SESSION = re.compile(r"\d{8}-\d{6}-\d{9}-\d+-[0-9a-f]{8}")
_DATE = "%Y%m%d-%H%M%S"
_FILE = re.compile(r"journal(\.new)?|\d{4,}\.arrows(\.new)?|uploads|\d{6,}.*\.parquet")


def is_store(path: Path) -> bool:
    """Return whether a folder or an address holds a store."""
    if is_url(path):
        return remote().is_store(os.fspath(path))
    return is_file(pathlib.Path(path) / MARKER)


def find_stores(folder: Path) -> list[str]:
    """Return the stores in a folder, at most two folders deep, or at an address."""
    if is_url(folder):
        return remote().expand(os.fspath(folder))
    here = pathlib.Path(folder)
    found = (here.glob(f"{depth}{MARKER}") for depth in ("", "*/", "*/*/"))
    return [str(path.parent) for paths in found for path in sorted(paths)]


def begin_session(path: Path, mode: str, process: int = 0, job: str = "") -> pathlib.Path:
    """Create the folder of a new session, and the store if it does not exist.

    In every mode, sessions that other processes of the same job have just begun stay, and
    so do sessions that another logger is writing.

    Args:
        path: The folder of the store.
        mode: `"a"` adds to the store, `"w"` removes what lox wrote there before, `"x"`
            raises if there is a store.
        process: The number of this process.
        job: Eight hexadecimal digits, the same for all processes that belong together.
    """
    folder, job = pathlib.Path(os.path.expanduser(path)), job or os.urandom(4).hex()
    check_mode(mode)
    if _has_objects(folder):
        raise ValueError(
            f"The store in {str(path)!r} has the layout of object storage. To write to it, "
            f"give its address: 'file://{folder.absolute()}'."
        )
    if mode == "x" and _is_taken(folder, process, job):
        raise FileExistsError(
            f"There is a store in {str(path)!r} already, and `mode` is 'x'. Use another "
            "path, `mode='a'` to add to it, or `mode='w'` to replace it."
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for session in _older_sessions(folder, process, job) if mode == "w" else []:
            if not is_locked(session / journal.NAME):
                remove_session(session)
        session = folder / _session_name(folder, process, job)
        session.mkdir()
        # Mark the store after it has a session. In mode "x", other processes of this job
        # take a store without any session for an older one.
        mark(folder)
    except OSError as error:
        raise type(error)(
            f"Cannot write to a store in {str(path)!r}: {error.strerror} "
            f"({error.filename!r}). Give a folder that can be written to, or made."
        ) from error
    return session


def check_mode(mode: str) -> None:
    """Raise if a mode is not one that `begin_session` knows."""
    if mode not in ("a", "w", "x"):
        raise ValueError(
            f'`mode` must be "a" (add), "w" (replace) or "x" (new), not {mode!r}.'
        )


def list_session(session: pathlib.Path) -> None:
    """Add a session to the list of its store, once it has a journal."""
    _note(session.parent, {"session": session.name})


def remove_session(session: pathlib.Path) -> None:
    """Remove the files of a session, the journal first. Without it no file counts."""
    # Note the removal before it happens: this process may be killed in the middle.
    _note(session.parent, {"removed": session.name})
    with contextlib.suppress(FileNotFoundError):  # another process does the same
        ours = [path for path in session.iterdir() if _FILE.fullmatch(path.name)]
        for path in sorted(ours, key=lambda path: path.name != journal.NAME):
            path.unlink(missing_ok=True)
        if not any(session.iterdir()):
            session.rmdir()


def sessions_of(path: Path) -> tuple[list[pathlib.Path], list[str]]:
    """Return the folders of all sessions of a store, the oldest first, and its problems.

    Raises:
        FileNotFoundError: If there is no store.
        ValueError: If a later version of lox has written it.
    """
    if is_url(path):
        return remote().refresh_store(os.fspath(path))
    folder = pathlib.Path(os.path.expanduser(path))
    if _has_objects(folder):
        return remote().refresh_store(f"file://{folder.absolute()}")
    if not folder.exists():
        raise missing_folder(path)
    if not is_store(folder):
        hint = "Give the path that `lox.save` or `SaveLogger` was given."
        if any(is_file(session / journal.NAME) for session in session_folders(folder)):
            hint = "But it has sessions of a store: `lox doctor` can repair it."
        raise FileNotFoundError(
            f"There is no store in {str(path)!r}: it has no file {MARKER!r}. {hint}"
        )
    version, _ = _format_of(folder)
    if version > FORMAT:
        raise ValueError(
            f"The store in {str(path)!r} has format {version}, but this version of lox "
            f"reads only up to format {FORMAT}. Install a newer lox: "
            "`pip install -U jax-lox`."
        )
    return examine_folder(path)


def missing_folder(path: Path) -> FileNotFoundError:
    """Return the error for a folder that does not exist."""
    return FileNotFoundError(
        f"No such folder: {str(path)!r}. Give the path that `lox.save` or `SaveLogger` was "
        "given."
    )


def examine_folder(path: Path) -> tuple[list[pathlib.Path], list[str]]:
    """Return the sessions in a folder, and its problems as a store."""
    folder = pathlib.Path(os.path.expanduser(path))
    if not folder.is_dir():
        raise missing_folder(path)
    version, problems = _format_of(folder)
    listed, removed, list_problems = _read_list(folder, is_needed=version > 1)
    sessions = []
    for session in session_folders(folder):
        if session.name in removed:
            continue
        if is_file(session / journal.NAME):
            sessions.append(session)
        elif session.name not in listed and _has_data(session):
            problems.append(f"the session {session.name} has lost its journal")
    present = {session.name for session in sessions}
    for name in sorted(listed - removed - present):
        # The session may have been removed after the list was read.
        if name not in _read_list(folder, is_needed=False)[1]:
            what = "journal" if (folder / name).is_dir() else "folder"
            problems.append(f"the session {name} has lost its {what}")
    return sorted(sessions), [*problems, *list_problems]


def warn_of_store(path: Path, problems: list[str]) -> None:
    """Warn of the problems of a store as a whole."""
    if problems:
        warnings.warn(
            f"The store in {str(path)!r} is damaged: {'; '.join(problems)}. See `lox "
            "doctor`.",
            stacklevel=2,
        )


def _has_objects(folder: pathlib.Path) -> bool:
    """Return whether a folder is a store with the layout of object storage."""
    try:
        return json.loads(read_file(folder / MARKER)).get("layout") == "parquet"
    except (OSError, ValueError, AttributeError, RecursionError):
        return False


def _format_of(store: pathlib.Path) -> tuple[int, list[str]]:
    """Return the format of a store, and the problems of its marker."""
    try:
        version = json.loads(read_file(store / MARKER))["format"]
        if type(version) is int and version > 0:
            return version, []
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        pass
    # Without a readable marker, assume the first format. Each session names its own.
    what = "is not what lox wrote" if is_store(store) else "is missing"
    return 1, [f"{MARKER} {what}"]


def _read_list(
    store: pathlib.Path, *, is_needed: bool
) -> tuple[set[str], set[str], list[str]]:
    """Return the listed sessions, the removed ones, and the problems of the list."""
    try:
        lines = journal.decode(read_file(store / LIST))
    except OSError:
        missing = f"the list of its sessions, {LIST!r}, is missing"
        return set(), set(), [missing] if is_needed else []
    names = {
        kind: {
            entry[kind]
            for entry in lines.entries
            if isinstance(entry.get(kind), str) and _SESSION.fullmatch(entry[kind])
        }
        for kind in ("session", "removed")
    }
    is_damaged = f"the list of its sessions, {LIST!r}, is damaged"
    problems = [is_damaged] if lines.problems else []
    return names["session"], names["removed"], problems


def _note(store: pathlib.Path, entry: journal.Entry) -> None:
    """Add a line to the list of sessions. Several processes may do so at once."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
    file = os.open(store / LIST, flags | getattr(os, "O_NOFOLLOW", 0), 0o666)
    try:
        journal.append(file, journal.encode([entry]))
    finally:
        os.close(file)


def session_folders(store: pathlib.Path) -> list[pathlib.Path]:
    """Return all folders named like a session, even leftovers of a crash."""
    named = [entry for entry in os.scandir(store) if _SESSION.fullmatch(entry.name)]
    return [store / entry.name for entry in named if entry.is_dir(follow_symlinks=False)]


def is_session_name(name: str) -> bool:
    """Return whether a folder with this name is that of a session."""
    return _SESSION.fullmatch(name) is not None


def _has_data(session: pathlib.Path) -> bool:
    return any(file_size(path) for path in session.glob("*.arrows"))


def _older_sessions(store: pathlib.Path, process: int, job: str) -> list[pathlib.Path]:
    """Return the sessions that other processes of the job have not just begun."""
    older = []
    for session in session_folders(store):
        *_, its_process, its_job = session.name.split("-")
        if its_job != job or int(its_process) == process:
            older.append(session)
    return older


def _is_taken(folder: pathlib.Path, process: int, job: str) -> bool:
    """Return whether there is a store that other processes of the job have not made."""
    if not is_store(folder):
        return False
    return bool(_older_sessions(folder, process, job)) or not session_folders(folder)


def _session_name(store: pathlib.Path, process: int, job: str) -> str:
    """Return a unique name that sorts after the names of all other sessions.

    It begins with the time. If the clock has gone back since the newest session began, it
    begins one nanosecond after that session.
    """
    # Names sort by time. Skip those that are not a date.
    names = sorted((session.name for session in session_folders(store)), reverse=True)
    times = (_time_of_name(name) for name in names)
    newest = next((then for then in times if then >= 0), -1)
    now = max(time.time_ns(), newest + 1)
    date = time.strftime(_DATE, time.gmtime(now // 10**9))
    return f"{date}-{now % 10**9:09d}-{process}-{job}"


def _time_of_name(name: str) -> int:
    """Return when a session began, in nanoseconds since 1970. -1 if its name is no date."""
    day, second, nanoseconds, *_ = name.split("-")
    try:
        date = datetime.datetime.strptime(f"{day}-{second}Z", f"{_DATE}%z")
    except ValueError:
        return -1
    return int(date.timestamp()) * 10**9 + int(nanoseconds)


def mark(folder: pathlib.Path) -> None:
    """Write the format of a store to its marker. Upgrade a store of an older format."""
    if is_store(folder) and _format_of(folder)[0] >= FORMAT:
        return
    # The first format had no list, so its sessions have to be added.
    for session in session_folders(folder):
        if is_file(session / journal.NAME):
            list_session(session)
    if not is_file(folder / LIST):
        os.close(os.open(folder / LIST, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666))
    # Replace the marker atomically: two processes may do this at the same time.
    new = folder / f"{MARKER}.{os.urandom(4).hex()}"
    new.write_text(json.dumps({"format": FORMAT}) + "\n")
    os.replace(new, folder / MARKER)
