"""Read the rows of runs by key, stacked if there are several runs. No JAX.

Runs of one program may have logged different numbers of rows, or not all keys. They are
padded to the longest one, and a mask says which rows are real:

    run a    loss 3 rows                    loss  (runs, rows) = (2, 3)    valid [1 1 1]
    run b    loss 2 rows, test 1 row        test  (runs, rows) = (2, 1)          [1 1 0]
"""

import itertools as it
import warnings
from collections.abc import Sequence

import numpy as np

from lox_host.reading.names import list_names
from lox_host.reading.select import SelectedRun, by_session
from lox_host.rows import FlatRows
from lox_host.runs.run_config import flat_config
from lox_host.store import KeyRows, StackedRows, pad, read_key_rows, read_stacked
from lox_host.tree import map_arrays
from lox_host.wide_table import RunLabels, plain


def load_key_rows(
    runs: Sequence[SelectedRun], keys: Sequence[str] | None
) -> list[dict[str, KeyRows]]:
    """Return the rows of each run by key. Each session is read once.

    Args:
        runs: The runs.
        keys: The keys. None: all.

    Raises:
        LookupError: If none of the runs has one of the keys.
    """
    found: dict[SelectedRun, dict[str, KeyRows]] = {}
    for reader, selected in by_session(runs).items():
        by_id = read_key_rows(reader, [run.id for run in selected], keys)
        found |= {run: by_id[run.id] for run in selected}
    for key in keys or ():
        if not any(key in logs for logs in found.values()):
            known = list(dict.fromkeys(it.chain(*(run.reader.keys for run in runs))))
            raise LookupError(
                f"The run {runs[0].name!r} in {runs[0].store!r} has no key {key!r}. All "
                f"keys of its session are {known}."
            )
    return [found[run] for run in runs]


def load_stacked(
    runs: Sequence[SelectedRun], keys: Sequence[str] | None
) -> dict[str, StackedRows] | None:
    """Return the rows of several runs by key, with an axis of runs in front.

    Return None if they do not form a grid, as they do if all of them are of one `vmap`.
    """
    sessions = by_session(runs)
    if len(runs) < 2 or len(sessions) > 1:
        return None
    (reader,) = sessions
    if keys is not None and not set(keys) <= set(reader.keys):
        return None
    return read_stacked(reader, [run.id for run in runs], keys)


def padded(
    runs: Sequence[SelectedRun], logs: Sequence[dict[str, KeyRows]], key: str
) -> list[KeyRows]:
    """Return the rows of a key of several runs, padded to the same length and form.

    Raises:
        ValueError: If they cannot be stacked. The text describes a row of two such runs.
    """
    try:
        parts = pad([of_run.get(key) for of_run in logs])
        # Stacking no rows is enough to find out whether it can be done.
        map_arrays(
            lambda *arrays: np.stack([x[:0] for x in arrays]), *(p.value for p in parts)
        )
        if len({part.form.keys for part in parts}) == 1:
            return parts
    except (TypeError, ValueError, KeyError):
        pass  # said below
    forms: dict[str, str] = {}
    # Two of the forms, each with the first run that has it.
    for run, of_run in zip(runs, logs, strict=True):
        if key in of_run:
            forms.setdefault(_row_form(of_run[key]), run.name)
    (one, first), (other, second), *_ = forms.items()
    raise ValueError(
        f"The {len(logs)} runs in {runs[0].store!r} cannot be stacked: a row of {key!r} is "
        f"{one} in {first!r} and {other} in {second!r}. Load other keys with `argnames`, "
        "or load each run separately: `lox.load(path, run=run)` for each run of "
        "`lox.runs(path)`."
    )


def load_flat(
    runs: Sequence[SelectedRun], keys: Sequence[str] | None = None
) -> tuple[dict[str, FlatRows], RunLabels]:
    """Return the rows of runs for a table, with an axis of runs before other examples.

    Keys whose form differs between runs are left out, with a warning.
    """
    logs = load_key_rows(runs, keys)
    flat, left_out = {}, []
    for key in dict.fromkeys(it.chain(*logs)):
        try:
            parts = padded(runs, logs, key)
        except ValueError:
            left_out.append(key)
            continue
        flat[key] = _stack([part.flat(key) for part in parts])
    if left_out:
        warnings.warn(
            "These keys were left out, because their shape or dtype is not the same in all "
            f"runs: {list_names(left_out)}. To include them, ask for fewer runs.",
            stacklevel=2,
        )
    return flat, run_labels(runs, is_axis=True)


def run_labels(runs: Sequence[SelectedRun], *, is_axis: bool) -> RunLabels:
    """Return the columns of a table that describe the runs of logs."""
    settings = [flat_config(run.run.config, separator=".") for run in runs]
    # Runs of two stores may have the same name, and tables are grouped by it.
    several = len({run.store for run in runs}) > 1
    names = [run.path if several else run.name for run in runs]
    return RunLabels(names, settings, is_axis)


def _stack(parts: Sequence[FlatRows]) -> FlatRows:
    """Stack the rows of several runs: (rows, *examples, ...) -> (rows, runs, ...)."""

    def stack(*arrays: np.ndarray) -> np.ndarray:
        return np.stack([plain(array) for array in arrays], 1)

    first = parts[0]
    stacked = {
        name: map_arrays(stack, *(getattr(part, name) for part in parts))
        for name in ("arrays", "steps", "masks", "valid", "time")
    }
    return FlatRows(
        **stacked, examples=(len(parts), *first.examples), has_time=first.has_time
    )


def _row_form(rows: KeyRows) -> str:
    """Describe the form of a row of a key."""
    shapes = map_arrays(
        lambda x: f"{x.dtype}[{','.join(map(str, x.shape[1:]))}]", rows.value
    )
    impls = ", ".join(impl for _, impl in rows.form.keys)
    return str(shapes).replace("'", "") + (impls and f" of a {impls} key")
