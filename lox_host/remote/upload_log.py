"""The upload log: a file beside the journal of a session that says what is uploaded.

    11f0aa38 {"plan":{"line":7,"number":0}}   lines up to 7 become segment 0
    5b1c33d0 {"sent":0}                       segment 0 is stored
    3e0a91c4 {"manifest":1}                   the manifest has 1 segment
    90b1d2f7 {"ending":true}                  the last manifest is about to be stored

Lines have the format of the journal. The invariant: a plan is noted before its segment is
sent. So a process that takes over makes the same segment of the same rows. It may send the
segment a second time, but under the same name, so no row is stored twice.
"""

import dataclasses
import os
import pathlib

from lox_host.store import decode_line, encode, lock_soon

NAME = "uploads"


class UploadBusy(Exception):
    """Another process, or another thread of this one, is uploading the session."""


@dataclasses.dataclass(frozen=True)
class UploadPlan:
    """Which lines of the journal become the next segments.

    Attributes:
        line: The last line. The first one follows the last line of the plan before.
        number: The number of the first segment.
    """

    line: int
    number: int


class UploadLog:
    """The upload log of a session. Only one uploader can open it at a time.

    Attributes:
        plans: All plans.
        sent: How many segments are stored.
        covered: How many segments the manifest has. None: there is no manifest yet.
        is_ending: Whether the last manifest is stored, or was about to be.

    Raises:
        UploadBusy: If another process or thread has it open.
    """

    def __init__(self, folder: pathlib.Path):
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT
        self._file = os.open(folder / NAME, flags, 0o666)
        if not lock_soon(self._file, 0.2):
            os.close(self._file)
            raise UploadBusy(f"The session in {str(folder)!r} is being uploaded")
        self.plans: list[UploadPlan] = []
        self.sent = 0
        self.covered: int | None = None
        self.is_ending = False
        self._read()

    def plan(self, plan: UploadPlan) -> None:
        """Note which rows go into the next segments."""
        self._note({"plan": dataclasses.asdict(plan)})
        self.plans.append(plan)

    def note_sent(self, number: int) -> None:
        self._note({"sent": number})
        self.sent = number + 1

    def note_manifest(self, segments: int) -> None:
        self._note({"manifest": segments})
        self.covered = segments

    def note_ending(self) -> None:
        self._note({"ending": True})
        self.is_ending = True

    def close(self) -> None:
        os.close(self._file)

    def _note(self, entry: dict) -> None:
        os.write(self._file, encode([entry]))

    def _read(self) -> None:
        with open(self._file, "rb", closefd=False) as file:
            file.seek(0)
            data = file.read()
        whole = data.rfind(b"\n") + 1
        # A process was killed in the middle of a line. Cut the line off.
        if whole < len(data):
            os.ftruncate(self._file, whole)
        for line in data[:whole].split(b"\n")[:-1]:
            entry = decode_line(line) or {}
            if "plan" in entry:
                self.plans.append(UploadPlan(**entry["plan"]))
            self.sent = max(self.sent, entry.get("sent", -1) + 1)
            self.covered = entry.get("manifest", self.covered)
            self.is_ending |= "ending" in entry
