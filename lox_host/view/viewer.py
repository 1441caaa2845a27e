"""Answer the requests of a page in JSON: overview, panels, table and single runs.

A request has a name from `QUESTIONS`, and a dictionary of fields. These fields select runs:

    {"sessions": ["ea91b33d"],            None: each run in its newest session
     "where": "lr > 1e-3",                a filter
     "brush": {"lr": [1e-3, 1e-2]},       ranges of config entries and last values
     "picks": ["ea91b33d.7"]}             runs that the user has selected one by one

Answers are cached until the catalog changes. They hold names, keys and configs exactly as
these are in the store, so a page must show them as text.
"""

import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from lox_host.reading import select_where
from lox_host.store import Path, StoredRun
from lox_host.view.catalog import Catalog, ViewRun
from lox_host.view.columns import ROWS, TIME
from lox_host.view.density import Mark, marks as find_marks
from lox_host.view.describe import brief, describe_session, differing, suggest_group
from lox_host.view.panel import (
    Json,
    PanelOptions,
    PanelRows,
    draw_panel,
    nearest_run,
    number,
)
from lox_host.view.run_page import describe_run, media_rows
from lox_host.view.selection import Group, group_runs, is_number
from lox_host.view.summary import Summary, is_better_low, summarize

CACHED = 64  # the number of answers to keep
CACHED_PANELS = 10  # the number of panels whose selected and smoothed rows to keep
CACHED_BYTES = 96 << 20  # the memory that copies of these rows may take
SELECTION = ("sessions", "where", "brush", "picks")
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
        self._answers: OrderedDict[str, Json] = OrderedDict()
        self._panels: OrderedDict[str, PanelRows] = OrderedDict()
        self._summaries: dict[str, tuple[int, Summary]] = {}
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
        place = json.dumps([question, version, fields], sort_keys=True)
        with self._lock:
            busy = self._busy.setdefault(place, threading.Lock())
        # A second request for the same answer waits for the first one.
        with busy:
            with self._lock:
                if place in self._answers:
                    self._answers.move_to_end(place)
                    return self._answers[place]
            found = {**QUESTIONS[question](self, fields), "version": version}
            with self._lock:
                self._busy.pop(place, None)
                self._answers[place] = found
                while len(self._answers) > CACHED:
                    self._answers.popitem(last=False)
        return found

    def prepare(self, panels: int = 8) -> None:
        """Compute the answers that a page needs first, before it asks."""
        overview = self.answer("overview", {})
        for key in overview["keys"][:panels]:
            fields = {**FIRST_FIELDS, "key": key["name"], "group": overview["group"]}
            self.answer("panel", fields)

    # -- The questions

    def overview(self, fields: Json) -> Json:
        """Return all sessions, all keys and steps, and the config entries that differ."""
        catalog = self.catalog
        keys, steps = catalog.key_names(), catalog.step_names()
        newest = catalog.newest()
        config = differing([catalog.runs[i] for i in newest.tolist()])
        return {
            "paths": catalog.paths,
            "sessions": [describe_session(s) for s in catalog.sessions.values()],
            "problems": list(catalog.problems),
            "keys": [{"name": key, "low": is_better_low(key)} for key in keys],
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
        x = self._position(options.x, key)
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
        which = {name: fields.get(name) for name in ("group", *SELECTION)}
        place = json.dumps([key, x, smooth, which, self.catalog.version], sort_keys=True)
        with self._lock:
            known = self._panels.get(place)
            if known is not None:
                self._panels.move_to_end(place)
                return known
        runs = self.selected(fields)
        chosen = set(runs.tolist())
        marks = [mark for mark in self._marks_of(key, x) if mark.run in chosen]
        # Group all runs, not only selected ones. So a filter changes no colours or ranges.
        groups = self._groups(fields.get("group"), self._listed(fields))
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
        x = self._position(options.x, key)
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
            summary = self.summary(str(key))
            columns[key] = {
                name: [number(float(v)) for v in getattr(summary, name)]
                for name in ("last", "low", "high", "mean", "first_nonfinite")
            }
            columns[key]["rows"] = summary.rows.tolist()
            columns[key]["rate"] = [number(rate) for rate in self._rates(key, summary.rows)]
        # Also list runs that are not picked, so that a user can pick them.
        listed = self.selected({**fields, "picks": None}).tolist()
        selected = self.selected(fields).tolist()
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
        """Return how many runs end with a value that is not finite, by session."""
        counts = {}
        for session in self.catalog.sessions.values():
            numbers, gone = set(session.numbers.values()), set[int]()
            for key in session.columns.suspects():
                marks = self._marks_of(key, self._position("step", key))
                gone.update(mark.run for mark in marks if mark.is_end)
            counts[session.uid] = len(gone & numbers)
        return {"diverged": counts}

    def run(self, fields: Json) -> Json:
        """Return the config and the keys of one run."""
        return describe_run(self._find(str(fields["run"])))

    def media(self, fields: Json) -> Json:
        """Return rows of an array of one run: an image, a video, or a heat map."""
        return media_rows(self._find(str(fields["run"])), fields)

    # -- Selecting runs

    def selected(self, fields: Json) -> np.ndarray:
        """Return the numbers of the runs that the fields of a request select."""
        runs = self._listed(fields)
        where = str(fields.get("where") or "").strip()
        if where:
            found = select_where(self._stored(runs), where)
            runs = np.array([run.index for run in found], int)
        for name, (low, high) in (fields.get("brush") or {}).items():
            column = np.array([_float(v) for v in self._column(name, runs)])
            runs = runs[(column >= low) & (column <= high)]
        picks = fields.get("picks")
        if picks:
            chosen = {run.number for run in self.catalog.runs if run.uid in set(picks)}
            runs = np.array([run for run in runs.tolist() if run in chosen], int)
        return runs

    def _listed(self, fields: Json) -> np.ndarray:
        """Return the runs of the selected sessions, before any filter."""
        sessions = fields.get("sessions")
        if sessions is None:
            return self.catalog.newest()
        inside = [run for run in self.catalog.runs if run.session.uid in sessions]
        return np.array([run.number for run in inside], int)

    def _column(self, name: str, runs: np.ndarray) -> Sequence[Any]:
        """Return a config entry of some runs, or the last value of a key."""
        chosen = [self.catalog.runs[i] for i in runs.tolist()]
        if any(name in run.config for run in chosen):
            return [run.config.get(name) for run in chosen]
        return self.summary(name).last[runs].tolist()

    def _stored(self, runs: np.ndarray) -> list[StoredRun]:
        """Return runs in the form that filters take, with their numbers in `index`."""
        chosen = [self.catalog.runs[i] for i in runs.tolist()]
        keys = self.catalog.key_names()
        return [
            StoredRun(
                name=run.run.title,
                key=run.run.key,
                config=run.run.config,
                start=run.run.start,
                rows=0,
                keys=tuple(keys),
                session=run.session.name,
                process=run.run.process,
                launch=run.run.launch,
                group=run.run.group,
                tags=run.run.tags,
                store=run.session.store,
                state=run.session.state(),
                last=_LastValues(self, keys, run.number),
                index=run.number,
            )
            for run in chosen
        ]

    def summary(self, key: str) -> Summary:
        """Return the summary of a key in all runs."""
        version = self.catalog.version
        known = self._summaries.get(key)
        if known is None or known[0] != version:
            everything = np.arange(len(self.catalog.runs))
            parts = self.catalog.parts(key, self._position("step", key), everything)
            known = version, summarize(parts, len(everything))
            self._summaries[key] = known
        return known[1]

    def _groups(self, name: str | None, runs: np.ndarray) -> list[Group]:
        if not name:
            return [Group("all runs", runs)]
        values = [self.catalog.runs[i].config.get(name) for i in runs.tolist()]
        return group_runs(values, runs, str(name))

    def _position(self, x: str, key: str) -> str:
        """Return the requested position, or else the first step of the key, or rows."""
        names: list[str] = []
        for session in self.catalog.sessions.values():
            leaves = session.columns.leaves().get(key)
            if leaves:
                names += session.columns.steps(leaves)
                if x == TIME and session.columns.has_times(leaves):
                    return TIME
        if x in (ROWS, *names):
            return x
        return names[0] if names else ROWS

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


def _float(value: Any) -> float:
    return float(value) if is_number(value) else float("nan")


class _LastValues(Mapping[str, np.generic]):
    """The last values of a run by key, computed only for keys that a filter uses."""

    def __init__(self, viewer: Viewer, keys: Sequence[str], run: int):
        self._viewer, self._keys, self._run = viewer, keys, run

    def __getitem__(self, key: str) -> np.generic:
        if key not in self._keys:
            raise KeyError(key)
        return self._viewer.summary(key).last[self._run]

    def __iter__(self) -> Iterator[str]:
        return iter(self._keys)

    def __len__(self) -> int:
        return len(self._keys)
