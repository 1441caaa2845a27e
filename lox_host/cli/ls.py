"""`lox ls`: list the runs of stores."""

from collections.abc import Sequence
from typing import Any

from lox_host.cli.describe import describe
from lox_host.cli.output import Screen, print_json, screen
from lox_host.display.text import clean, count, not_finite
from lox_host.reading.names import select_names
from lox_host.reading.overview import chosen, grouped, health, overview
from lox_host.reading.run_fields import field, sort_key
from lox_host.reading.runs import describe_runs
from lox_host.reading.select import SelectedRun, all_runs, locate, no_runs, pick
from lox_host.reading.where import select_where
from lox_host.store import StoredRun, retry_if_stale

NOT_FINITE = 20  # runs that are named because some of their values are not finite
LINES = 50  # runs that a terminal shows without `--limit`


@retry_if_stale
def ls(
    where: Sequence[str],
    keys: Sequence[str],
    *,
    condition: str | None,
    sort: str | None,
    reverse: bool,
    columns: Sequence[str],
    group_by: Sequence[str],
    limit: int | None,
    config: bool,
    as_json: bool,
) -> None:
    """List all runs of stores, or the selected ones."""
    selected, stores = _select(where)
    known = describe_runs(selected)
    by_index = {run.index: run for run in selected}
    runs = _sorted(select_where(known, condition), sort, reverse=reverse)
    shown = runs if limit is None or group_by else runs[:limit]
    if keys:
        names = dict.fromkeys(key for run in known for key in run.last)
        keys = select_names(names, keys, f"What `lox ls {' '.join(where)}` lists")
    if as_json:
        groups = [_group_for_programs(runs, group_by)] if group_by else []
        described = [_for_programs(by_index[run.index], run) for run in shown]
        print_json(groups[0] if groups else described)
        return
    if not known:
        raise no_runs(stores)
    if not runs:
        raise LookupError(
            f"{count(len(known), 'run')} found, but none matches {condition}."
        )
    out = screen()
    if group_by:
        out.table(grouped(runs, group_by, keys)[0])
        out.line((f"[{health(runs)}]", "dim"))
        return
    # On a terminal, print how to see the rest.
    if limit is None and out.width is not None:
        shown = runs[:LINES]
    labels = [by_index[run.index].address for run in shown]
    names = [*columns, *(_config_names(known) if config else [])]
    if columns or config:
        out.table(chosen(shown, labels, [*names, *keys]))
    else:
        out.table(overview(shown, labels, among=known, keys=keys))
    _print_end(out, runs, shown)
    _print_nonfinite(out, [(by_index[run.index], run) for run in shown if run.nonfinite])


def _select(where: Sequence[str]) -> tuple[list[SelectedRun], list[str]]:
    """Return all sessions of the selected runs, each once, and their stores."""
    found: dict[Any, SelectedRun] = {}
    stores: list[str] = []
    for text in where:
        its_stores, word = locate(text)
        stores += its_stores
        runs = all_runs(its_stores)
        for run in pick(runs, word) if word else runs:
            found.setdefault((run.reader.folder.resolve(), run.id), run)
    if len(where) == 1:
        return list(found.values()), stores
    # Of several stores, the lines are numbered as they are here.
    return [run.numbered(i) for i, run in enumerate(found.values())], stores


def _sorted(
    runs: Sequence[StoredRun], name: str | None, *, reverse: bool
) -> list[StoredRun]:
    """Sort runs by a config entry, a last value or a field. Runs without it come last."""
    if name is None or not runs:
        return list(reversed(runs)) if reverse else list(runs)
    # `--sort -loss --reverse` is ascending again.
    descending = name.startswith("-") != reverse
    _, get = field(runs, name.removeprefix("-"))
    keyed = [(sort_key(get(run)), run) for run in runs]
    present = [(key, run) for key, run in keyed if key[0] < 3]
    present.sort(key=lambda pair: pair[0], reverse=descending)
    return [run for _, run in present] + [run for key, run in keyed if key[0] == 3]


def _config_names(runs: Sequence[StoredRun]) -> list[str]:
    return list(dict.fromkeys(name for run in runs for name in run.settings))


def _print_end(out: Screen, runs: Sequence[StoredRun], shown: Sequence[StoredRun]) -> None:
    """Print the number of runs, unless it is obvious."""
    hidden = len(runs) - len(shown)
    if hidden:
        more = f"and {count(hidden, 'more run')}: `--limit {len(runs)}` shows all"
        out.line((more, "dim"))
    is_plain = health(runs) == count(len(runs), "run")
    if len(runs) > 10 or not is_plain:
        out.line((f"[{health(runs)}]", "dim"))


def _print_nonfinite(out: Screen, runs: Sequence[tuple[SelectedRun, StoredRun]]) -> None:
    """Print which keys of which runs are not finite, and since when."""
    if runs:
        out.line()
    for selected, run in runs[:NOT_FINITE]:
        for key, bad in run.nonfinite.items():
            text = not_finite(bad.rows, bad.step, bad.first)
            out.line((f"{selected.address}: {clean(key)} {text}", "red"))
    if len(runs) > NOT_FINITE:
        more = count(len(runs) - NOT_FINITE, "more run")
        out.line((f"and values that are not finite in {more}", "red"))


def _for_programs(selected: SelectedRun, run: StoredRun) -> dict[str, Any]:
    bad = {
        key: {
            "count": found.rows,
            "first": {found.step: found.first} if found.step else None,
        }
        for key, found in run.nonfinite.items()
    }
    values = {"values": dict(run.last), "nonfinite": bad}
    return {**describe(selected, run), **values}


def _group_for_programs(
    runs: Sequence[StoredRun], by: Sequence[str]
) -> list[dict[str, Any]]:
    getters = [field(runs, name) for name in by]
    groups = []
    for line in grouped(runs, by, ())[1]:
        values: dict[str, list[Any]] = {}
        for run in line:
            for key, value in run.last.items():
                values.setdefault(key, []).append(value)
        # The fields of a group are the same in all of its runs.
        fields = {name: get(line[0]) for name, get in getters}
        groups.append(
            {"group": fields, "runs": [run.path for run in line], "values": values}
        )
    return groups
