"""Where a program runs: host, user, command line, Python, and the commit of its code."""

import functools as ft
import getpass
import os
import platform
import shlex
import subprocess
import sys
from typing import Any

# How many seconds git may take. In a large repository on a slow disk, it takes longer.
PATIENCE = 5.0


def host_environment() -> dict[str, Any]:
    """Return what is known of this process: texts by name, and `dirty`, a bool.

    Without a repository, or without git, there is neither `commit` nor `dirty`.
    """
    return {
        "host": platform.node(),
        "user": _user(),
        "command": shlex.join(_command()),
        "folder": os.getcwd(),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "pid": os.getpid(),
        **_commit(_script_folder(), os.getcwd()),
    }


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):  # a container without a name for its user
        return ""


def _command() -> list[str]:
    # `sys.argv` lacks the interpreter and its options, such as `-m`.
    return list(getattr(sys, "orig_argv", None) or sys.argv)


def _script_folder() -> str | None:
    """Return the folder of the program. None in a notebook or a shell."""
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    return None if script is None else os.path.dirname(os.path.abspath(script))


@ft.cache
def _commit(*folders: str | None) -> dict[str, Any]:
    """Return the commit of the first folder that is in a repository."""
    for folder in folders:
        commit = None if folder is None else _git(folder, "rev-parse", "HEAD")
        if folder is not None and commit:
            # Files that git does not know do not count: results are often among them.
            changes = _git(folder, "status", "--porcelain", "--untracked-files=no")
            dirty = {} if changes is None else {"dirty": bool(changes)}
            return {"commit": commit, **dirty}
    return {}


def _git(folder: str, *args: str) -> str | None:
    """Return what git prints. None if it fails."""
    # Without the lock, a `git commit` of the user at the same time would not fail.
    command = ["git", "--no-optional-locks", "-C", folder, *args]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=PATIENCE, check=True
        )
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
