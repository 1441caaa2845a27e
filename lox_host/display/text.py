"""How a console writes numbers, names and curves."""

import math
import re

import numpy as np

BARS = "▁▂▃▄▅▆▇█"
MANY = 1e7  # from here on, powers of ten


def digits(number: float, kind: str = "f") -> str:
    """A number in four digits; whole ones and truths as what they are."""
    if kind == "b" and number in (0, 1):
        return str(bool(number))
    if not math.isfinite(number):
        return f"{number:.0f}"
    if abs(number) < MANY and (abs(number) >= 1e3 or kind in "iu"):
        return f"{number:.0f}"
    return _short(f"{number:#.4g}")


def deviation(number: float) -> str:
    """How far numbers lie from their mean, in two digits."""
    return _short(f"{number:.2g}")


def clean(name: str) -> str:
    """A name without what would move the cursor."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in name)


def sparkline(points: np.ndarray) -> str:
    """A curve of one line."""
    if not len(points):
        return ""
    low, high = points.min(), points.max()
    with np.errstate(all="ignore"):
        heights = np.nan_to_num((points - low) / (high - low))
    return "".join(BARS[round(h * (len(BARS) - 1))] for h in heights.clip(0, 1).tolist())


def count(number: int, noun: str) -> str:
    """`1 run`, `2 runs`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _short(text: str) -> str:
    """`1.5e+08` as `1.5e8`, and `1000.` as `1000`."""
    return re.sub(r"e([+-])0*", lambda e: "e" + e[1].strip("+"), text).removesuffix(".")
