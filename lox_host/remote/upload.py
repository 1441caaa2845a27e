"""Upload a session of the spool: each segment once, in order, and then the manifest.

An ordinary writer writes the session and knows nothing of the upload:

    journal     0 session  1 run  2 flush  3 flush  4 flush  5 flush      from the writer
    upload log  plan: lines to 3 = segment 0, sent 0, plan: lines to 5 = segment 1
    bucket      rows/.../000000.parquet, manifests/....jsonl.gz           lacks segment 1

The journal says what there is to upload, and the upload log beside it says what has been
uploaded. So any process on this machine can continue after another one was killed.

The manifest is rewritten when it lacks a quarter as many segments as it has. So all
manifests of a session together take a small multiple of the size of the last one. Readers
find later segments by their numbers.

The invariant: segments are stored in the order of their numbers, and a data file is removed
only when all of its rows are stored.
"""

import json
import pathlib
import time
from collections import deque

from lox_host.remote.bucket import Bucket
from lox_host.remote.manifest import is_over, put_manifest
from lox_host.remote.remote_paths import MARKER, rows_path, runs_path
from lox_host.remote.run_table import encode_runs
from lox_host.remote.upload_log import UploadLog, UploadPlan
from lox_host.store import (
    OBJECTS_FORMAT,
    Sealer,
    Segment,
    encode,
    remove_session,
    segment_name,
)

# About how many bytes of data files become one segment.
SEGMENT_BYTES = 8 << 20
# The manifest may lack `LACKING` segments, or one for each `PART` segments it has.
LACKING, PART = 8, 4


class SessionUpload:
    """The upload of one session.

    Args:
        bucket: The store to upload to.
        folder: The folder of the session.
        is_written: Whether this process is still writing the session.

    Attributes:
        is_written: See above. While it is True, the session stays on this machine, even
            after its end.
        sent_rows: How many rows this object has uploaded.
        sent_bytes: How many bytes it has uploaded, in segments and in all.

    Raises:
        UploadBusy: If another process or thread uploads the session.
    """

    def __init__(self, bucket: Bucket, folder: pathlib.Path, *, is_written: bool = False):
        self._bucket, self._folder, self.session = bucket, folder, folder.name
        self.is_written = is_written
        self._log = UploadLog(folder)
        try:
            self._sealer = Sealer(folder)
            self._sealer.poll()
            # The lines of all stored segments, and how many lines all planned ones have.
            self._manifest = b""
            self._line_count = 0
            # The last line of the journal that is in a segment.
            self._planned = -1
            # Planned segments that are not stored.
            self._pending: deque[Segment] = deque()
            for plan in self._log.plans:
                self._take(plan)
        except BaseException:
            self._log.close()
            raise
        self._is_marked = self._is_removed = False
        self.sent_rows = 0
        self.sent_bytes = {"segments": 0, "all": 0}

    @property
    def is_done(self) -> bool:
        """Whether the session is uploaded and has been removed from this machine."""
        return self._is_removed

    def waiting(self) -> tuple[int, int]:
        """Return how many rows and bytes of the known lines are not uploaded."""
        rows, size = self._sealer.waiting(self._planned)
        for segment in self._pending:
            rows += segment.rows
            frames = (frame for group in segment.frames.values() for frame in group)
            size += sum(frame.end - frame.start for frame in frames)
        return rows, size

    def push(self) -> None:
        """Upload everything that the session has so far.

        Raises:
            BucketError: If the upload fails. The next call continues where it stopped.
        """
        if self._is_removed:
            return
        self._sealer.poll()
        self._mark()
        while self._pending or self._sealer.last_line > self._planned:
            if not self._pending and not self._plan():
                break
            self._send(self._pending[0])
            self._pending.popleft()
            if not self._pending:
                self._free()
        # The manifest has the lines of all segments: storing it after each one would take
        # ever longer. It may lack the last ones, for which readers ask by number.
        covered = self._log.covered
        lacking = self._log.sent - (covered or 0)
        if self._sealer.ended and not self.is_written:
            self._end()
        elif covered is None or lacking >= max(LACKING, covered // PART):
            self._put_manifest(self._manifest)
            self._log.note_manifest(self._log.sent)

    def finish(self) -> None:
        """Upload all of a session whose process is gone, and remove it from this disk."""
        self.push()
        if not self._is_removed:
            # The session was killed before its end. Say in the manifest that no more rows
            # come, so that readers stop asking.
            last = {"n": self._line_count, "pushed": round(time.time())}
            self._end(encode([last]))

    def close(self) -> None:
        """Let other processes and threads upload the session."""
        if not self._is_removed:
            self._log.close()

    def _take(self, plan: UploadPlan) -> None:
        """Make the segments of a plan, and queue those that are not stored."""
        place = {"number": plan.number, "line": self._line_count}
        for segment in self._sealer.segments(self._planned, plan.line, **place):
            if segment.number < self._log.sent:
                self._manifest += segment.lines
            else:
                self._pending.append(segment)
            self._line_count += segment.line_count
        self._planned = plan.line

    def _plan(self) -> bool:
        """Plan the next segments, and return whether there is anything to send now."""
        after = self._planned
        upto = self._sealer.cut(after, SEGMENT_BYTES)
        # Upload the first lines at once, so that readers see the session. Later lines
        # without rows, such as a new run, wait for the next row. Only a new manifest could
        # carry them, and that is too much for one line.
        is_first, ended = not self._log.plans, self._sealer.ended
        if not is_first and not ended and not self._sealer.has_rows(after, upto):
            return False
        # Note the plan before anything is sent. A process that takes over then makes the
        # same segments, and replaces them with themselves.
        plan = UploadPlan(upto, self._log.sent)
        self._log.plan(plan)
        self._take(plan)
        return True

    def _send(self, segment: Segment) -> None:
        if segment.runs:
            # Name the object after the lowest id. If this is sent again after a crash, it
            # gets the same name and replaces itself.
            name = segment_name(min(run["id"] for run in segment.runs))
            self._put(runs_path(self.session, name), encode_runs(segment.runs))
        if segment.frames:
            data = self._sealer.encode(segment)
            self._put(rows_path(self.session, segment.name), data)
            self._log.note_sent(segment.number)
            self.sent_rows += segment.rows
            self.sent_bytes["segments"] += len(data)
        self._manifest += segment.lines

    def _free(self) -> None:
        """Remove data files that are completely uploaded, and forget their lines."""
        for name in self._sealer.forget(self._planned):
            (self._folder / name).unlink(missing_ok=True)

    def _end(self, last_line: bytes = b"") -> None:
        """Store the last manifest, and remove the local session."""
        # Once this manifest is stored, `lox compact` may replace it. So a process that
        # takes over here must not store it a second time.
        if not (self._log.is_ending and is_over(self._bucket, self.session)):
            self._log.note_ending()
            self._put_manifest(self._manifest + last_line)
        remove_session(self._folder)
        self._is_removed = True
        self._log.close()

    def _mark(self) -> None:
        """Mark the address as a store before anything is stored there."""
        if not self._is_marked and not self._log.sent and not self._bucket.exists(MARKER):
            text = json.dumps({"format": OBJECTS_FORMAT, "layout": "parquet"})
            self._put(MARKER, f"{text}\n".encode())
        self._is_marked = True

    def _put_manifest(self, lines: bytes) -> None:
        self.sent_bytes["all"] += put_manifest(self._bucket, self.session, lines)

    def _put(self, path: str, data: bytes) -> None:
        self._bucket.put(path, data)
        self.sent_bytes["all"] += len(data)
