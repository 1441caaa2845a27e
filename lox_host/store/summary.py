"""Summarize the runs of a session: their rows, last values and non-finite values.

A session notes its summary in the last line of its journal when it ends, and
`ended_session.py` says when that line counts. For other sessions, the summary is computed
from the frames.
"""

import functools as ft
import itertools as it
import os
import pathlib
from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from lox_host.store.format import journal
from lox_host.store.format.dtypes import dtype_named, is_storable
from lox_host.store.format.files import open_file
from lox_host.store.format.journal import Entry
from lox_host.store.format.layout import bad_fields, check, is_count
from lox_host.store.format.lock import lock
from lox_host.store.reader import Reader
from lox_host.store.run_statistics import NonFinite, last_values, nonfinite, row_counts

# Summaries with more numbers than this are not noted. Every reader would have to read them.
MOST = 200_000


class RunSummary(NamedTuple):
    """The summary of a run.

    Attributes:
        rows: How many rows each key of the run has.
        last: The last value of each key that is a real number.
        nonfinite: How many rows are not finite, and the first of them, by key.
    """

    rows: Mapping[str, int]
    last: Mapping[str, np.generic]
    nonfinite: Mapping[str, NonFinite]


Summary = dict[int, RunSummary]


def summary_of(reader: Reader) -> Summary:
    """Return the summary of a session: the noted one, or else one from its frames."""
    # A noted summary lacks the rows that resumed runs have in earlier sessions.
    if reader.ended_session is not None and reader.history is None:
        try:
            return _decode(reader.ended_session.summary, reader)
        except ValueError:
            pass  # malformed: use the frames
    return _read(reader)


def note_summary(session: pathlib.Path) -> None:
    """Append the summary of a session that has ended to its journal.

    Do nothing if another writer has the session open, if it is damaged, or if the disk is
    full. Readers compute the summary then.
    """
    try:
        file = open_file(session / journal.NAME, os.O_RDWR | os.O_APPEND)
    except OSError:
        return
    try:
        if not lock(file):
            return
        known = journal.read_journal(session)
        reader = Reader(
            session, known.entries, journal_problems=known.problems, is_strict=True
        )
        if reader.problems or len(reader.runs) * len(reader.keys) > MOST:
            return
        line: Entry = {"n": known.next_number, "summary": _encode(_read(reader), reader)}
        journal.append(file, journal.encode([line]))
    except OSError:
        pass
    finally:
        os.close(file)


def _read(reader: Reader) -> Summary:
    counts, last, bad = row_counts(reader), last_values(reader), nonfinite(reader)
    return {
        id: RunSummary(_rows_of_run(reader, counts, id), last[id], bad.get(id, {}))
        for id in reader.runs
    }


def _rows_of_run(
    reader: Reader, counts: Mapping[str, Counter[int]], run: int
) -> dict[str, int]:
    """Return the number of rows of each key of a run, which may be zero."""
    empty = reader.keys_without_rows(run)
    return {
        key: counts[key][run] for key in reader.keys if counts[key][run] or key in empty
    }


def _encode(summary: Summary, reader: Reader) -> dict[str, Any]:
    """Encode a summary as JSON, key by key."""
    # Column by column: JSON that repeats no names for each of a thousand runs.
    keys: dict[str, Any] = {}
    for key in reader.keys:
        rows = [run.rows.get(key) for run in summary.values()]
        fields: dict[str, Any] = {"rows": rows}
        last = [run.last.get(key) for run in summary.values()]
        dtypes = {value.dtype for value in last if value is not None}
        if dtypes:
            # A key that is an integer in one run may be a float in another.
            fields["dtype"] = (
                dtypes.pop().name
                if len(dtypes) == 1
                else [None if value is None else value.dtype.name for value in last]
            )
            fields["last"] = [None if value is None else _number(value) for value in last]
        # Few runs have any, so these are listed with the position of the run.
        bad = enumerate(run.nonfinite.get(key) for run in summary.values())
        fields["nonfinite"] = [[i, *found] for i, found in bad if found is not None]
        keys[key] = fields
    files: dict[str, int] = {}
    for frame in it.chain(*reader.frames.values()):
        files[frame.file] = max(frame.end, files.get(frame.file, 0))
    return {"files": files, "runs": list(summary), "keys": keys}


def _number(value: np.generic) -> Any:
    """Return the shortest number that reads back as the same value of its dtype."""
    if value.dtype != np.float32:
        return value.item() if value.dtype.isbuiltin == 1 else float(value)
    # 0.1 as float32 is 0.10000000149011612 as float64, but "0.1" reads back as the same.
    short = float(str(value))
    return short if np.float32(short) == value else float(value)


@ft.cache
def _scalar_type(name: str) -> type[np.generic]:
    dtype = dtype_named(name)
    check(is_storable(dtype))
    return dtype.type


def _decode(fields: Any, reader: Reader) -> Summary:
    """Decode the summary of a session.

    Raises:
        ValueError: If it is malformed.
    """
    with bad_fields():
        ids, keys = fields["runs"], fields["keys"]
        rows: list[dict[str, int]] = [{} for _ in ids]
        last: list[dict[str, np.generic]] = [{} for _ in ids]
        bad: list[dict[str, NonFinite]] = [{} for _ in ids]
        for key, columns in keys.items():
            for its_rows, number in zip(rows, columns["rows"], strict=True):
                if number is not None:
                    check(is_count(number))
                    its_rows[key] = number
            if "last" in columns:
                dtypes = columns["dtype"]
                if not isinstance(dtypes, list):
                    dtypes = [dtypes] * len(ids)
                for values, value, name in zip(last, columns["last"], dtypes, strict=True):
                    if value is not None:
                        values[key] = _scalar_type(name)(value)
            for i, number, step, first in columns["nonfinite"]:
                check(is_count(i) and is_count(number) and isinstance(step, str))
                bad[i][key] = NonFinite(number, step, float(first))
        parts = it.starmap(RunSummary, zip(rows, last, bad, strict=True))
        return dict(zip(ids, parts, strict=True))
