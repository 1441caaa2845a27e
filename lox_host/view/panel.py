"""Draw one panel: a key of all selected runs, as groups with bands and lines or an image.

    rows of the key -> smoothed -> groups: centre and band -> JSON for the page
                                -> up to 48 runs: lines, more: an image of their density

`PanelRows` holds what stays the same while a user zooms and pans. `draw_panel` computes
what depends on the visible span.
"""

import base64
import math
from collections.abc import Sequence

import numpy as np

from lox_host.display.bands import LEVEL, resamples
from lox_host.view import density as drawing
from lox_host.view.aggregate import Aggregate, common_positions
from lox_host.view.data.series import Part
from lox_host.view.panel_rows import Json, PanelOptions, PanelRows

CENTRE_NAMES = {"mean": "mean", "median": "median", "iqm": "interquartile mean"}
BAND_NAMES = {
    "std": "± std",
    "80": "10–90 %",
    "range": "range",
    "none": "",
}


def draw_panel(rows: PanelRows, options: PanelOptions) -> Json:
    """Return everything that a page needs to draw a panel.

    Args:
        rows: The rows of all selected runs.
        options: The options that the user has chosen.
    """
    raw, smooth, marks = rows.raw, rows.parts, rows.marks
    runs = sum(len(part.runs) for part in raw)
    found: Json = {"runs": rows.runs, "groups": [], "lines": [], "density": None}
    found["marks"] = [
        {**rows.name(mark.run), "x": mark.x, "y": number(mark.y), "end": mark.is_end}
        for mark in marks
        if math.isfinite(mark.x)
    ]
    found["diverged"] = sum(mark["end"] for mark in found["marks"])
    found["rows"] = int(sum(part.lengths.sum() for part in raw))
    if not runs:
        return found
    aggregates, group_of = [], dict[int, int]()
    found["palette"] = len(rows.groups)
    for index, group in enumerate(rows.groups):
        group_of |= dict.fromkeys(group.runs.tolist(), index)
    if runs > 1:
        results = zip(rows.groups, rows.aggregates(options), strict=True)
        for index, (group, result) in enumerate(results):
            if result.runs:
                aggregates.append(result)
                shown = {"label": group.label, "index": index, **_group(result)}
                found["groups"].append(shown)
    around = drawing.envelope(smooth, options.span, known=rows.blocks)
    found["extent"] = _extent(smooth)
    gone = np.concatenate([np.isin(part.runs, rows.gone) for part in raw])
    near, full = _ranges(around, gone, options.log_y)
    y = full if options.full_range else near
    found |= {"y": list(y), "full_y": list(full)}
    if runs <= drawing.LINES:
        found["lines"] = [
            {
                **rows.name(line.run),
                "group": group_of.get(line.run),
                "x": packed(line.x),
                "y": packed(line.y),
            }
            for line in drawing.lines(smooth, options.span, 300)
        ]
    else:
        found["density"] = _image(around, y, options.log_y)
    of_runs = "" if rows.elements is None else f" of {_count(rows.runs, 'run')}"
    found["note"] = _note(raw, aggregates, options, of_runs)
    if options.log_y and bool((around.low <= 0).any()):
        found["note"] = ", ".join(filter(None, [found["note"], "values ≤ 0 not shown"]))
    found["points"] = sum(len(result.x) for result in aggregates)
    return found


def _group(result: Aggregate) -> Json:
    arrays = ("x", "centre", "low", "high")
    fields = {name: packed(getattr(result, name)) for name in arrays}
    counts = result.counts
    least, most = (int(counts.min()), int(counts.max())) if len(counts) else (0, 0)
    return {
        **fields,
        "runs": result.runs,
        "diverged": result.diverged,
        "least": least,
        "most": most,
        "counts": packed(counts.astype(np.int32)),
    }


def _extent(parts: Sequence[Part]) -> list[float]:
    """Return the first and the last position of all rows."""
    lows = [float(np.nanmin(part.x)) for part in parts]
    highs = [float(np.nanmax(part.x)) for part in parts]
    return [min(lows), max(highs)]


def _ranges(
    around: drawing.Envelope, gone: np.ndarray, log_y: bool
) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return the range of values to show, and the range of all values.

    A logarithmic axis only has positive values. Runs that diverge often have huge values
    before that, so the range to show comes from the other runs.
    """
    low, high = around.low, around.high
    if log_y:
        with np.errstate(all="ignore"):
            low = np.log10(np.where(low > 0, low, np.nan))
            high = np.log10(np.where(high > 0, high, np.nan))
        low = np.fmin(low, high)
    near, full = drawing.value_range(low, high)
    if gone.any() and not gone.all():
        near, _ = drawing.value_range(low[:, ~gone], high[:, ~gone])
    if log_y:
        return (10 ** near[0], 10 ** near[1]), (10 ** full[0], 10 ** full[1])
    return near, full


def _image(around: drawing.Envelope, y: tuple[float, float], log_y: bool) -> Json:
    if log_y:
        with np.errstate(all="ignore"):
            floor = np.log10(np.maximum(around.low, y[0] / 10))
            top = np.log10(np.where(around.high > 0, around.high, np.nan))
        around = drawing.Envelope(around.span, floor, top)
        counts = drawing.density(around, (math.log10(y[0]), math.log10(y[1])))
    else:
        counts = drawing.density(around, y)
    rows, columns = counts.shape
    return {
        "x": list(around.span),
        "y": list(y),
        "size": [columns, rows],
        "counts": packed(counts.astype(np.uint16)),
    }


def _note(
    parts: Sequence[Part],
    aggregates: Sequence[Aggregate],
    options: PanelOptions,
    of_runs: str,
) -> str:
    """Return the caption of the panel, which says what is drawn and of how many runs.

    Args:
        parts: The rows.
        aggregates: The groups.
        options: The options that the user has chosen.
        of_runs: A text with the number of runs, if each line is an element of a run.
            Empty: each line is a run.
    """
    runs = sum(len(part.runs) for part in parts)
    gone = sum(result.diverged for result in aggregates)
    noun = f"elements{of_runs}" if of_runs else "runs"
    said = []
    if aggregates and gone == runs:
        said.append(f"all {runs:,} {noun} diverged")
    elif aggregates:
        counted = f"{runs - gone:,} of {runs:,} {noun}" if gone else f"{runs:,} {noun}"
        said.append(f"{_drawn(aggregates, options)} of {counted}")
        said += [f"{gone:,} diverged"] if gone else []
    elif runs == 1:
        said.append(f"1 element{of_runs}" if of_runs else "1 run")
    if options.smooth > 1:
        said.append(f"smoothed over {options.smooth:,} rows")
    if aggregates and common_positions(parts) is None:
        said.append("interpolated at common positions")
    return ", ".join(said)


def _drawn(aggregates: Sequence[Aggregate], options: PanelOptions) -> str:
    """Say what the line and the band are."""
    band = BAND_NAMES.get(options.band)
    if band is None:
        largest = max(aggregates, key=lambda result: result.runs)
        number = resamples((len(largest.x), largest.runs), options.centre)
        band = f"{LEVEL:.0%} bootstrap CI ({number:,} resamples)"
    return f"{CENTRE_NAMES[options.centre]} {band}".strip()


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def nearest_run(parts: Sequence[Part], x: float, y: float, *, is_log: bool) -> Json | None:
    """Return the run whose value at `x` is closest to `y`, with that value."""
    best: Json | None = None
    for part in parts:
        if part.is_shared:
            row = int(np.argmin(np.abs(part.x - x)))
            values, at = part.values[row].astype(float), float(part.x[row])
        else:
            lines = (part.line(column) for column in range(len(part.runs)))
            ends = np.array([np.interp(x, *line, np.nan, np.nan) for line in lines])
            values, at = ends, x
        with np.errstate(all="ignore"):
            distance = np.abs(np.log(values / y)) if is_log else np.abs(values - y)
        if not np.isfinite(distance).any():
            continue
        column = int(np.nanargmin(distance))
        gap = float(distance[column])
        if best is None or gap < best["gap"]:
            value = float(values[column])
            best = {"run": int(part.runs[column]), "x": at, "value": value, "gap": gap}
    return best


def packed(array: np.ndarray) -> Json:
    """Encode an array for JSON: its type, and its bytes in base64."""
    flat = np.ascontiguousarray(array)
    kind = {"f": "f", "i": "i", "u": "u"}[flat.dtype.kind]
    data = base64.b64encode(flat.astype(flat.dtype.newbyteorder("<"))).decode()
    return {"t": f"{kind}{flat.dtype.itemsize}", "d": data}


def number(value: float) -> float | None:
    """Return a number, or None if it is not finite, since JSON has no NaN."""
    return value if math.isfinite(value) else None
