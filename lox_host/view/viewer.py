"""Answer the requests of a page in JSON: overview, panels, table and single runs.

A request has a name from `QUESTIONS`, and a dictionary of fields. Some of these select runs
(see `selection.py`), others say how to draw a panel (see `panel_rows.py`).

Answers are cached until the catalog changes. They hold names, keys and configs exactly as
these are in the store, so a page must show them as text.
"""

import contextlib
import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence

import numpy as np

from lox_host.store import Path
from lox_host.view.data.catalog import Catalog
from lox_host.view.data.columns import ROWS, TIME
from lox_host.view.data.session import ViewRun
from lox_host.view.density import Mark, marks as find_marks
from lox_host.view.describe import (
    brief,
    describe_session,
    differing,
    in_sections,
    suggest_group,
)
from lox_host.view.panel import draw_panel, nearest_run, number
from lox_host.view.panel_rows import Json, PanelOptions, PanelRows
from lox_host.view.run_groups import Group
from lox_host.view.run_page import describe_run, media_rows
from lox_host.view.selection import FIELDS, Selection

CACHED = 64  # the number of answers to keep
CACHED_PANELS = 10  # the number of panels whose selected and smoothed rows to keep
CACHED_BYTES = 96 << 20  # the memory that copies of these rows may take
FIRST_PANELS = 8  # the number of panels that a page shows when it opens
# The fields that a page sends for a panel when it opens.
FIRST_FIELDS: Json = {
    "x": "step",
    "centre": "mean",
    "band": "std",
    "smooth": 1,
    "logy": False,
    "full": False,
    "x0": None,
    "x1": None,
}


class Viewer:
    """Answers the requests of a page about the stores below some paths."""

    def __init__(self, paths: Sequence[Path]):
        self.catalog = Catalog(paths)
        self.selection = Selection(self.catalog)
        self._answers: OrderedDict[str, Json] = OrderedDict()
        self._panels: OrderedDict[str, PanelRows] = OrderedDict()
        self._marks: dict[tuple[str, str], tuple[int, list[Mark]]] = {}
        self._busy: dict[str, threading.Lock] = {}
        self._lock = threading.Lock()

    def answer(self, question: str, fields: Json) -> Json:
        """Answer a question of `QUESTIONS`, from the cache if nothing has changed.

        Raises:
            LookupError: If there is no such question.
            ValueError: If the fields are wrong.
        """
        if question not in QUESTIONS:
            raise LookupError(f"There is no question {question!r}.")
        version = self.catalog.version
        place = _place(question, version, fields)
        with self._lock:
            busy = self._busy.setdefault(place, threading.Lock())
        # A second request for the same answer waits for the first one.
        with busy:
            with self._lock:
                if place in self._answers:
                    self._answers.move_to_end(place)
                    return self._answers[place]
            try:
                found = {**QUESTIONS[question](self, fields), "version": version}
            finally:
                with self._lock:
                    self._busy.pop(place, None)
            with self._lock:
                self._answers[place] = found
                while len(self._answers) > CACHED:
                    self._answers.popitem(last=False)
        return found

    def is_known(self, question: str, fields: Json) -> bool:
        """Return whether an answer is in the cache."""
        return _place(question, self.catalog.version, fields) in self._answers

    def prepare(self) -> None:
        """Begin to compute what a page asks for first, before it does, on a thread."""
        threading.Thread(target=self._prepare, name="lox-view-first", daemon=True).start()

    def _prepare(self) -> None:
        # What cannot be read, the page says when it asks for it.
        with contextlib.suppress(OSError):
            overview = self.answer("overview", {})
            for key in overview["keys"][:FIRST_PANELS]:
                fields = {**FIRST_FIELDS, "key": key["name"], "group": overview["group"]}
                self.answer("panel", fields)

    # -- The questions

    def overview(self, fields: Json) -> Json:
        """Return all sessions, all keys and steps, and the config entries that differ."""
        catalog = self.catalog
        steps = catalog.step_names()
        newest = catalog.newest()
        config = differing([catalog.runs[i] for i in newest.tolist()])
        return {
            "paths": catalog.paths,
            "sessions": [describe_session(s) for s in catalog.sessions.values()],
            "problems": list(catalog.problems),
            "keys": in_sections(catalog.key_names()),
            "x": [*steps, ROWS, *([TIME] if catalog.has_times() else [])],
            "config": config,
            "group": suggest_group(config, [catalog.runs[i] for i in newest.tolist()]),
            "runs": [brief(run) for run in catalog.runs],
            "newest": newest.tolist(),
        }

    def news(self, fields: Json) -> Json:
        """Return the part of the overview that changes while runs are being written."""
        catalog = self.catalog
        return {
            "sessions": [describe_session(s) for s in catalog.sessions.values()],
            "problems": list(catalog.problems),
            "runs": len(catalog.runs),
            "keys": len(catalog.key_names()),
        }

    def panel(self, fields: Json) -> Json:
        """Return the drawing of one key."""
        key, options = str(fields["key"]), PanelOptions.of(fields)
        x = self.selection.position(options.x, key)
        rows = self._panel_rows(key, x, options.smooth, fields)
        found = {"key": key, "x": x, **draw_panel(rows, options)}
        sessions = self.catalog.sessions.values()
        lost = sum(session.columns.lost.get(key, 0) for session in sessions)
        if lost:
            damage = f"{lost:,} rows are damaged and left out: see `lox doctor`"
            found["note"] = ", ".join(filter(None, [found.get("note"), damage]))
        return found

    def _panel_rows(self, key: str, x: str, smooth: int, fields: Json) -> PanelRows:
        """Return the rows of a panel, from the cache if only the zoom or band changed."""
        which = {name: fields.get(name) for name in ("group", *FIELDS)}
        place = json.dumps([key, x, smooth, which, self.catalog.version], sort_keys=True)
        with self._lock:
            known = self._panels.get(place)
            if known is not None:
                self._panels.move_to_end(place)
                return known
        runs = self.selection.selected(fields)
        chosen = set(runs.tolist())
        marks = [mark for mark in self._marks_of(key, x) if mark.run in chosen]
        # Group all runs, not only selected ones. So a filter changes no colours or ranges.
        groups = self.selection.groups(fields.get("group"), self.selection.listed(fields))
        groups = [Group(g.label, g.runs[np.isin(g.runs, runs)]) for g in groups]
        parts = self.catalog.parts(key, x, runs)
        found = PanelRows(parts, groups, marks, smooth)
        with self._lock:
            self._panels[place] = found
            while len(self._panels) > CACHED_PANELS or (
                sum(rows.nbytes for rows in self._panels.values()) > CACHED_BYTES
                and len(self._panels) > 1
            ):
                self._panels.popitem(last=False)
        return found

    def _marks_of(self, key: str, x: str) -> list[Mark]:
        """Return where runs first have non-finite values. This reads all rows of a key."""
        version = self.catalog.version
        known = self._marks.get((key, x))
        if known is None or known[0] != version:
            everything = np.arange(len(self.catalog.runs))
            known = version, find_marks(self.catalog.parts(key, x, everything))
            self._marks[key, x] = known
        return known[1]

    def nearest(self, fields: Json) -> Json:
        """Return the run that is closest to a point of a panel."""
        key, options = str(fields["key"]), PanelOptions.of(fields)
        x = self.selection.position(options.x, key)
        rows = self._panel_rows(key, x, options.smooth, fields)
        at = float(fields["atx"]), float(fields["aty"])
        found = nearest_run(rows.parts, *at, is_log=options.log_y)
        if found is not None:
            found |= rows.name(found["run"])
        return {"nearest": found}

    def table(self, fields: Json) -> Json:
        """Return the numbers of some keys for each run, selected or not."""
        columns = {}
        for key in fields.get("keys", ()):
            summary = self.selection.summary(str(key))
            columns[key] = {
                name: [number(float(v)) for v in getattr(summary, name)]
                for name in ("last", "low", "high", "mean", "first_nonfinite")
            }
            columns[key]["rows"] = summary.rows.tolist()
            columns[key]["rate"] = [number(rate) for rate in self._rates(key, summary.rows)]
        # Also list runs that are not picked, so that a user can pick them.
        listed = self.selection.selected({**fields, "picks": None}).tolist()
        selected = self.selection.selected(fields).tolist()
        return {"columns": columns, "selected": selected, "listed": listed}

    def _rates(self, key: str, rows: np.ndarray) -> list[float]:
        """Return how many rows of a key each run logs per second."""
        rates = np.full(len(rows), np.nan)
        for session in self.catalog.sessions.values():
            leaves = session.columns.leaves().get(key, [])
            for id, last in session.columns.last_times(leaves).items():
                number = session.numbers.get(id)
                if number is not None:
                    seconds = last - session.columns.runs[id].start
                    rates[number] = rows[number] / seconds if seconds > 0 else np.nan
        return rates.tolist()

    def diverged(self, fields: Json) -> Json:
        """Return the runs that end with a value that is not finite, and count them."""
        counts, runs = {}, set[int]()
        for session in self.catalog.sessions.values():
            numbers, gone = set(session.numbers.values()), set[int]()
            for key in session.columns.suspects():
                marks = self._marks_of(key, self.selection.position("step", key))
                gone.update(mark.run for mark in marks if mark.is_end)
            counts[session.uid] = len(gone & numbers)
            runs |= gone & numbers
        return {"diverged": counts, "runs": sorted(runs)}

    def run(self, fields: Json) -> Json:
        """Return the config and the keys of one run."""
        return describe_run(self._find(str(fields["run"])))

    def media(self, fields: Json) -> Json:
        """Return rows of an array of one run: an image, a video, or a heat map."""
        return media_rows(self._find(str(fields["run"])), fields)

    def _find(self, uid: str) -> ViewRun:
        for run in self.catalog.runs:
            if run.uid == uid:
                return run
        raise LookupError(f"There is no run {uid!r}. It may have been removed.")


QUESTIONS: dict[str, Callable[[Viewer, Json], Json]] = {
    "overview": Viewer.overview,
    "news": Viewer.news,
    "panel": Viewer.panel,
    "nearest": Viewer.nearest,
    "table": Viewer.table,
    "diverged": Viewer.diverged,
    "run": Viewer.run,
    "media": Viewer.media,
}


def _place(question: str, version: int, fields: Json) -> str:
    """Return the place of an answer in the cache."""
    return json.dumps([question, version, fields], sort_keys=True)
