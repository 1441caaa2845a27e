"""`lox query`: query stores with SQL, using DuckDB.

There are two tables. `runs` has one line per run: name, state, config and last values.
`rows` has one line per step of each run: the run, its config, wall-clock time, steps and
keys, like `lox.load(path).to_pandas()`. So most queries need no join:

    SELECT lr, avg(loss) FROM rows WHERE step = 99 GROUP BY lr

What a run did not log is NULL; NaN is NaN.
"""

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from lox_host.cli.errors import CLIError
from lox_host.cli.output import print_json, screen
from lox_host.display.columns import Column
from lox_host.display.text import clean, count, digits
from lox_host.extras import import_extra
from lox_host.reading.load import load_flat
from lox_host.reading.names import list_names
from lox_host.reading.runs import describe_runs, run_columns, select_meant
from lox_host.reading.select import SelectedRun
from lox_host.store import retry_if_stale
from lox_host.wide_table import Cells, table

if TYPE_CHECKING:
    import duckdb

LINES = 50  # lines that a terminal shows


@retry_if_stale
def query(sql: str, where: Sequence[str], *, condition: str | None, as_json: bool) -> None:
    """Run an SQL query on some runs, and print the result."""
    duckdb = import_extra("duckdb", "`lox query`", "query")
    sql, where = _sql_first(sql, where)
    runs = select_meant(where, condition)
    connection = duckdb.connect(":memory:")
    # A query reads only the store: no other files, and no extensions from the network.
    connection.execute("SET enable_external_access = false")
    connection.execute("SET python_enable_replacements = false")
    # There may be many rows, so load them only if the query uses them.
    tables = {"runs": lambda: run_columns(describe_runs(runs)), "rows": lambda: _rows(runs)}
    for name, columns in tables.items():
        if re.search(rf"\b{name}\b", sql, re.IGNORECASE):
            create_table(connection, name, columns())
    try:
        answer = connection.execute(sql)
        heads = [column[0] for column in answer.description or ()]
        lines = answer.fetchall()
    except duckdb.Error as error:
        raise CLIError(_explain(error, runs)) from error
    if as_json:
        print_json([dict(zip(heads, map(_plain, line), strict=True)) for line in lines])
        return
    _print(heads, lines)


def _sql_first(sql: str, where: Sequence[str]) -> tuple[str, Sequence[str]]:
    """Return the question and the runs, which may have been given the other way round."""
    if _SQL.match(sql) or not where or not _SQL.match(where[-1]):
        return sql, where
    return where[-1], [sql, *where[:-1]]


# How a question begins.
_SQL = re.compile(r"\s*(SELECT|WITH|FROM|DESCRIBE|SUMMARIZE|SHOW|PIVOT)\s", re.IGNORECASE)


def create_table(
    connection: "duckdb.DuckDBPyConnection", name: str, columns: Mapping[str, Cells]
) -> None:
    """Create a table from NumPy columns. Missing values become NULL, NaN stays NaN."""
    arrays: dict[str, np.ndarray] = {}
    parts = []
    for i, (column, (values, present)) in enumerate(columns.items()):
        quoted = '"' + column.replace('"', '""') + '"'
        source, width = _scalars(values)
        for j, scalars in enumerate(source):
            arrays[f"c{i}_{j}"] = scalars
        value = f"c{i}_0" if width is None else _list(i, len(source))
        # DuckDB takes NaN in an array of NumPy for NULL.
        if values.dtype.kind == "f" and values.ndim == 1 and np.isnan(values).any():
            arrays[f"n{i}"] = np.isnan(values)
            kind = "DOUBLE" if values.dtype.itemsize == 8 else "FLOAT"
            value = f"CASE WHEN n{i} THEN 'NaN'::{kind} ELSE {value} END"
        if not present.all():
            arrays[f"p{i}"] = present
            value = f"CASE WHEN p{i} THEN {value} END"
        parts.append(f"{value} AS {quoted}")
    if not parts:
        connection.execute(f"CREATE TABLE {name} (run VARCHAR)")
        return
    connection.register("source", arrays)
    connection.execute(f"CREATE TABLE {name} AS SELECT {', '.join(parts)} FROM source")
    connection.unregister("source")


def _scalars(values: np.ndarray) -> tuple[list[np.ndarray], int | None]:
    """Split a column into columns of numbers, one per element if it holds arrays."""
    if values.dtype.kind in "USO":
        values = np.array([_encodable(value) for value in values.tolist()], object)
    if values.dtype.kind == "c":
        values = np.stack([np.real(values), np.imag(values)], -1)
    if values.dtype == np.float16:
        values = values.astype(np.float32)
    if values.ndim == 1:
        return [np.ascontiguousarray(values)], None
    flat = values.reshape(len(values), -1)
    return [np.ascontiguousarray(flat[:, j]) for j in range(flat.shape[1])], flat.shape[1]


def _encodable(value: Any) -> Any:
    """Return a text without what UTF-8 cannot have, such as half of a surrogate pair."""
    if not isinstance(value, str):
        return value
    return value.encode("utf-8", "backslashreplace").decode()


def _list(number: int, elements: int) -> str:
    return f"[{', '.join(f'c{number}_{j}' for j in range(elements))}]"


def _rows(runs: Sequence[SelectedRun]) -> dict[str, Cells]:
    flat, labels = load_flat(runs)
    return table(flat, labels)


def _explain(error: Exception, runs: Sequence[SelectedRun]) -> str:
    """Return the first line of an error of DuckDB, and the names of all columns."""
    first, *rest = str(error).strip().split("\n")
    hints = [line for line in rest if "Candidate" in line or "Did you mean" in line]
    keys = dict.fromkeys(key for run in runs for key in run.reader.keys)
    return " ".join(
        [
            f"DuckDB: {first}",
            *hints,
            'The tables are `runs` and `rows`; put names such as "train/loss" in double '
            f"quotes. The keys are {list_names(keys)}.",
        ]
    )


def _print(heads: Sequence[str], lines: Sequence[Sequence[object]]) -> None:
    out = screen()
    shown = lines if out.width is None else lines[:LINES]
    columns = []
    for i, head in enumerate(heads):
        cells = [line[i] for line in shown]
        numbers = all(isinstance(cell, int | float) or cell is None for cell in cells)
        texts = [_text(cell) for cell in cells]
        columns.append(Column(clean(head), texts, right=numbers, numbers=numbers))
    if columns:
        out.table(columns)
    if len(shown) < len(lines):
        out.line((f"and {count(len(lines) - len(shown), 'more line')}", "dim"))


def _text(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return digits(value)
    return clean(str(value))


def _plain(value: Any) -> Any:
    """Convert a value of DuckDB to a JSON type."""
    is_plain = value is None or isinstance(value, bool | int | float | str | list | dict)
    return value if is_plain else str(value)
