"""The folder of a store: what marks it, its sessions, and what may be removed."""

import contextlib
import json
import os
import pathlib
import re
import secrets
import time

MARKER, FORMAT = "lox.json", 1
_SESSION = re.compile(r"\d{8}-\d{6}-\d{9}-\d+-[0-9a-f]{8}")
_FILE = re.compile(r"journal(\.new)?|\d{4,}\.arrows(\.new)?")


def begun(
    path: str | os.PathLike, mode: str, process: int = 0, job: str = ""
) -> pathlib.Path:
    """Begin a session: a folder of its own, in a store that is made if there is none.

    What other processes of the same job write there is not from before, and stays.

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
        for session in _before(folder, process, job) if mode == "w" else []:
            _remove(session)
        session = folder / _session_name(process, job)
        session.mkdir()
        # After the session: without any, a store is not one that a job has just begun.
        _mark(folder)
    except OSError as error:
        raise type(error)(
            f"Cannot write to a store in {str(path)!r}: {error.strerror} "
            f"({error.filename!r}). Give a folder that can be written to, or made."
        ) from error
    return session


def check_mode(mode: str) -> None:
    if mode not in ("a", "w", "x"):
        raise ValueError(f'`mode` is {mode!r}; it is "a" (add), "w" (write anew) or "x".')


def existing(path: str | os.PathLike) -> pathlib.Path:
    """The folder of a store that is to be read."""
    folder = pathlib.Path(os.path.expanduser(path))
    if not (folder / MARKER).is_file():
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
    return folder


def sessions(folder: pathlib.Path) -> list[pathlib.Path]:
    """The folders of all sessions, the oldest first."""
    return sorted(path for path in _named(folder) if (path / "journal").is_file())


def _named(folder: pathlib.Path) -> list[pathlib.Path]:
    """All folders with the name of a session, also those that a crash has left."""
    named = (path for path in folder.iterdir() if _SESSION.fullmatch(path.name))
    return [path for path in named if path.is_dir() and not path.is_symlink()]


def _before(folder: pathlib.Path, process: int, job: str) -> list[pathlib.Path]:
    """The sessions that do not belong to other processes of the job."""
    return [path for path in _named(folder) if not _is_beside(path.name, process, job)]


def _is_beside(name: str, process: int, job: str) -> bool:
    *_, other, of = name.split("-")
    return of == job and int(other) != process


def _is_taken(folder: pathlib.Path, process: int, job: str) -> bool:
    """Whether there is a store that other processes of the job have not just made."""
    if not (folder / MARKER).exists():
        return False
    return bool(_before(folder, process, job)) or not _named(folder)


def _session_name(process: int, job: str) -> str:
    """A name that sorts by time, and that nobody else comes upon."""
    now = time.time_ns()
    date = time.strftime("%Y%m%d-%H%M%S", time.gmtime(now // 10**9))
    return f"{date}-{now % 10**9:09d}-{process}-{job}"


def _mark(folder: pathlib.Path) -> None:
    if (folder / MARKER).exists():
        return
    # Two processes may do this at once, and a reader sees all of it or nothing.
    new = folder / f"{MARKER}.{secrets.token_hex(4)}"
    new.write_text(json.dumps({"format": FORMAT}) + "\n")
    os.replace(new, folder / MARKER)


def _remove(session: pathlib.Path) -> None:
    """Remove the files of a session, the journal first: without it nothing counts."""
    with contextlib.suppress(FileNotFoundError):  # another process does the same
        ours = [path for path in session.iterdir() if _FILE.fullmatch(path.name)]
        for path in sorted(ours, key=lambda path: path.name != "journal"):
            path.unlink(missing_ok=True)
        if not any(session.iterdir()):
            session.rmdir()
