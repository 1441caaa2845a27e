"""`logs.plot()`: curves of logs against a step, drawn with matplotlib."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from lox._logdict.numpy import HasRows

if TYPE_CHECKING:
    import matplotlib.axes
    import matplotlib.figure


def plot(  # noqa: D417
    logs: HasRows,
    keys: str | Iterable[str] | None = None,
    x: str | None = None,
    *,
    axes: "matplotlib.axes.Axes | Iterable[matplotlib.axes.Axes] | None" = None,
    band: str | None = "std",
) -> "matplotlib.figure.Figure":
    """Draw scalars and histograms against a step, one panel per key.

    A `lox.Histogram` is drawn as a heat map: the share of values in each bin, over time.

    For a batch, the panel shows the mean and a band around it. Examples whose last value
    is not finite are left out of the mean, and drawn separately up to a red mark. If the
    examples have rows at different steps, their curves are averaged.

    Args:
        keys: The key or keys to draw. Default: all real numbers and histograms that have
            rows.
        x: The step to draw them against, or `"row"` for the number of the row.
            Default: `step` if the key has it, or the first of its steps by name, or
            the number of the row.
        axes: The `Axes` of matplotlib to draw into: one for each panel, or a single
            one for all. Default: a new figure.
        band: `"std"`, `"range"`, `"80%"` (without the highest and the lowest tenth),
            `"ci"` (a 95 % confidence interval of the mean), `"iqm"` (the interquartile mean
            with its own), or None to draw every example.

    Returns:
        The figure. Needs the extra `jax-lox[plot]`.

    Example:
        >>> logs = lox.logdict({"x": 1.0}) + lox.logdict({"x": 2.0})
        >>> figure = logs.plot()
        >>> figure.axes[0].get_xlabel(), figure.axes[0].get_ylabel()
        ('row', 'x')
    """
    # Most programs that import lox draw nothing.
    from lox._logdict.figure import draw

    return draw(logs, keys, x, axes, band)
