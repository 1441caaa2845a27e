"""Shell completion, with argcomplete. `lox completion SHELL` prints its set-up.

To complete a word, a shell calls `lox` itself, with the line so far in the environment. The
parser knows commands and options; this file finds stores, runs and keys. Only that needs
NumPy, so it is imported there.
"""

import argparse
import contextlib
import os
from collections.abc import Sequence
from typing import Any

from lox_host.default_store import DEFAULT

SHELLS = ("bash", "zsh", "fish")
# What cannot be read has nothing to offer.
_UNREADABLE = (LookupError, OSError, ValueError)


def completion(shell: str) -> None:
    """Print the code that makes a shell complete commands, runs and keys."""
    import argcomplete

    print(argcomplete.shellcode(["lox"], shell=shell).strip())


def answer_shell(parser: argparse.ArgumentParser, **options: Any) -> None:
    """Print the completions if a shell asks for them, and exit."""
    import argcomplete

    argcomplete.autocomplete(parser, always_complete_options=False, **options)


def is_asked_by_shell() -> bool:
    return "_ARGCOMPLETE" in os.environ


def complete_run(prefix: str, **_: object) -> list[str]:
    """Return stores, and in a store its runs."""
    from lox_host.reading.find import HINT_FOLDERS, stores_below
    from lox_host.reading.select import all_runs, locate
    from lox_host.store import is_store

    folder = os.path.dirname(prefix)
    with contextlib.suppress(*_UNREADABLE):
        if is_store(folder or prefix or DEFAULT):
            stores = locate(prefix or DEFAULT)[0]
            paths = [run.path for run in all_runs(stores)]
            # Shells print this as it is, so leave out names that would move the cursor.
            return [path for path in paths if path.isprintable()]
    stores = stores_below(folder or ".", HINT_FOLDERS)
    return [os.path.join(path, "") for path in stores]


def complete_key(parsed_args: argparse.Namespace, **_: object) -> list[str]:
    """Return the keys of the runs that have been typed."""
    from lox_host.reading.select import select_runs

    where: str | Sequence[str] = parsed_args.where
    keys: dict[str, None] = {}
    for text in [where] if isinstance(where, str) else where:
        try:
            for run in select_runs(text):
                keys |= dict.fromkeys(run.reader.keys)
        except _UNREADABLE:
            continue
    return [key for key in keys if key.isprintable()]
