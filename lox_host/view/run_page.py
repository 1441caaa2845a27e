"""The page of one run: its config, its keys, and the arrays and images that it logged."""

import math

import numpy as np

from lox_host.store import RUN, Frame, Layout
from lox_host.view.data.series import to_float
from lox_host.view.data.session import ViewRun, flat_config
from lox_host.view.panel import packed
from lox_host.view.panel_rows import Json

CELLS = 400  # the most rows of a heat map; more are averaged
ELEMENTS = 256  # the most elements of a row in a heat map; more are averaged
PIXELS = 1 << 20  # the most pixels of an image; larger ones are thinned out


def describe_run(run: ViewRun) -> Json:
    """Return the config of a run, and which numbers and arrays it has logged."""
    columns = run.session.columns
    return {
        "uid": run.uid,
        "name": run.name,
        "session": run.session.name,
        "store": run.session.store,
        "state": run.session.state(),
        "started": run.run.start,
        "key": list(run.run.key),
        "config": [[name, _text(value)] for name, value in flat_config(run.run.config)],
        "environment": [[n, _text(v)] for n, v in flat_config(columns.environment)],
        "facts": _facts(run),
        "keys": list(columns.leaves()),
        "arrays": list(arrays_of(run).values()),
    }


def _facts(run: ViewRun) -> list[list[str]]:
    """Return what the user may have set for a run in addition to its config."""
    facts = {
        "group": run.run.group,
        "tags": ", ".join(run.run.tags),
        "resumed": "yes" if run.run.resumed else "",
    }
    return [[name, text] for name, text in facts.items() if text]


def arrays_of(run: ViewRun) -> dict[str, Json]:
    """Return by name the arrays that a session logs, and how each is best shown."""
    found: dict[str, Json] = {}
    for group, layout in run.session.columns.layouts.items():
        for name, key in layout.keys.items():
            numbers = [i for i in key.columns if i != key.valid]
            leaves = {layout.columns[i].name.rpartition("/")[2]: i for i in numbers}
            if leaves.keys() == {"counts", "edges", "nonfinite"}:
                entry = {"kind": "histogram", "column": leaves["counts"]}
                found[name] = {"name": name, "group": group, **entry, "shape": []}
                found[name]["edges"] = leaves["edges"]
                continue
            for i in numbers:
                column = layout.columns[i]
                if len(column.shape) > key.form.batch and math.prod(column.shape):
                    kind = kind_of(column.dtype, column.shape)
                    entry = {"kind": kind, "column": i, "shape": list(column.shape)}
                    found[column.name] = {"name": column.name, "group": group, **entry}
    return found


def kind_of(dtype: str, shape: tuple[int, ...]) -> str:
    """Say how to show an array: as `image` or `video`, or as `heat map` of its elements."""
    is_coloured = dtype == "uint8" and len(shape) > 2 and shape[-1] in (1, 3, 4)
    if is_coloured and len(shape) == 3:
        return "image"
    if is_coloured and len(shape) == 4:
        return "video"
    return "image" if dtype == "uint8" and len(shape) == 2 else "heat map"


def media_rows(run: ViewRun, fields: Json) -> Json:
    """Return what to draw of an array: one row of images, or all rows as a heat map."""
    entry = arrays_of(run).get(str(fields["name"]))
    if entry is None:
        raise LookupError(f"The run {run.run.name!r} has no array {fields['name']!r}.")
    rows = _ArrayRows(run, entry["group"])
    if entry["kind"] in ("image", "video"):
        return {**entry, **_picture(rows, entry, int(fields.get("row", -1)))}
    values, steps = rows.read(entry["column"])
    flat = _magnitude(values).reshape(len(values), -1)
    found = {**entry, "rows": len(flat), "elements": int(flat.shape[1])}
    if entry["kind"] == "histogram":
        edges, _ = rows.read(entry["edges"])
        found["edges"] = packed(_mean_rows(edges.reshape(len(edges), -1).astype(float)))
    cells = _thin(_mean_rows(flat), ELEMENTS if entry["kind"] != "histogram" else 4096)
    found["size"] = [cells.shape[0], cells.shape[1]]
    found["x"] = [float(steps[0]), float(steps[-1])] if len(steps) else [0.0, 1.0]
    found["cells"] = packed(cells.astype(np.float32))
    return found


class _ArrayRows:
    """Rows of one run in one group, read by the column and not kept."""

    def __init__(self, run: ViewRun, group: int):
        self._run, self._group = run, group
        self._columns = run.session.columns

    def places(self) -> list[tuple[Frame, np.ndarray]]:
        """Return the frames that have rows of the run, and which of theirs these are."""
        found = []
        with self._columns.frame_reader() as files:
            for frame in self._columns.frames_of(self._group):
                low, high = frame.runs
                if not low <= self._run.run.id <= high:
                    continue
                runs = np.full(frame.rows, low) if low == high else files.column(frame, RUN)
                if runs is not None:
                    rows = np.flatnonzero(runs == self._run.run.id)
                    if len(rows):
                        found.append((frame, rows))
        return found

    def read(
        self, column: int, only: tuple[Frame, np.ndarray] | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the values of a column and the steps of its rows, oldest first."""
        step = self._step_column()
        values, steps, at = [], [], 0
        places = self.places() if only is None else [only]
        with self._columns.frame_reader() as files:
            for frame, rows in places:
                array = files.column(frame, column)
                positions = None if step is None else files.column(frame, step)
                if array is None:
                    continue
                values.append(array[rows])
                own = (
                    np.arange(at, at + len(rows)) if positions is None else positions[rows]
                )
                steps.append(own)
                at += len(rows)
        if not values:
            return np.zeros((0, 1)), np.zeros(0)
        return np.concatenate(values), np.concatenate(steps)

    def _step_column(self) -> int | None:
        layout: Layout = self._columns.layouts[self._group]
        names = [n for n, i in layout.steps.items() if layout.columns[i].shape == ()]
        names.sort(key=lambda name: name != "step")
        return layout.steps[names[0]] if names else None


def _picture(rows: _ArrayRows, entry: Json, row: int) -> Json:
    """Return one row, reading only the frame that it is in."""
    places = rows.places()
    count = sum(len(which) for _, which in places)
    if not count:
        return {"rows": 0}
    row = min(max(row if row >= 0 else count + row, 0), count - 1)
    before = 0
    for frame, which in places:
        if row < before + len(which):
            chosen = frame, which[row - before : row - before + 1]
            values, steps = rows.read(entry["column"], chosen)
            break
        before += len(which)
    else:
        return {"rows": 0}
    pixels = values[0]
    if pixels.ndim == 2:
        pixels = pixels[..., None]
    while pixels.size > 4 * PIXELS:
        pixels = pixels[..., ::2, ::2, :]
    return {
        "rows": count,
        "row": row,
        "step": float(steps[0]),
        "size": list(pixels.shape),
        "pixels": packed(pixels),
    }


def _mean_rows(values: np.ndarray) -> np.ndarray:
    """Return at most `CELLS` rows: means of as many as it takes."""
    size = -(-len(values) // CELLS)
    if size <= 1:
        return values
    starts = np.arange(0, len(values), size)
    counts = np.diff(np.append(starts, len(values)))
    return np.add.reduceat(values.astype(float), starts) / counts[:, None]


def _thin(values: np.ndarray, most: int) -> np.ndarray:
    """Reduce a matrix to at most this many columns, by averaging neighbours."""
    return _mean_of_columns(values, -(-values.shape[1] // most))


def _mean_of_columns(values: np.ndarray, size: int) -> np.ndarray:
    if size <= 1:
        return values
    starts = np.arange(0, values.shape[1], size)
    counts = np.diff(np.append(starts, values.shape[1]))
    return np.add.reduceat(values.astype(float), starts, axis=1) / counts


def _magnitude(values: np.ndarray) -> np.ndarray:
    return np.abs(values) if values.dtype.kind == "c" else to_float(values)


def _text(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
