"""`lox.scan`: the rows of many runs as one lazy table of polars.

Stores on object storage are not downloaded: polars reads the Parquet objects itself, and of
these the columns and rows that a query needs. lox tells it which objects there are, from
the manifests, and what their columns are.

    s3://bucket/exp1   000000.parquet   loss float32       one scan per set of types,
    s3://bucket/exp2   000000.parquet   loss float32       put together by polars
    s3://bucket/exp2   000001.parquet   loss int32

Sessions whose runs were resumed are read by lox, which leaves out superseded rows.
"""

import glob
import os
from collections.abc import Collection, Iterable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from lox_host.extras import import_extra
from lox_host.rows import Block
from lox_host.runs.run_config import flat_config
from lox_host.store import (
    Layout,
    Path,
    Reader,
    dtype_named,
    is_store,
    is_url,
    open_store,
    parquet_names,
    retry_if_stale,
    to_stored,
)
from lox_host.tree import leaves
from lox_host.wide_table import Cells, in_polars, plain

if TYPE_CHECKING:
    import polars

# The columns of every table, in front of steps and keys.
FIRST = ("store", "session", "process", "run", "run_id", "row", "time")


@retry_if_stale
def scan(path: Path, keys: Collection[str] | None) -> "polars.LazyFrame":
    """Return the rows of all runs in one or several stores.

    Args:
        path: A store, or several with wildcards.
        keys: The keys. None: all.
    """
    pl = import_extra("polars", "`lox.scan`", "polars")
    tables, configs, known = [], [], dict[str, None]()
    for store in _stores(path):
        for reader in open_store(store):
            wanted = [key for key in reader.keys if keys is None or key in keys]
            known |= dict.fromkeys(reader.keys)
            configs += _configs(store, reader)
            if not wanted:
                continue
            # Which rows of resumed runs count is known after their steps have been read.
            is_resumed = reader.history is not None or bool(reader.continued)
            if is_url(store) and not is_resumed:
                tables += _scan_objects(pl, store, reader, wanted)
            else:
                ids = [id for id in reader.runs if id not in reader.continued]
                tables += _read_blocks(pl, store, reader, wanted, ids)
    missing = [key for key in keys or () if key not in known]
    if missing or not tables:
        what = f"the key {missing[0]!r}" if missing else "any rows"
        raise LookupError(
            f"No run in {os.fspath(path)!r} has {what}. All keys are {list(known)}."
        )
    rows = pl.concat(tables, how="diagonal_relaxed")
    return _with_configs(pl, rows, configs)


def table_of_runs(
    sessions: Sequence[tuple[str, Reader, Sequence[int]]],
) -> "polars.DataFrame":
    """Return all rows of some runs as one table, with the columns of `scan`.

    Args:
        sessions: Stores, sessions of them, and the ids of the runs in these.
    """
    pl = import_extra("polars", "A table of runs", "polars")
    tables, configs = [], []
    for store, reader, ids in sessions:
        configs += [run for run in _configs(store, reader) if run["run_id"] in ids]
        tables += _read_blocks(pl, store, reader, reader.keys, ids)
    if not tables:
        raise LookupError("These runs have no rows.")
    rows = pl.concat(tables, how="diagonal_relaxed")
    return _with_configs(pl, rows, configs).collect()


def _stores(path: Path) -> list[str]:
    """Return the stores that are meant."""
    text = os.fspath(path)
    if is_url(text):
        from lox_host.remote import expand

        return expand(text)
    if is_store(text) or not glob.has_magic(text):
        return [text]
    found = [folder for folder in sorted(glob.glob(text)) if is_store(folder)]
    if not found:
        raise FileNotFoundError(f"There is no store in {text!r}.")
    return found


def _scan_objects(
    pl: ModuleType, store: str, reader: Reader, keys: Sequence[str]
) -> "list[polars.LazyFrame]":
    """Return scans of the objects of a session, those with the same types together."""
    from lox_host.remote import object_url

    # By object, the layouts of its row groups: these decide about its columns.
    groups: dict[str, dict[int, Layout]] = {}
    for group, frames in reader.frames.items():
        layout = reader.layouts[group]
        for frame in frames:
            if not layout.keys.keys().isdisjoint(keys):
                groups.setdefault(frame.file, {})[group] = layout
    files: dict[tuple[tuple[str, str], ...], list[str]] = {}
    schemas: dict[tuple[tuple[str, str], ...], dict[str, Any]] = {}
    for file, layouts in groups.items():
        schema = _schema(pl, layouts.values(), keys)
        kind = tuple((name, str(dtype)) for name, dtype in schema.items())
        schemas[kind] = schema
        files.setdefault(kind, []).append(object_url(store, reader.folder.name, file))
    tables = []
    for kind, urls in files.items():
        schema = schemas[kind]
        table = pl.scan_parquet(
            urls, schema=schema, missing_columns="insert", extra_columns="ignore"
        )
        # An object may hold rows of other keys, too, which have none of these values.
        values = [pl.col(name) for name in schema if name not in _shared(reader)]
        table = table.filter(pl.any_horizontal(*(x.is_not_null() for x in values)))
        tables.append(_labelled(pl, table, store, reader))
    return tables


def _schema(
    pl: ModuleType, layouts: Iterable[Layout], keys: Collection[str]
) -> dict[str, Any]:
    """Return the types of the columns that some keys need."""
    schema: dict[str, Any] = {"run": pl.String}
    for layout in layouts:
        numbers = [*layout.shared, *([] if layout.time is None else [layout.time])]
        numbers += [
            i for key in layout.keys if key in keys for i in layout.keys[key].columns
        ]
        names = parquet_names(layout)
        for number in sorted(numbers):
            column = layout.columns[number]
            stored = to_stored(np.zeros((0, *column.shape), dtype_named(column.dtype)))
            # Parquet has no lists without elements.
            if 0 in stored.shape[1:]:
                continue
            inner = stored.astype(np.float32) if stored.dtype == np.float16 else stored
            dtype = pl.Series(inner.reshape(-1)).dtype
            shape = stored.shape[1:]
            schema[names[number]] = pl.Array(dtype, shape) if shape else dtype
    return schema


def _shared(reader: Reader) -> set[str]:
    """Return the names of columns that are there even if a key was not logged."""
    names = {"run", "time"}
    for layout in reader.layouts.values():
        column_names = parquet_names(layout)
        names.update(column_names[number] for number in layout.shared)
    return names


def _read_blocks(
    pl: ModuleType,
    store: str,
    reader: Reader,
    keys: Sequence[str],
    runs: Collection[int] | None = None,
) -> "list[polars.LazyFrame]":
    """Return the rows of a session on this machine, which are read now."""
    names = {id: run.name for id, run in reader.runs.items()}
    tables = []
    for block in reader.blocks(runs, keys):
        columns = in_polars(pl, _cells(block))
        run = pl.Series("run", [names[id] for id in block.runs.tolist()], pl.String)
        table = columns.insert_column(0, run).lazy()
        tables.append(_labelled(pl, table, store, reader))
    return tables


def _cells(block: Block) -> dict[str, Cells]:
    """Return the columns of a block by the names that they have in Parquet."""
    everywhere = np.ones(len(block), bool)
    columns = {"run_id": block.runs, "row": block.order, "time": block.time, **block.steps}
    for key, tree in block.values.items():
        columns |= dict(leaves(tree, key))
    return {name: Cells(plain(array), everywhere) for name, array in columns.items()}


def _labelled(
    pl: ModuleType, table: "polars.LazyFrame", store: str, reader: Reader
) -> "polars.LazyFrame":
    """Add the store and the session, which is in the names of folders, to a table."""
    session = reader.folder.name
    labels = {
        "store": pl.lit(store),
        "session": pl.lit(session),
        "process": pl.lit(int(session.split("-")[-2])),
    }
    return table.with_columns(**labels)


def _configs(store: str, reader: Reader) -> list[dict[str, Any]]:
    """Return how the runs of a session were configured, one dictionary for each."""
    session = reader.folder.name
    return [
        {
            "store": store,
            "session": session,
            "run_id": id,
            "config": flat_config(run.config),
        }
        for id, run in reader.runs.items()
    ]


def _with_configs(
    pl: ModuleType, rows: "polars.LazyFrame", configs: Sequence[dict[str, Any]]
) -> "polars.LazyFrame":
    """Add a column for each entry of a configuration, and put the columns in order."""
    columns = rows.collect_schema().names()
    place = ["store", "session", "run_id"]
    entries = {name: None for run in configs for name in run["config"]}
    lists: dict[str, list[Any]] = {name: [run[name] for run in configs] for name in place}
    for name in entries:
        # A key or a step may have the same name.
        shown = f"config/{name}" if name in columns else name
        lists[shown] = [run["config"].get(name) for run in configs]
    table = pl.DataFrame(
        [_series(pl, name, values) for name, values in lists.items()]
    ).with_columns(pl.col("run_id").cast(pl.Int32))
    first = [name for name in FIRST if name in columns]
    others = [name for name in columns if name not in first]
    settings = [name for name in table.columns if name not in place]
    joined = rows.join(table.lazy(), on=place, how="left")
    return joined.select(*first, *settings, *others)


def _series(pl: ModuleType, name: str, values: Sequence[Any]) -> "polars.Series":
    """Return a column, as text if its values have no type in common."""
    # One type, or numbers of several types as floats, or texts.
    try:
        return pl.Series(name, values, strict=True)
    except (TypeError, pl.exceptions.PolarsError):
        pass
    try:
        return pl.Series(name, [None if v is None else float(v) for v in values])
    except (TypeError, ValueError):
        return pl.Series(name, [None if v is None else str(v) for v in values])
