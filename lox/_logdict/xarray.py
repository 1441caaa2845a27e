"""`logs.to_xarray()`: all keys in one `Dataset`."""

from typing import TYPE_CHECKING

from lox._logdict.numpy import HasRows

if TYPE_CHECKING:
    import xarray


def to_xarray(logs: HasRows) -> "xarray.Dataset":
    """Put all keys into one `Dataset`, with the steps as coordinates.

    The axes of a key are `time`, `batch` (`batch_0`, ... if there are several) and the
    axes of its values, `key_0`, `key_1`, ..., in their order. Keys with
    the same rows and steps share the axis `time` and its coordinates, such as `step`.
    If there are several of these groups, each is named after its first key:
    `time_loss`, `step_loss`. A step that is the same for the whole batch is a
    coordinate of time alone.

    If some rows may not have been logged, the coordinate `valid_key` says which ones were.
    In the others, floats and steps are NaN. Pytrees become one variable for each
    array, `key/a/b`.

    Needs the extra `jax-lox[xarray]`.

    Example:
        >>> logs = lox.logdict({"x": 1.0}, step={"x": 5})
        >>> logs += lox.logdict({"x": 2.0}, step={"x": 6})
        >>> dataset = logs.to_xarray()
        >>> dataset["x"].dims, dataset["step"].values.tolist()
        (('time',), [5, 6])
    """
    # Most programs that import lox need no table.
    from lox._logdict.dataset import dataset

    return dataset(logs)
