"""logify: log one value per call, and say in that call how to combine repeated values.

`import logify` is the same module.
"""

import dataclasses
import functools as ft
from collections.abc import Callable, Mapping
from typing import Any

import jax
from jax import export

from lox._core import log as _log
from lox._core.collect import Collect
from lox._core.spool import spool_into
from lox._core.transform import transformed
from lox._jax.types import PyTree
from lox._logdict.logdict import logdict
from lox._rows.rows import Rows
from lox._rows.several_reductions import SideBySide, split_entry_key
from lox_host.display.values import short

# What is appended are the rows that `lox.log` logs, too.
_REDUCTIONS: dict[str, Any] = {
    "replace": SideBySide("replace"),
    "append": None,
    "mean": SideBySide("mean"),
    "sum": SideBySide("sum"),
}


def log(name: str, value: PyTree, reduction: str = "replace") -> None:
    """Log a value under a name, anywhere in a JAX program.

    Each reduction of a name has its own entry. Everything that listens to `lox.log` gets
    these values too. `lox.spool` returns a name with one reduction under that name. For a
    name with several, such as `"loss"`, it returns `"loss/mean"` and `"loss/sum"`.

    Args:
        name: The name to log it under.
        value: A number, an array or a pytree of them.
        reduction: What to do with repeated values: `"replace"` keeps the last one, `"mean"`
            and `"sum"` combine them, and `"append"` stacks them along a new first axis,
            even if there is only one.

    Example:
        >>> import logify
        >>> def f(x):
        ...     logify.log("x", x, reduction="sum")
        ...     logify.log("x", x + 1, reduction="sum")
        >>> lox.spool(f)(1.0)[1]
        {'x': 3.0}
    """
    if not isinstance(name, str):
        raise TypeError(f"The name in `logify.log` must be a string, not {name!r}.")
    if not isinstance(reduction, str) or reduction not in _REDUCTIONS:
        raise ValueError(
            f"`logify.log` has no reduction {reduction!r}. Choose from "
            f"{', '.join(map(repr, _REDUCTIONS))}; `lox.log(..., reduce=...)` has more."
        )
    _log.log({name: value}, reduce=_REDUCTIONS[reduction])


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, repr=False)
class Logs:
    """What a logified function has logged, a pytree.

    Attributes:
        entries: The logs, with an entry for each name and reduction.
    """

    entries: logdict

    def asdict(self) -> dict[str, dict[str, PyTree]]:
        """The values by name and reduction: `{"loss": {"mean": ..., "sum": ...}}`."""
        return _nested(self.entries)

    @property
    def valid(self) -> dict[str, dict[str, PyTree]]:
        """Whether there was a value, for the entries where there may have been none."""
        return _nested(self.entries.valid)

    def __repr__(self) -> str:
        return f"Logs({short(self.asdict())})"


export.register_pytree_node_serialization(
    Logs,
    serialized_name="logify.Logs",
    serialize_auxdata=lambda _: b"",
    deserialize_auxdata=lambda _: (),
)


def logify(fun: Callable) -> Callable[..., tuple[PyTree, Logs]]:
    """Make `fun` return its logs along with its output.

    It works before and after `jit`, `vmap` and `grad`, and wherever `lox.spool` works. The
    logs also contain what `lox.log` logs in `fun`, under `"append"` or under the reduction
    that the call asks for.

    An entry exists even if only a branch that was not taken logs it. `logs.valid` then has
    the entry too, and says whether there was a value. If not, do not use the value. For
    `"append"`, `logs.valid` says this for each row.

    Args:
        fun: Any JAX function.

    Returns:
        A function that returns a pair, the output of `fun` and its logs.

    Example:
        >>> import logify
        >>> @jax.jit
        ... @logify.logify
        ... def f(x):
        ...     logify.log("x", x)
        ...     logify.log("x", x, reduction="mean")
        ...     logify.log("x", x + 1, reduction="mean")
        ...     return 2 * x
        >>> y, logs = f(1.0)
        >>> logs
        Logs({'x': {'replace': 1.0, 'mean': 1.5}})
        >>> logs.asdict()["x"]["mean"].item()
        1.5
    """
    _log.check_function("logify.logify", fun)
    logified = ft.partial(spool_into, _logs, Collect(side_by_side=True))
    return transformed(fun, logified, "logify.logify")


def _logs(entries: dict[str, Rows]) -> Logs:
    return Logs(logdict.of({key: _listed(key, rows) for key, rows in entries.items()}))


def _listed(key: str, rows: Rows) -> Rows:
    """Return what is appended as a list, even if it is a single value."""
    if rows.time or split_entry_key(key)[1] != "append":
        return rows
    return rows.map(lambda x: x[None], time=True)


def _nested(entries: Mapping[str, PyTree]) -> dict[str, dict[str, PyTree]]:
    # "loss\0mean" -> nested["loss"]["mean"], see `several_reductions.py`
    nested: dict[str, dict[str, PyTree]] = {}
    for key, value in entries.items():
        name, reduction = split_entry_key(key)
        nested.setdefault(name, {})[reduction] = value
    return nested
