"""What logs can be turned into: arrays of NumPy, tables, datasets, pictures."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Self

from lox._logdict.numpy import to_numpy
from lox._logdict.plot import plot
from lox._logdict.table import to_pandas, to_polars
from lox._logdict.xarray import to_xarray
from lox._rows.rows import Rows

if TYPE_CHECKING:
    import matplotlib.figure
    import pandas
    import polars
    import xarray


class Conversions:
    """The methods of a `logdict` that turn it into something else."""

    def rows(self) -> dict[str, Rows]:
        raise NotImplementedError

    @classmethod
    def of(cls, rows: Mapping[str, Rows]) -> Self:
        raise NotImplementedError

    def to_numpy(self) -> Self:
        """The same logs with NumPy arrays; typed PRNG keys become their key data.

        Example:
            >>> logs = lox.logdict({"x": jnp.arange(3)}).to_numpy()
            >>> type(logs["x"])
            <class 'numpy.ndarray'>
        """
        return self.of(to_numpy(self.rows()))

    def to_pandas(self) -> "pandas.DataFrame":
        """All keys in one `DataFrame`, with a line for each step.

        The columns are `batch` (`batch_0`, `batch_1`, ... if there are several batch
        axes), the steps, and the keys. Values of different keys stand in one line if
        their batch indices and all of their steps are the same; the second value that a
        key has at these stands beside the second one of other keys, and so on. So keys
        without steps are put side by side row by row, with a column `row`.

        The lines are sorted by batch index and steps, or, if the steps of some key do not
        grow, in the order of logging. Rows that were not really logged are left out; what
        a line lacks is missing (`NaN`, `<NA>`, `None`). Pytrees become one column for
        each array, `key/a/b`. Arrays are kept as objects, and 16-bit and smaller floats
        that NumPy does not have become float32.

        Needs the extra `jax-lox[pandas]`.

        Example:
            >>> def f(x):
            ...     for i in range(3):
            ...         lox.log({"loss": x / (i + 1)}, step=i)
            ...     lox.log({"test": x}, step=2)
            >>> print(lox.spool(f)(6.0)[1].to_pandas())
               step  loss  test
            0     0   6.0   NaN
            1     1   3.0   NaN
            2     2   2.0   6.0
        """
        return to_pandas(self.rows())

    def to_polars(self) -> "polars.DataFrame":
        """All keys in one `DataFrame` of polars: the table of `to_pandas`.

        What is missing is null. Arrays become columns of the type `Array`, complex
        numbers structs of `real` and `imag`.

        Needs the extra `jax-lox[polars]`.

        Example:
            >>> logs = lox.logdict({"loss": 0.5}, step={"loss": 3})
            >>> logs.to_polars().to_dicts()
            [{'step': 3, 'loss': 0.5}]
        """
        return to_polars(self.rows())

    def to_xarray(self) -> "xarray.Dataset":
        """All keys in one `Dataset`, the steps as coordinates.

        The axes of a key are `time`, `batch` (`batch_0`, ... if there are several) and
        those of its values, `key_0`, `key_1`, ..., in the order that they have. Keys with
        the same rows and steps share the axis `time` and its coordinates, such as `step`.
        If there are several of these groups, each is named after its first key:
        `time_loss`, `step_loss`. A step that is the same for the whole batch is a
        coordinate of time alone.

        Where rows may not have been logged, the coordinate `valid_key` says which were;
        floats and steps are NaN where they were not. Pytrees become one variable for each
        array, `key/a/b`.

        Needs the extra `jax-lox[xarray]`.

        Example:
            >>> logs = lox.logdict({"x": 1.0}, step={"x": 5})
            >>> logs += lox.logdict({"x": 2.0}, step={"x": 6})
            >>> dataset = logs.to_xarray()
            >>> dataset["x"].dims, dataset["step"].values.tolist()
            (('time',), [5, 6])
        """
        return to_xarray(self.rows())

    def plot(
        self,
        keys: str | Iterable[str] | None = None,
        x: str | None = None,
        *,
        axes: Any = None,
        band: str | None = "std",
    ) -> "matplotlib.figure.Figure":
        """Draw the scalar keys against a step, each in a panel of its own.

        Of a batch, the mean is drawn and a band around it, of the values that are finite.
        If the examples have rows at different steps, their curves are averaged.

        Args:
            keys: The key or keys to draw. Default: all real numbers that have rows.
            x: The step to draw them against, or `"row"` for the number of the row.
                Default: `step` if the key has it, or the first of its steps by name, or
                the number of the row.
            axes: The `Axes` of matplotlib to draw into: one for each curve, or a single
                one for all. Default: a new figure.
            band: `"std"`, `"range"`, `"80%"` (without the highest and the lowest tenth), or
                None to draw every example.

        Returns:
            The figure. Needs the extra `jax-lox[plot]`.

        Example:
            >>> logs = lox.logdict({"x": 1.0}) + lox.logdict({"x": 2.0})
            >>> figure = logs.plot()
            >>> figure.axes[0].get_xlabel(), figure.axes[0].get_ylabel()
            ('row', 'x')
        """
        return plot(self.rows(), keys, x, axes, band)
