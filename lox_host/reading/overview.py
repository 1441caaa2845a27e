"""The table of runs that `lox ls` and `lox.runs` show.

    RUN        #  STATE     lr  env       loss     ROWS  STARTED       TOOK
    results/a  0  ended  0.001  CartPole  0.02531  1000  Nov 16 09:00  0:12
    results/b  1  ended   0.01  Acrobot       nan  1000  Nov 16 09:00  0:12

It shows the config entries that differ between runs. A narrow table leaves out columns from
the right, but keeps some config entries and some values.
"""

import datetime
from collections import Counter
from collections.abc import Sequence

import numpy as np

from lox_host.display.columns import Column
from lox_host.display.text import clean, count, deviation, digits, diverged, duration
from lox_host.reading.names import find_names
from lox_host.reading.run_fields import (
    FIELDS,
    Getter,
    differing,
    field,
    in_words,
    sort_key,
    text_of,
)
from lox_host.store import StoredRun

ENTRIES, VALUES = 6, 6  # as many are shown as there is room for, and no more


def short_date(seconds: float) -> str:
    """Format a time in few letters. Times of another year show only the day."""
    then = datetime.datetime.fromtimestamp(seconds)
    is_this_year = then.year == datetime.datetime.now().year
    return f"{then:%b %d %H:%M}" if is_this_year else f"{then:%Y-%m-%d}"


def overview(
    runs: Sequence[StoredRun],
    labels: Sequence[str],
    *,
    among: Sequence[StoredRun],
    keys: Sequence[str] = (),
) -> list[Column]:
    """Return a table with one line per run.

    Args:
        runs: The runs.
        labels: The label of each run.
        among: All runs, of which `runs` may be a part. Their configs are compared.
        keys: The keys whose last values to show. Empty: the most frequent keys.
    """
    entries = differing(among)[:ENTRIES]
    # Keys with the same number of runs stay in the order of logging.
    known = Counter(key for run in among for key in run.last)
    shown = list(keys) or [key for key, _ in known.most_common(VALUES)]
    columns = [
        Column("RUN", labels),
        Column("#", [str(run.index) for run in runs], right=True, style="dim", rank=8),
        Column("STATE", [run.state for run in runs], style="dim", rank=1),
    ]
    # A narrow table leaves out the highest ranks first. The first entry and the first value
    # stay longer than any second one, and keys that were asked for stay in any case.
    for i, name in enumerate(entries):
        columns.append(_entry(runs, name, rank=3 + 2 * i))
    for i, key in enumerate(shown):
        rank = 0 if keys else 2 + 2 * i
        columns.append(value_column([[run] for run in runs], key, rank=rank))
    return [
        *columns,
        Column("ROWS", [str(run.rows) for run in runs], right=True, rank=9),
        Column("STARTED", [short_date(run.start) for run in runs], style="dim", rank=30),
        Column("TOOK", [duration(run.took) for run in runs], right=True, rank=29),
    ]


def chosen(
    runs: Sequence[StoredRun], labels: Sequence[str], names: Sequence[str]
) -> list[Column]:
    """Return a table with the given columns after the name of each run."""
    columns = [Column("RUN", labels)]
    for name in names:
        if name in ("run", "name"):
            continue
        columns += _named_columns(runs, name)
    return columns


def _named_columns(runs: Sequence[StoredRun], name: str) -> list[Column]:
    keys = dict.fromkeys(key for run in runs for key in run.last)
    settings = {entry for run in runs for entry in run.settings}
    if name not in settings and name not in FIELDS and find_names(keys, name):
        return [value_column([[run] for run in runs], k) for k in find_names(keys, name)]
    full_name, get = field(runs, name)
    cells = [_cell(full_name, get, run) for run in runs]
    return [Column(clean(full_name), cells, right=_are_numbers(get, runs))]


def _cell(name: str, get: Getter, run: StoredRun) -> str:
    value = get(run)
    if value is None:
        return ""
    if get is FIELDS.get("start"):
        return short_date(value)
    return duration(value) if get is FIELDS.get("took") else clean(in_words(value))


def grouped(
    runs: Sequence[StoredRun], by: Sequence[str], keys: Sequence[str]
) -> tuple[list[Column], list[list[StoredRun]]]:
    """Return a table with one line per group of runs, and the groups."""
    getters = [field(runs, name) for name in by]
    groups: dict[tuple[str, ...], list[StoredRun]] = {}
    for run in sorted(runs, key=lambda run: [sort_key(get(run)) for _, get in getters]):
        values = tuple(_cell(name, get, run) for name, get in getters)
        groups.setdefault(values, []).append(run)
    lines = list(groups.values())
    # `groups` is sorted by the values of the fields, numbers by size.
    known = Counter(key for run in runs for key in run.last)
    shown = list(keys) or [key for key, _ in known.most_common(VALUES)]
    columns = []
    for i, (name, get) in enumerate(getters):
        cells = [values[i] for values in groups]
        columns.append(Column(clean(name), cells, right=_are_numbers(get, runs)))
    columns += [
        Column("RUNS", [str(len(line)) for line in lines], right=True),
        Column("STATE", [_states(line) for line in lines], style="dim", rank=9),
    ]
    for i, key in enumerate(shown):
        columns.append(value_column(lines, key, rank=0 if keys else 2 + i))
    ranges = [_range([run.rows for run in line]) for line in lines]
    return [*columns, Column("ROWS", ranges, rank=8)], lines


def value_column(
    lines: Sequence[Sequence[StoredRun]], key: str, *, rank: int = 0
) -> Column:
    """Return a column with the last values of runs, or with means and deviations."""
    pairs = [_mean(line, key) for line in lines]
    # Numbers are aligned to the right by themselves; the deviations follow them.
    width = max((len(number) for number, _ in pairs), default=0)
    cells = [f"{number:>{width}}{spread}" for number, spread in pairs]
    return Column(clean(key), cells, numbers=True, rank=rank)


def _mean(runs: Sequence[StoredRun], key: str) -> tuple[str, str]:
    """Return the last value of a run, or the mean over runs, and what belongs to it."""
    found = [run.last[key] for run in runs if key in run.last]
    if not found:
        return "", ""
    if len(runs) == 1:
        return digits(float(found[0]), found[0].dtype.kind), ""
    with np.errstate(all="ignore"):
        numbers = np.array(found, np.float64)
        # The mean of the runs that are left, and how many are not: a single NaN would hide
        # all others.
        finite = numbers[np.isfinite(numbers)]
        gone = diverged(len(numbers) - len(finite), len(numbers))
        if not len(finite):
            return digits(numbers.mean()), gone
        return digits(finite.mean()), f" ± {deviation(finite.std())}{gone}"


def health(runs: Sequence[StoredRun]) -> str:
    """Return a text with the number of runs, their states, and how many diverged.

    For example, `1024 runs, 3 unfinished, 12 diverged`.
    """
    states = Counter(run.state for run in runs)
    parts = [count(len(runs), "run")]
    for state in ("live", "unfinished"):
        if states[state]:
            parts.append(f"{states[state]} {state}")
    gone = sum(map(has_diverged, runs))
    return ", ".join([*parts, *([f"{gone} diverged"] if gone else [])])


def has_diverged(run: StoredRun) -> bool:
    """Return whether the last value of some key is NaN or infinite."""
    return any(not np.isfinite(float(value)) for value in run.last.values())


def _entry(runs: Sequence[StoredRun], name: str, *, rank: int) -> Column:
    cells = [clean(text_of(run, name)) for run in runs]
    right = _are_numbers(lambda run: run.settings.get(name), runs)
    return Column(clean(name), cells, right=right, rank=rank)


def _are_numbers(get: Getter, runs: Sequence[StoredRun]) -> bool:
    values = (get(run) for run in runs)
    return all(isinstance(value, int | float) for value in values if value is not None)


def _states(runs: Sequence[StoredRun]) -> str:
    states = Counter(run.state for run in runs)
    if len(states) == 1:
        return next(iter(states))
    return ", ".join(f"{number} {state}" for state, number in states.items())


def _range(numbers: Sequence[int]) -> str:
    low, high = min(numbers), max(numbers)
    return str(low) if low == high else f"{low}-{high}"
