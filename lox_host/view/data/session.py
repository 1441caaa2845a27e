"""A session of a store as the viewer sees it, and its runs."""

import dataclasses
import pathlib
import time
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from lox_host.runs.run import Run
from lox_host.store import is_locked, open_session, url_of
from lox_host.view.data.columns import SessionColumns

REMOTE = 5.0  # seconds between two polls of object storage
# A session without an end counts as running for this many seconds after its last change. A
# process on another machine holds no lock that shows here.
QUIET = 10.0


@dataclasses.dataclass(frozen=True, eq=False)
class ViewRun:
    """A run in one session.

    Attributes:
        number: The number in the catalog.
        uid: The name in links, which stays the same when the viewer is restarted.
        session: The session.
        run: The run as the store describes it.
        config: The configuration, with names such as `outer.inner`.
        earlier: The number of the run in the session that it resumes. None: it began here.
        identity: A value that is the same for the same run in other sessions.
    """

    number: int
    uid: str
    session: "ViewSession"
    run: Run
    config: Mapping[str, Any]
    earlier: int | None
    identity: tuple[str, str, int]

    @property
    def name(self) -> str:
        """What a page calls the run: its name, or else something to click on."""
        return self.run.title if self.run.title.strip() else self.uid


class ViewSession:
    """A session of a store, and its columns.

    Attributes:
        store: The path of the store, as it was given.
        name: The name of the session.
        columns: The rows of the session.
        numbers: The number of each run in the catalog, by its id.
    """

    def __init__(self, store: str, folder: pathlib.Path):
        self.store, self.name = store, folder.name
        self.columns = SessionColumns(folder)
        self.numbers: dict[int, int] = {}
        self._seen: tuple[int, int] | None = None
        self._first_steps: Mapping[int, Mapping[str, float]] = {}
        self._refreshed = 0.0

    @property
    def uid(self) -> str:
        """The end of its name, which is unique in the store."""
        return self.name[-8:]

    def has_changed(self) -> bool:
        """Return whether the journal has grown or was replaced since it was last read."""
        if url_of(self.columns.folder.parent) is not None:
            # Only a slow request to the object storage can tell, so ask now and then.
            is_due = time.monotonic() - self._refreshed > REMOTE
            self._refreshed = time.monotonic() if is_due else self._refreshed
            return is_due
        try:
            info = (self.columns.folder / "journal").stat()
        except OSError:
            return False
        seen, self._seen = self._seen, (info.st_ino, info.st_size)
        return seen != self._seen

    @property
    def last_change(self) -> float:
        try:
            return (self.columns.folder / "journal").stat().st_mtime
        except OSError:
            return 0.0

    def first_step(self, run: int, name: str) -> float:
        """Return the first step of a run in this session, of any key."""
        if run not in self._first_steps:
            self._first_steps = open_session(self.columns.folder).first_steps
        return self._first_steps.get(run, {}).get(name, np.inf)

    def state(self) -> str:
        """Return `finished`, `running`, or `crashed` if it stopped without an end."""
        if self.columns.ended:
            return "finished"
        is_recent = time.time() - self.last_change < QUIET
        if is_recent or is_locked(self.columns.folder / "journal"):
            return "running"
        return "crashed"


def flat_config(config: Mapping[str, Any], outer: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the entries of a configuration by name, `outer.inner`."""
    for name, value in config.items():
        if isinstance(value, Mapping) and value:
            yield from flat_config(value, f"{outer}{name}.")
        else:
            yield f"{outer}{name}", value
