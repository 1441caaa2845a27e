"""Open a session that has ended without decoding all of its journal.

To list ten thousand sessions in two seconds, `lox ls` has a fifth of a millisecond for each
of them. So a session writes a summary of its runs and files as the last line of its journal
when it ends:

    5d01ac3e {"n":5,"summary":{"files":{"0000.arrows":2896},"runs":[0,1],"keys":{"loss":
              {"rows":[60,60],"dtype":"float32","last":[0.5,0.25],
               "nonfinite":[[1,3,"step",20.0]]}}}}

The line counts only while it is the last one, all lines have the right checksums and
numbers, and all files have the right sizes. Otherwise the journal is read as if there were
no such line. That is also the way for sessions that were killed, or come from an earlier
version. So lox never believes a stale or damaged summary, and still reports all problems.

The summary describes what was written. It does not show whether the data on the disk has
been damaged since. `lox show`, `lox.load` and `lox doctor` find that when they read it.
"""

import dataclasses
import functools as ft
import itertools as it
import json
import re
import zlib
from collections.abc import Mapping
from typing import Any

from lox_host.runs.run import Run
from lox_host.store.format import journal
from lox_host.store.format.journal import Entry
from lox_host.store.format.journal_content import read_session_line, read_time, runs_of
from lox_host.store.format.layout import bad_fields, check, is_count

# The beginning of a line after its checksum: its number and its kind.
_HEAD = re.compile(rb'\{"n":(\d+),"(\w+)":')
# The only kinds of lines that this file handles, besides those of runs. Removed runs and
# lost rows need the whole journal.
_KINDS = {b"session", b"environment", b"flush", b"end", b"summary"}


@dataclasses.dataclass(frozen=True, eq=False)
class EndedSession:
    """A session that has ended and is not damaged.

    Attributes:
        name: The name of the session when it began.
        runs: The runs by id.
        saved_keys: The keys of each run in the order of saving, by run.
        end: When it ended.
        summary: The noted summary of its runs.
        data: The bytes of the journal.
        other_lines: Its lines but for those of runs.
    """

    name: str
    runs: dict[int, Run]
    saved_keys: dict[int, list[str]]
    end: Any
    summary: dict[str, Any]
    data: bytes
    other_lines: list[bytes]

    @property
    def keys(self) -> list[str]:
        """All keys, in their order."""
        return list(self.summary["keys"])

    @property
    def entries_without_runs(self) -> list[Entry]:
        """The entries of the journal but for those of runs, which may be thousands."""
        return journal.decode(b"\n".join([*self.other_lines, b""])).entries

    @ft.cached_property
    def entries(self) -> list[Entry]:
        """All entries of the journal."""
        return journal.decode(self.data).entries


def read_ended(data: bytes, sizes: Mapping[str, int]) -> EndedSession | None:
    """Read the journal of a session that has ended and is not damaged, or return None.

    Args:
        data: The journal.
        sizes: The sizes of the data files.
    """
    lines = data.split(b"\n")
    # Check the last line first, which is cheap. Live sessions have no summary.
    if lines.pop() or not lines or b',"summary":' not in lines[-1][:40]:
        return None
    try:
        return _read(lines, data, sizes)
    except ValueError:
        return None


def _read(lines: list[bytes], data: bytes, sizes: Mapping[str, int]) -> EndedSession:
    # A line counts if its checksum is right and no line is missing before it. There may be
    # thousands of runs, so their lines are examined all at once.
    texts = [line[9:] for line in lines]
    checksums = [b"%08x " % checksum for checksum in map(zlib.crc32, texts)]
    check(checksums == [line[:9] for line in lines])
    is_run = [
        text.startswith(b'{"n":%d,"run":' % number) for number, text in enumerate(texts)
    ]
    run_lines = [*it.compress(texts, is_run)]
    others = [number for number, is_one in enumerate(is_run) if not is_one]
    name, end, summary = "", None, {}
    for number in others:
        head = _HEAD.match(texts[number])
        check(head)
        its_number, kind = head.groups()  # pyright: ignore[reportOptionalMemberAccess]
        check(int(its_number) == number and kind in _KINDS)
        # Skip the frames. They are most of the journal, and not needed here.
        if kind in (b"flush", b"environment"):
            continue
        value = json.loads(texts[number].decode())[kind.decode()]
        if kind == b"session":
            name, _ = read_session_line(value)
        elif kind == b"end":
            end = read_time(value)
        else:
            summary = value
    other_lines = [lines[number] for number in others]
    runs: dict[int, Run] = {}
    saved_keys: dict[int, list[str]] = {}
    with bad_fields():
        # All runs at once: there may be thousands, and each call takes its time.
        entries = json.loads(b"[%s]" % b",".join(run_lines))
        check(len(entries) == len(run_lines))
        for run, keys in runs_of([entry["run"] for entry in entries]):
            runs[run.id], saved_keys[run.id] = run, keys
        check(name and end is not None and summary["runs"] == list(runs))
        files = summary["files"].items()
        check(all(is_count(size) and sizes.get(file) == size for file, size in files))
        check(isinstance(summary["keys"], dict))
    return EndedSession(name, runs, saved_keys, end, summary, data, other_lines)
