"""`lox doctor`: find what is damaged in a store, and save the rest to a new one.

    problem                                      what is left
    a line of the journal has a wrong checksum   all flushes that other lines describe
    a column of a frame is damaged               the rows of the keys that do not need it
    a data file is missing                       the frames in other files
    the marker, or the list of sessions          all sessions

The old store stays as it is. `repair` copies sessions without problems byte by byte, and
writes what is left of the others.
"""

import os
import pathlib
import shutil
import warnings
from collections import Counter

from lox_host.frozen import frozen
from lox_host.store.folder import Path, examine_folder, list_session, mark
from lox_host.store.format.journal import DATA_FILE, NAME
from lox_host.store.reader import Reader, read_session
from lox_host.store.run_statistics import lost_rows
from lox_host.store.session import Session


@frozen
class SessionReport:
    """The findings for a session.

    Attributes:
        name: The name of its folder.
        reader: Reads what is not damaged. None: nothing can be read.
        problems: What is wrong, in words.
        rows: How many rows can be read: the longest key of each run, added up.
    """

    name: str
    reader: Reader | None
    problems: list[str]
    rows: int


def examine(path: Path) -> tuple[list[str], list[SessionReport]]:
    """Read all of a store, and return its problems and those of its sessions.

    Raises:
        FileNotFoundError: If there is no such folder.
    """
    folders, problems = examine_folder(path)
    names = {folder.name for folder in folders}
    return problems, [_examine_session(folder, names) for folder in folders]


def repair(reports: list[SessionReport], to: Path) -> None:
    """Write everything that can be read to a new store, and leave the old one as it is.

    Undamaged sessions are copied byte by byte, the others are rewritten.

    Raises:
        FileExistsError: If the folder is not empty.
    """
    target = pathlib.Path(os.path.expanduser(to))
    if target.exists() and any(target.iterdir()):
        raise FileExistsError(
            f"There is something in {str(to)!r} already. Give a new folder."
        )
    target.mkdir(parents=True, exist_ok=True)
    mark(target)
    for report in reports:
        if report.reader is None:
            continue
        # Under its first name, by which its journal knows itself.
        folder = target / report.reader.original
        folder.mkdir()
        if report.problems:
            _write_anew(report.reader, folder)
            continue
        for file in report.reader.folder.iterdir():
            if file.name == NAME or DATA_FILE.fullmatch(file.name):
                shutil.copyfile(file, folder / file.name)
        list_session(folder)


def _examine_session(folder: pathlib.Path, names: set[str]) -> SessionReport:
    try:
        reader = read_session(folder).in_full()
    except OSError as error:
        return SessionReport(folder.name, None, [f"cannot be read: {error}"], 0)
    if reader.original != folder.name and reader.original in names:
        copied = f"is a copy of {reader.original}, and does not count"
        return SessionReport(folder.name, None, [copied], 0)
    problems = list(reader.problems)
    if reader.original != folder.name:
        problems.append(f"was called {reader.original}")
    lost = lost_rows(reader)
    problems += [f"rows of {key!r} that are damaged: {rows}" for key, rows in lost.items()]
    return SessionReport(folder.name, reader, problems, _rows(reader))


def _rows(reader: Reader) -> int:
    """Count the rows that `_write_anew` would write. The journal may promise more."""
    counts: dict[str, Counter[int]] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is in the report
        for block in reader.blocks():
            rows = Counter[int](block.runs.tolist())
            for key in block.values:
                counts.setdefault(key, Counter()).update(rows)
    longest = Counter[int]()
    for rows in counts.values():
        longest |= rows  # the larger of each
    return sum(longest[id] for id in reader.runs)


def _write_anew(reader: Reader, folder: pathlib.Path) -> None:
    session = Session(folder)
    if reader.environment:
        session.describe(reader.environment)
    for id, run in reader.runs.items():
        session.open(run, tuple(reader.saved_keys(id)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is in the report
        # Keys without rows are known by their layouts, which an empty block keeps.
        empty = [layout.empty_block() for layout in reader.layouts.values()]
        session.append([*empty, *reader.blocks()])
    session.end(reader.last_change)
