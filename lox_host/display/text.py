"""How a console writes numbers, times, names and curves."""

import math
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

BARS = "▁▂▃▄▅▆▇█"
MANY = 1e7  # from here on, powers of ten


def digits(number: float, kind: str = "f") -> str:
    """Write a number in four digits; whole ones and truths as what they are.

    Args:
        number: The number.
        kind: What NumPy calls the kind of its type, such as "i" or "b".
    """
    if kind == "b" and number in (0, 1):
        return str(bool(number))
    if not math.isfinite(number):
        return f"{number:.0f}"
    if abs(number) < MANY and (abs(number) >= 1e3 or kind in "iu"):
        return f"{number:.0f}"
    return _short(f"{number:#.4g}")


def deviation(number: float) -> str:
    """Write in two digits how far numbers lie from their mean."""
    return _short(f"{number:.2g}")


def speed(rate: float) -> str:
    """Write a rate in three digits or more, without powers of ten for a fast one."""
    return f"{rate:.0f}" if rate >= 100 else f"{rate:.3g}"


def duration(seconds: float) -> str:
    """Write a time span as hours, minutes and seconds: `1:02:03`."""
    if seconds == math.inf:
        return "unknown"
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def clean(name: str) -> str:
    """Write a name without what would move the cursor."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in name)


def sparkline(points: "np.ndarray") -> str:
    """Draw a curve in one line of text."""
    if not len(points):
        return ""
    import numpy as np

    low, high = points.min(), points.max()
    with np.errstate(all="ignore"):
        heights = np.nan_to_num((points - low) / (high - low))
    return "".join(BARS[round(h * (len(BARS) - 1))] for h in heights.clip(0, 1).tolist())


def count(number: int, noun: str) -> str:
    """Write a number of things: `1 run`, `2 runs`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def not_finite(number: int, step: str, first: float) -> str:
    """Say how many values are NaN or infinite, and since when, if they have a step."""
    since = f", the first at {clean(step)} {digits(first, 'i')}" if step else ""
    return f"{number} not finite{since}"


def diverged(number: int, runs: int) -> str:
    """Say in brackets how many runs have a last value that is not finite, if any."""
    return f" ({number} of {runs} diverged)" if number else ""


def _short(text: str) -> str:
    """Write `1.5e+08` as `1.5e8`, and `1000.` as `1000`."""
    return re.sub(r"e([+-])0*", lambda e: "e" + e[1].strip("+"), text).removesuffix(".")
