"""Logs as a table in notebooks: a line for each array, with a small curve. NumPy only.

    key         type          last             range          not finite    trend
    loss        float32[100]  0.002403         0.0024 - 1.0                 (a curve)
    seeds       float32[4,9]  0.039 ± 0.057    0.0003 - 1.0   2, the first at step 7

Everything that comes from logs is escaped: a key may be `<script>`.
"""

import html
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from lox_host.display.text import clean, deviation, digits, diverged, not_finite
from lox_host.display.values import short
from lox_host.rows import FlatRows

POINTS = 120  # of a curve
WIDTH, HEIGHT = 120, 24  # of a curve, in pixels
HEADS = ("key", "type", "last", "range", "not finite", "trend")


class TableLine(NamedTuple):
    """What a table says of one array, as HTML."""

    key: str
    kind: str
    last: str
    range: str
    health: str
    trend: str


def logs_table(rows: Mapping[str, FlatRows], kinds: Mapping[str, str]) -> str:
    """Return the table of some logs.

    Args:
        rows: The rows by key.
        kinds: By name of an array, its dtype and shape as the user knows them.
    """
    lines = [
        _line(name, array, flat, kinds.get(name, ""))
        for flat in rows.values()
        for name, array in flat.arrays.items()
    ]
    heads = "".join(f'<th style="text-align:left">{head}</th>' for head in HEADS)
    cells = (
        "".join(f'<td style="text-align:left">{x}</td>' for x in line) for line in lines
    )
    body = "".join(f"<tr>{row}</tr>" for row in cells)
    return f"<table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>"


def _line(name: str, array: np.ndarray, rows: FlatRows, kind: str) -> TableLine:
    front = 1 + len(rows.examples)
    valid = np.ones(array.shape[:front], bool) if rows.valid is None else rows.valid
    # (rows, *examples, ...) -> (rows, examples, elements)
    shape = len(array), int(np.prod(array.shape[1:front])), -1
    elements = array.reshape(*shape[:2], int(np.prod(array.shape[front:])))
    is_logged = np.broadcast_to(valid.reshape(*shape[:2], 1), elements.shape)
    key, text = html.escape(clean(name)), html.escape(kind)
    # The data of a PRNG key is no quantity.
    is_number = array.dtype.kind in "biufc" and not kind.startswith("key<")
    if not is_logged.any() or not is_number:
        return TableLine(key, text, "", "", "", "")
    numbers = np.abs(elements) if array.dtype.kind == "c" else elements
    numbers = numbers.astype(np.float64)
    finite = is_logged & np.isfinite(numbers)
    bad = is_logged & ~finite
    return TableLine(
        key,
        text,
        html.escape(_last(array, elements, is_logged[..., 0])),
        html.escape(_range(numbers[finite], array.dtype.kind)),
        _health(bad.any(2), rows),
        sparkline_svg(_trend(numbers, finite)),
    )


def _last(array: np.ndarray, elements: np.ndarray, is_logged: np.ndarray) -> str:
    """Write the last value of a single example, or the mean over those of several."""
    has_logged = is_logged.any(0)
    # The last row of each example: the first from the end that it has logged.
    last = len(is_logged) - 1 - np.argmax(is_logged[::-1], axis=0)
    values = elements[last, np.arange(elements.shape[1])][has_logged]
    if values.shape[1] != 1 or array.dtype.kind == "c":
        return short(values[0]) if len(values) == 1 else ""
    if len(values) == 1:
        return digits(float(values[0, 0]), array.dtype.kind)
    numbers = values[:, 0].astype(np.float64)
    finite = numbers[np.isfinite(numbers)]
    gone = diverged(len(numbers) - len(finite), len(numbers))
    if not len(finite):
        return f"{digits(numbers[0])}{gone}"
    return f"{digits(finite.mean())} ± {deviation(finite.std())}{gone}"


def _range(numbers: np.ndarray, kind: str) -> str:
    if not len(numbers):
        return ""
    low, high = numbers.min(), numbers.max()
    return (
        digits(low, kind) if low == high else f"{digits(low, kind)} – {digits(high, kind)}"
    )


def _health(bad: np.ndarray, rows: FlatRows) -> str:
    """Say in red how many rows of examples are not finite, and since which step."""
    is_bad = bad.any(1)
    if not is_bad.any():
        return ""
    names = sorted(rows.steps, key=lambda name: name != "step")
    first = int(np.argmax(is_bad))
    step = names[0] if names else "row"
    since = float(np.max(rows.steps[step][first])) if names else float(first)
    text = not_finite(int(bad.sum()), step, since)
    return f'<span style="color:#c00">{html.escape(text)}</span>'


def _trend(numbers: np.ndarray, finite: np.ndarray) -> np.ndarray:
    """Return the mean of all finite elements in time, in a few points. NaN: none is."""
    if len(numbers) < 2:
        return np.zeros(0)
    counts = finite.sum((1, 2))
    sums = np.where(finite, numbers, 0.0).sum((1, 2))
    # Row i belongs to point i * size // rows: points have nearly as many rows each.
    size = min(POINTS, len(numbers))
    point = np.arange(len(numbers)) * size // len(numbers)
    counts, sums = (np.bincount(point, x, size) for x in (counts, sums))
    with np.errstate(all="ignore"):
        return np.where(counts > 0, sums / counts, np.nan)


def sparkline_svg(points: np.ndarray) -> str:
    """Draw a curve, with gaps where there is no number."""
    finite = points[np.isfinite(points)]
    if len(finite) < 2:
        return ""
    low, high = finite.min(), finite.max()
    with np.errstate(all="ignore"):
        share = np.nan_to_num((points - low) / (high - low), nan=0.5)
    x = np.arange(len(points)) / (len(points) - 1) * (WIDTH - 4) + 2
    # In SVG, y grows downwards. A margin keeps the line inside the picture.
    y = HEIGHT - 3 - share * (HEIGHT - 6)
    path = " ".join(_segments(x, y, np.isfinite(points)))
    return (
        f'<svg width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}">'
        f'<path d="{path}" fill="none" stroke="currentColor" stroke-width="1.5"/></svg>'
    )


def _segments(x: np.ndarray, y: np.ndarray, finite: np.ndarray) -> Sequence[str]:
    """Return the commands of a path: move to where a part begins, and draw lines."""
    commands, is_drawing = [], False
    for at_x, at_y, ok in zip(x.tolist(), y.tolist(), finite.tolist(), strict=True):
        if ok:
            commands.append(f"{'L' if is_drawing else 'M'}{at_x:.1f},{at_y:.1f}")
        is_drawing = ok
    return commands
