"""`logs.to_pandas()` and `logs.to_polars()`: all keys in one table."""

from typing import TYPE_CHECKING

from lox._logdict.numpy import HasRows, flat_rows, to_numpy
from lox_host.extras import import_extra

if TYPE_CHECKING:
    import pandas
    import polars


def to_pandas(logs: HasRows) -> "pandas.DataFrame":
    """Put all keys into one `DataFrame`, with one line per step.

    Logs that were loaded from a store have the name of the run and its config in front.
    The other columns are `batch` (`batch_0`, `batch_1`, ... if there are several batch
    axes), the steps, and the keys. Values of different keys are in one line if they have
    the same batch indices and the same steps. If a key has several values there, its
    second value goes next to the second value of other keys, and so on. Keys without
    steps go side by side, row by row, with a column `row`.

    The lines are sorted by batch index and steps or, if the steps of some key do not
    increase, in the order of logging. Rows that were not really logged are left out, and
    missing values are `NaN`, `<NA>` or `None`. Pytrees become one column per array,
    `key/a/b`. Arrays become objects. Floats of 16 bits and less that NumPy does not have
    become float32.

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

    Missing values are null. Arrays become columns of the type `Array`, and complex
    numbers become structs of `real` and `imag`.

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
