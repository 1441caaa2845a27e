"""`lox export` to table formats of lakehouses: Delta, Iceberg and Lance.

All runs become one table, the same as that of `lox.scan`. lox itself does not use these
formats.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lox_host.cli.errors import CLIError
from lox_host.reading.select import SelectedRun, by_session
from lox_host.scan import table_of_runs

if TYPE_CHECKING:
    import polars

# The package of each format.
PACKAGES = {"delta": "deltalake", "iceberg": "pyiceberg[sql-sqlite]", "lance": "pylance"}


def write_table(runs: Sequence[SelectedRun], to: str, folder: Path) -> None:
    """Write runs as one table of a format, whose package must be installed."""
    sessions = [
        (selected[0].store, reader, [run.id for run in selected])
        for reader, selected in by_session(runs).items()
    ]
    try:
        _WRITE[to](_plain(table_of_runs(sessions)), folder.absolute())
    except ModuleNotFoundError as error:
        raise CLIError(
            f"--to {to} needs `pip install {PACKAGES[to]}` ({error})."
        ) from error


def _plain(table: "polars.DataFrame") -> "polars.DataFrame":
    """Convert the table to types that all of these formats have."""
    import polars as pl

    wider = {
        **dict.fromkeys((pl.Int8, pl.Int16, pl.UInt8, pl.UInt16), pl.Int32),
        **dict.fromkeys((pl.UInt32, pl.UInt64), pl.Int64),
    }
    columns = []
    for name, dtype in table.schema.items():
        if isinstance(dtype, pl.Array):
            columns.append(pl.col(name).arr.to_list())
        elif dtype.base_type() in wider:
            columns.append(pl.col(name).cast(wider[dtype.base_type()]))
        elif dtype == pl.Null:
            columns.append(pl.col(name).cast(pl.String))
    return table.with_columns(columns)


def _write_delta(table: "polars.DataFrame", folder: Path) -> None:
    from deltalake import write_deltalake

    write_deltalake(str(folder), table.to_arrow())


def _write_iceberg(table: "polars.DataFrame", folder: Path) -> None:
    from pyiceberg.catalog.sql import SqlCatalog  # pyright: ignore[reportMissingImports]

    folder.mkdir(parents=True, exist_ok=True)
    places = {"uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}"}
    catalog = SqlCatalog("lox", **places)
    catalog.create_namespace_if_not_exists("lox")
    rows = table.to_arrow()
    where = f"file://{folder}/lox/rows"
    catalog.create_table("lox.rows", schema=rows.schema, location=where).append(rows)
    catalog.close()


def _write_lance(table: "polars.DataFrame", folder: Path) -> None:
    import lance  # pyright: ignore[reportMissingImports]

    lance.write_dataset(table.to_arrow(), str(folder))


_WRITE: Mapping[str, Callable[[Any, Path], None]] = {
    "delta": _write_delta,
    "iceberg": _write_iceberg,
    "lance": _write_lance,
}
