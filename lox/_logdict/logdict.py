"""`logdict`: logged values by key, and what is known about them.

A `logdict` is a `dict` of values. Beside each value it keeps the `Rows` that the value is
part of, with steps, masks and tags; `logs.rows()` puts the two together.

It is a pytree, too. Its children are the values, for users who map over them, and one more
that holds the arrays of all steps and masks, each of them once (see `shared_arrays.py`):

    logdict({"a": x, "b": y}, step={"a": i})

    children    x, y, meta = [({"step": i}, None, {}, None), ({}, None, {}, None)]
    form        keys, static fields of the rows, owners of what is in meta

Logs leave a jitted function in each call of it, and most users look at the values alone.
So `tree_unflatten` fills in the values and puts the rest aside, and the rows are made when
somebody asks for them.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax import export

from lox._jax.types import AnyArray, PyTree
from lox._logdict.data_frames import to_pandas, to_polars
from lox._logdict.html import repr_html
from lox._logdict.numpy import to_numpy
from lox._logdict.plot import plot
from lox._logdict.serialize import deserialize, serialize
from lox._logdict.shared_arrays import share, unshare
from lox._logdict.slicing import Slice, compact, join
from lox._logdict.xarray import to_xarray
from lox._rows.reduce_rows import reduce_rows
from lox._rows.reductions import Reduction
from lox._rows.rows import Rows
from lox_host.display.values import short

if TYPE_CHECKING:
    from lox_host.wide_table import RunLabels


class Steps(dict[str, AnyArray]):
    """One step for each key that has it; `valid` masks the rows that do not."""

    valid: dict[str, AnyArray]

    def __init__(
        self, values: Mapping[str, AnyArray] = {}, valid: Mapping[str, AnyArray] = {}
    ):
        super().__init__(values)
        self.valid = dict(valid)


@jax.tree_util.register_pytree_with_keys_class
class logdict(dict[str, PyTree]):
    """Logged values by key: a `dict` and a pytree, its keys in the order of logging.

    `logs.step["loss"]` contains the steps of `logs["loss"]`. Every step has an attribute
    with its name, such as `logs.epoch` for `lox.log(..., epoch=e)`.

    Args:
        data: A mapping from keys to values. Without it, keywords are values, as for a
            `dict`.
        **steps: For each name of a step, a mapping from keys to steps.

    Example:
        >>> logs = lox.logdict({"loss": 0.5}, step={"loss": 3})
        >>> logs, logs.step["loss"]
        ({'loss': 0.5}, 3)
        >>> lox.logdict(loss=0.5)
        {'loss': 0.5}
    """

    # The rows if they have been made, or else one of two ways to make them.
    _made_rows: dict[str, Rows] | None = None
    _make_rows: Callable[[], dict[str, Rows]]
    _parts: tuple[tuple, tuple] | None = None
    # Which runs they are of, for tables. Only logs that were loaded know it.
    _runs: "RunLabels | None" = None
    _is_record = False

    def __init__(self, data: Any = None, /, **steps: Any):
        super().__init__()
        if data is None:
            data, steps = steps, {}
        self._made_rows = {}
        for key, value in dict(data).items():
            key_steps = {name: step[key] for name, step in steps.items() if key in step}
            self._rows[key] = _single(value, key_steps)
            super().__setitem__(key, value)

    @classmethod
    def of(cls, rows: Mapping[str, Rows], runs: "RunLabels | None" = None) -> "logdict":
        """Return the logs that hold `rows`, and which are of these runs."""
        logs = cls()
        logs._runs = runs
        logs._rows.update(rows)
        for key, key_rows in rows.items():
            dict.__setitem__(logs, key, key_rows.value)
        return logs

    @classmethod
    def later(
        cls, values: Iterable[tuple[str, PyTree]], rows: Callable[[], dict[str, Rows]]
    ) -> "logdict":
        """Return logs that call `rows()` when they are asked for more than their values."""
        logs = cls.__new__(cls)
        # `dict.update` would take twice as long.
        for key, value in values:
            dict.__setitem__(logs, key, value)
        logs._make_rows = rows
        return logs

    def rows(self) -> dict[str, Rows]:
        """Return the rows of each key, with the values that it has now."""
        return {key: _with_value(self._rows[key], value) for key, value in self.items()}

    @property
    def data(self) -> dict[str, PyTree]:
        """The values alone, as a plain `dict`."""
        return dict(self)

    @property
    def steps(self) -> dict[str, Steps]:
        """All steps by name; each is a mapping from key to step."""
        names = dict.fromkeys(name for rows in self._rows.values() for name in rows.steps)
        return {name: self._step(name) for name in names}

    @property
    def valid(self) -> dict[str, AnyArray]:
        """Which rows were really logged, for the keys where some may not have been."""
        by_key = self._rows.items()
        return {key: rows.valid for key, rows in by_key if rows.valid is not None}

    @property
    def count(self) -> dict[str, AnyArray]:
        """How many rows there were, for keys of which only the last ones are kept."""
        by_key = self._rows.items()
        return {key: rows.count for key, rows in by_key if rows.count is not None}

    @property
    def tags(self) -> dict[str, tuple[str, ...]]:
        """The tags of each key."""
        return {key: rows.tags for key, rows in self._rows.items()}

    @property
    def slice(self) -> "Slice[logdict]":
        """Some rows of every key, with their steps.

        Example:
            >>> logs = lox.logdict({"x": 1.0}) + lox.logdict({"x": 2.0})
            >>> logs.slice[1:]
            {'x': [2.0]}
            >>> logs.slice[:1]
            {'x': [1.0]}
        """
        return Slice(self.rows(), self._like)

    def filter(self, keep: Callable[[str, PyTree], Any]) -> "logdict":
        """Keep the keys for which `keep(key, value)` is true.

        Example:
            >>> logs = lox.logdict({"train/loss": 1.0, "test/loss": 2.0})
            >>> logs.filter(lambda key, value: key.startswith("test/"))
            {'test/loss': 2.0}
        """
        rows = self.rows().items()
        return self._like(
            {key: key_rows for key, key_rows in rows if keep(key, key_rows.value)}
        )

    def prefix(self, prefix: str) -> "logdict":
        """Put `prefix` before each key.

        Example:
            >>> lox.logdict({"loss": 1.0}).prefix("train/")
            {'train/loss': 1.0}
        """
        return self._like({prefix + key: rows for key, rows in self.rows().items()})

    def compact(self) -> "logdict":
        """Drop the rows that were not really logged. Not under `jit`.

        If the examples of a batch logged different numbers of rows, the rows of each
        example move to the front, and `valid` says which of them exist.

        Example:
            >>> def f(x):
            ...     jax.lax.cond(x > 1, lambda: lox.log({"x": x}) and None, lambda: None)
            >>> _, logs = lox.spool(f)(1.0)
            >>> logs.compact()
            {}
        """
        compacted = {key: compact(key, rows) for key, rows in self.rows().items()}
        return self._like({k: rows for k, rows in compacted.items() if rows is not None})

    def reduce(self, reduce: str | Reduction | Mapping[str, str | Reduction]) -> "logdict":
        """Combine the rows of each key into one value, as `lox.spool(reduce=...)` does.

        Only time is reduced, never a batch axis or an axis of the value. Rows that were
        not really logged do not count. The steps become those of the last row, or of the
        first row for `"first"`. If there may have been no row, `valid` says whether there
        was one. A key that is already reduced stays as it is.

        Args:
            reduce: The name of a reduction such as `"mean"`, a `lox.Reduction`, or a
                mapping from key to one of them; other keys then keep their rows.

        Example:
            >>> logs = lox.logdict({"x": 1.0}, step={"x": 0})
            >>> logs += lox.logdict({"x": 2.0}, step={"x": 1})
            >>> mean = logs.reduce("mean")
            >>> mean, mean.step["x"].item()
            ({'x': 1.5}, 1)
        """
        return self._like(reduce_rows(self.rows(), reduce))

    def to_numpy(self) -> "logdict":
        """Return the same logs with NumPy arrays, typed PRNG keys as their data.

        Example:
            >>> logs = lox.logdict({"x": jnp.arange(3)}).to_numpy()
            >>> type(logs["x"])
            <class 'numpy.ndarray'>
        """
        return self._like(to_numpy(self.rows()))

    # Each of these has a file of its own.
    to_pandas = to_pandas
    to_polars = to_polars
    to_xarray = to_xarray
    plot = plot
    _repr_html_ = repr_html

    def copy(self) -> "logdict":
        """Return a shallow copy."""
        return self._like(self.rows())

    def _run_labels(self) -> "RunLabels | None":
        """Return which runs the logs are of, if they were loaded from a store."""
        return self._runs

    def _like(self, rows: Mapping[str, Rows]) -> "logdict":
        """Return other rows of the same runs."""
        return logdict.of(rows, self._runs)

    def __add__(self, other: "logdict") -> "logdict":
        """Return the logs of two functions that run one after the other."""
        if not isinstance(other, logdict):
            return NotImplemented
        # Keys of both are joined in time, and the others stay as they are.
        first, second = self.rows(), other.rows()
        joined = {k: join(k, first[k], second[k]) for k in first if k in second}
        return logdict.of({**first, **second, **joined})

    def __or__(self, other: Mapping[str, PyTree]) -> "logdict":  # pyright: ignore[reportIncompatibleMethodOverride]
        if not isinstance(other, Mapping):
            return NotImplemented
        other = other if isinstance(other, logdict) else logdict(other)
        return logdict.of({**self.rows(), **other.rows()})

    def __ior__(self, other: Any) -> "logdict":  # pyright: ignore[reportIncompatibleMethodOverride]
        self.update(other)
        return self

    def __setitem__(self, key: str, value: PyTree) -> None:
        # A value of the same form replaces that of all rows, which keep their steps.
        rows = self._rows.get(key)
        same_form = rows is not None and _ndims(rows.value) == _ndims(value)
        self._rows[key] = rows.replace(value=value) if same_form else _single(value, {})  # pyright: ignore[reportOptionalMemberAccess]
        super().__setitem__(key, value)

    def __delitem__(self, key: str) -> None:
        super().__delitem__(key)
        del self._rows[key]

    def update(self, *args: Any, **kwargs: Any) -> None:
        # Other logs bring their steps along, a plain mapping has none.
        other = args[0] if args and isinstance(args[0], logdict) else logdict()
        for key, value in dict(*args, **kwargs).items():
            self[key] = value
        self._rows.update(other.rows())

    def setdefault(self, key: str, default: PyTree = None) -> PyTree:
        if key not in self:
            self[key] = default
        return self[key]

    def pop(self, key: str, *default: Any) -> Any:
        self._rows.pop(key, None)
        return super().pop(key, *default)

    def popitem(self) -> tuple[str, PyTree]:
        key, value = super().popitem()
        del self._rows[key]
        return key, value

    def clear(self) -> None:
        super().clear()
        self._rows.clear()

    def __getattr__(self, name: str) -> Steps:
        # Only asked for names that are no attribute: any other name may be that of a step.
        names = sorted({step for rows in self._rows.values() for step in rows.steps})
        if name in names:
            return self._step(name)
        raise AttributeError(
            f"These logs have no step {name!r}; their steps are {names}."
            if names
            else f"These logs have no step {name!r}, and no other steps."
        )

    def __repr__(self) -> str:
        items = (f"{key!r}: {short(value)}" for key, value in self.items())
        return "{" + ", ".join(items) + "}"

    __str__ = __repr__

    # Without this, `pickle` would restore the values only.
    def __reduce__(self):
        return logdict.of, (self.rows(),)

    def __copy__(self) -> "logdict":
        return self.copy()

    def __deepcopy__(self, memo: dict) -> "logdict":
        return jax.tree.map(lambda x: x.copy() if hasattr(x, "copy") else x, self)

    def _step(self, name: str) -> Steps:
        by_key = self._rows.items()
        return Steps(
            {key: rows.steps[name] for key, rows in by_key if name in rows.steps},
            {key: rows.masks[name] for key, rows in by_key if name in rows.masks},
        )

    def tree_flatten(self) -> tuple[list, tuple]:
        # Logs that only pass through are flattened as they came.
        if self._made_rows is None and self._parts and self._parts[0][0] == tuple(self):
            form, (*_, meta) = self._parts
            return [*self.values(), meta], form
        rows = self.rows()
        values = [key_rows.value for key_rows in rows.values()]
        meta, owners = share([key_rows.arrays() for key_rows in rows.values()])
        static_fields = tuple(key_rows.static_fields() for key_rows in rows.values())
        return [*values, meta], (tuple(rows), static_fields, owners)

    def tree_flatten_with_keys(self) -> tuple[list, tuple]:
        children, form = self.tree_flatten()
        keys = [*map(jax.tree_util.DictKey, self), jax.tree_util.GetAttrKey("meta")]
        return list(zip(keys, children, strict=True)), form

    @classmethod
    def tree_unflatten(cls, form: tuple, children: Iterable[PyTree]) -> "logdict":
        # Called for each call of a jitted function, so it does as little as it can.
        logs = cls.__new__(cls)
        logs._parts = form, (*children,)
        dict.update(logs, zip(form[0], logs._parts[1], strict=False))  # the last is meta
        return logs

    @property
    def _rows(self) -> dict[str, Rows]:
        if self._made_rows is None:
            parts = self._parts
            self._made_rows = _rows_of(*parts) if parts else self._make_rows()
        return self._made_rows


# So that `jax.export` can write down a function that takes or returns logs.
export.register_pytree_node_serialization(
    logdict,
    serialized_name="lox.logdict",
    serialize_auxdata=serialize,
    deserialize_auxdata=deserialize,
)


def _rows_of(form: tuple, children: tuple) -> dict[str, Rows]:
    """Build the rows of logs from what `tree_flatten` made of them."""
    keys, static_fields, owners = form
    *values, meta = children
    parts = zip(keys, values, unshare(meta, owners), static_fields, strict=True)
    return {
        key: kind(value, *arrays, *fields) for key, value, arrays, (kind, *fields) in parts
    }


def _with_value(rows: Rows, value: PyTree) -> Rows:
    return rows if rows.value is value else rows.replace(value=value)


def _single(value: PyTree, steps: dict[str, AnyArray]) -> Rows:
    """Return a single row."""
    leaves = jax.tree.leaves(value)
    return Rows(value=value, steps=steps, ndim=np.ndim(leaves[0]) if leaves else 0)


def _ndims(value: PyTree) -> list[int]:
    return [np.ndim(leaf) for leaf in jax.tree.leaves(value)]


def record_of(values: Mapping[str, PyTree], steps: dict[str, Any]) -> logdict:
    """Return what a call of `log` returns: its values, with the same steps for all keys."""
    by_key = {name: dict.fromkeys(values, step) for name, step in steps.items()}
    record = logdict(values, **by_key)
    record._is_record = True
    return record


def is_record(x: object) -> bool:
    """Return whether `x` is what a call of `log` returned."""
    return isinstance(x, logdict) and x._is_record
