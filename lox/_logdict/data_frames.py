"""`logs.to_pandas()` and `logs.to_polars()`: all keys in one table."""

from typing import TYPE_CHECKING

from lox._logdict.numpy import HasRows, flat_rows, to_numpy
from lox_host.extras import import_extra

if TYPE_CHECKING:
    import pandas
    import polars


def to_pandas(logs: HasRows) -> "pandas.DataFrame":
    """Put all keys into one `DataFrame`, with a line for each step.

    Logs that were loaded from a store have the name of the run and its config in front.
    The other columns are `batch` (`batch_0`, `batch_1`, ... if there are several batch
    axes), the steps, and the keys. Values of different keys are in one line if
    their batch indices and all of their steps are the same; the second value that a
    key has at these is put beside the second one of other keys, and so on. So keys
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
    from lox_host.wide_table import in_pandas, table

    pd = import_extra("pandas", "`logs.to_pandas()`", "pandas")
    columns = table(flat_rows(to_numpy(logs.rows(), "to_pandas")), logs._run_labels())
    return in_pandas(pd, columns)


def to_polars(logs: HasRows) -> "polars.DataFrame":
    """Put all keys into one `DataFrame` of polars, the table of `to_pandas`.

    What is missing is null. Arrays become columns of the type `Array`, complex
    numbers structs of `real` and `imag`.

    Needs the extra `jax-lox[polars]`.

    Example:
        >>> logs = lox.logdict({"loss": 0.5}, step={"loss": 3})
        >>> logs.to_polars().to_dicts()
        [{'step': 3, 'loss': 0.5}]
    """
    from lox_host.wide_table import in_polars, table

    pl = import_extra("polars", "`logs.to_polars()`", "polars")
    columns = table(flat_rows(to_numpy(logs.rows(), "to_polars")), logs._run_labels())
    return in_polars(pl, columns)
