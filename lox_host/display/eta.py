"""How fast something goes, and how long the rest of it takes, in words."""

import math


def pace(done: int, total: float, rate: float, seconds: float, unit: str) -> str:
    """How far something is after some seconds: `25%, 50/200 rows, 5/s, 0:30 left`.

    A total of infinity: nobody knows. At the end it is how long it took.
    """
    if total == math.inf:
        return f"{done} {unit}, {speed(rate)}/s"
    share = done / total if total else 1.0
    left = duration((total - done) / rate if rate else math.inf)
    end = f"in {duration(seconds)}" if done == total else f"{left} left"
    return f"{share:.0%}, {done}/{total} {unit}, {speed(rate)}/s, {end}"


def speed(rate: float) -> str:
    """A rate in three digits or more, without powers of ten for a fast one."""
    return f"{rate:.0f}" if rate >= 100 else f"{rate:.3g}"


def duration(seconds: float) -> str:
    """A time span as hours, minutes and seconds: `1:02:03`."""
    if seconds == math.inf:
        return "unknown"
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
