"""The last values of the runs of a session, from as few frames as it takes."""

from typing import Any

import numpy as np

from lox_host.store.dtypes import named
from lox_host.store.frames import Frame
from lox_host.store.layout import ROW, RUN, Layout
from lox_host.store.reader import Reader, Snapshot

# By the id of a run and by key, the last value.
Lasts = dict[int, dict[str, Any]]


def lasts(now: Snapshot) -> Lasts:
    """The last value of each key that is a real number, for each run."""
    newest: dict[tuple[int, str], tuple[int, Any]] = {}
    with Reader(now) as reader:
        for number, layout in now.layouts.items():
            for place, own in _of_group(reader, now.frames[number], layout).items():
                newest[place] = max(newest.get(place, own), own, key=lambda pair: pair[0])
    found: Lasts = {id: {} for id in now.runs}
    for key in now.keys:
        for id in now.runs:
            if (id, key) in newest:
                found[id][key] = newest[id, key][1]
    return found


def _of_group(
    reader: Reader, frames: list[Frame], layout: Layout
) -> dict[tuple[int, str], tuple[int, Any]]:
    """By run and key, the number of the last row and its value."""
    columns = {k: own.tree for k, own in layout.keys.items() if _is_number(layout, own)}
    waiting = set(reader.now.runs)
    found: dict[tuple[int, str], tuple[int, Any]] = {}
    for frame in reversed(frames) if columns else ():
        low, high = frame.runs
        if not any(low <= id <= high for id in waiting):
            continue
        runs, rows = reader.column(frame, RUN), reader.column(frame, ROW)
        values = {key: reader.column(frame, column) for key, column in columns.items()}
        if runs is None or rows is None:
            continue
        ids, behind = np.unique(runs[::-1], return_index=True)
        for id, i in zip(ids.tolist(), (len(runs) - 1 - behind).tolist(), strict=True):
            for key, of in values.items() if id in waiting else ():
                if of is not None:
                    found[id, key] = int(rows[i]), of[i]
        waiting -= set(ids.tolist())
    return found


def _is_number(layout: Layout, key: Any) -> bool:
    if not isinstance(key.tree, int) or key.form.keys:
        return False
    column = layout.columns[key.tree]
    return column.shape == () and named(column.dtype).kind != "c"
