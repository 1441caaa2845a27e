"""Which runs the fields of a request select, and the numbers that filters compare.

{"sessions": ["ea91b33d"],            None: each run in its newest session
"where": "lr > 1e-3",                a filter
"brush": {"lr": [1e-3, 1e-2]},       ranges of config entries and last values
"picks": ["ea91b33d.7"]}             runs that the user has selected one by one
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from lox_host.reading import select_where
from lox_host.store import StoredRun
from lox_host.view.data.catalog import Catalog
from lox_host.view.data.columns import ROWS, TIME
from lox_host.view.panel_rows import Json
from lox_host.view.run_groups import Group, group_runs, is_number
from lox_host.view.summary import Summary, summarize

FIELDS = ("sessions", "where", "brush", "picks")


class Selection:
    """Selects runs of a catalog.

    Args:
        catalog: The catalog. It may grow.
    """

    def __init__(self, catalog: Catalog):
        self._catalog = catalog
        self._summaries: dict[str, tuple[int, Summary]] = {}

    def selected(self, fields: Json) -> np.ndarray:
        """Return the numbers of the runs that the fields of a request select."""
        runs = self.listed(fields)
        where = str(fields.get("where") or "").strip()
        if where:
            found = select_where(self._stored(runs), where)
            runs = np.array([run.index for run in found], int)
        for name, (low, high) in (fields.get("brush") or {}).items():
            column = np.array([_float(v) for v in self._column(name, runs)])
            runs = runs[(column >= low) & (column <= high)]
        picks = fields.get("picks")
        if picks:
            uids = set(picks)
            chosen = [run.number for run in self._catalog.runs if run.uid in uids]
            runs = runs[np.isin(runs, chosen)]
        return runs

    def listed(self, fields: Json) -> np.ndarray:
        """Return the runs of the selected sessions, before any filter."""
        sessions = fields.get("sessions")
        if sessions is None:
            return self._catalog.newest()
        inside = [run for run in self._catalog.runs if run.session.uid in sessions]
        return np.array([run.number for run in inside], int)

    def _column(self, name: str, runs: np.ndarray) -> Sequence[Any]:
        """Return a config entry of some runs, or the last value of a key."""
        chosen = [self._catalog.runs[i] for i in runs.tolist()]
        if any(name in run.config for run in chosen):
            return [run.config.get(name) for run in chosen]
        return self.summary(name).last[runs].tolist()

    def _stored(self, runs: np.ndarray) -> list[StoredRun]:
        """Return runs in the form that filters take, with their numbers in `index`."""
        chosen = [self._catalog.runs[i] for i in runs.tolist()]
        keys = self._catalog.key_names()
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
        version = self._catalog.version
        known = self._summaries.get(key)
        if known is None or known[0] != version:
            everything = np.arange(len(self._catalog.runs))
            parts = self._catalog.parts(key, self.position("step", key), everything)
            known = version, summarize(parts, len(everything))
            self._summaries[key] = known
        return known[1]

    def groups(self, name: str | None, runs: np.ndarray) -> list[Group]:
        if not name:
            return [Group("all runs", runs)]
        values = [self._catalog.runs[i].config.get(name) for i in runs.tolist()]
        return group_runs(values, runs, str(name))

    def position(self, x: str, key: str) -> str:
        """Return the requested position, or else the first step of the key, or rows."""
        names: list[str] = []
        for session in self._catalog.sessions.values():
            leaves = session.columns.leaves().get(key)
            if leaves:
                names += session.columns.steps(leaves)
                if x == TIME and session.columns.has_times(leaves):
                    return TIME
        if x in (ROWS, *names):
            return x
        return names[0] if names else ROWS


def _float(value: Any) -> float:
    return float(value) if is_number(value) else float("nan")


class _LastValues(Mapping[str, np.generic]):
    """The last values of a run by key, computed only for keys that a filter uses."""

    def __init__(self, selection: Selection, keys: Sequence[str], run: int):
        self._selection, self._keys, self._run = selection, keys, run

    def __getitem__(self, key: str) -> np.generic:
        if key not in self._keys:
            raise KeyError(key)
        return self._selection.summary(key).last[self._run]

    def __iter__(self) -> Iterator[str]:
        return iter(self._keys)

    def __len__(self) -> int:
        return len(self._keys)
