"""Polars, DuckDB and pyarrow read a store in a bucket, with lox and without."""

import collections
import json
import sys
import time

import duckdb
import fsspec
import numpy as np
import polars as pl
import pytest
from obstore.fsspec import register

import lox
from lox_host.cli.main import main
from lox_host.remote import Bucket, compact
from lox_host.rows import Batch, Block, Form
from lox_host.runs.run import Run
from lox_host.store import open_store, read_key_rows
from lox_host.writers.save_remote import RemoteSaveWriter

# Three jobs, with two runs of ten rows each, in objects of two rows.
RUNS = [(job, lr) for job in range(3) for lr in (0.1, 0.01)]


def loss(job, lr, step):
    return np.float32(lr * 100 + job - step / 10)


def block(id, job, lr, steps):
    steps = np.asarray(steps)
    return Block(
        runs=np.full(len(steps), id, np.int32),
        steps={"step": steps},
        values={"loss": loss(job, lr, steps).astype(np.float32)},
        forms={"loss": Form(time=True)},
        time=1.8e9 + steps.astype(np.float64),
    )


def write_job(url, job, *, ended=True):
    writer = RemoteSaveWriter(url)
    config = {"env": "CartPole", "net": {"width": 64}}
    runs = [
        Run(id, f"lr={lr}", (job, id), {"lr": lr, **config}, 1.8e9, "l", 0, f"{job:08d}")
        for id, lr in enumerate((0.1, 0.01))
    ]
    for run in runs:
        writer.open(run)
    for first in range(0, 10, 2):
        for run in runs:
            rows = block(run.id, job, run.config["lr"], range(first, first + 2))
            writer.write(Batch([rows]))
        writer.flush()
        writer.push()
    for run in runs if ended else ():
        writer.close(run)
    return writer, runs


@pytest.fixture
def bucket(url):
    for job in range(3):
        write_job(f"{url}-{job}", job)
    return url.rsplit("/", 1)[0]


def expected():
    return sorted((f"lr={lr}", s, loss(j, lr, s)) for j, lr in RUNS for s in range(10))


@pytest.fixture
def duck():
    """DuckDB, which reads object storage through obstore's file system."""
    register("s3")
    connection = duckdb.connect()
    plain = {"allow_http": True}
    files = fsspec.filesystem("s3", client_options=plain, skip_instance_cache=True)
    connection.register_filesystem(files)
    yield connection
    connection.close()


def test_polars_reads_the_layout_without_lox(bucket):
    rows = pl.scan_parquet(f"{bucket}/exp1-*/rows/**/*.parquet", hive_partitioning=True)
    table = rows.select("run", "step", "loss").collect()
    assert sorted(table.rows()) == expected()
    assert {"session", "process", "run_id", "row", "time"} <= set(rows.collect_schema())


def test_duckdb_reads_the_layout_without_lox(bucket, duck):
    query = f"""
        SELECT run, max(step), arg_max(loss, step) FROM read_parquet(
            '{bucket}/exp1-1/rows/*/*/*.parquet', hive_partitioning=true, union_by_name=true
        ) GROUP BY run ORDER BY run
    """
    found = duck.sql(query).fetchall()
    assert found == [(f"lr={lr}", 9, loss(1, lr, 9)) for lr in (0.01, 0.1)]
    config = f"""
        SELECT r.run, c.config->>'$.lr' FROM read_parquet(
            '{bucket}/exp1-1/rows/*/*/*.parquet', hive_partitioning=true) r
        JOIN read_parquet('{bucket}/exp1-1/runs/*/*/*.parquet', hive_partitioning=true) c
        USING (session, run_id) GROUP BY ALL ORDER BY ALL
    """
    try:
        rows = duck.sql(config).fetchall()
    except duckdb.Error as error:  # its extension for JSON may not be installed
        pytest.skip(str(error))
    assert rows == [("lr=0.01", "0.01"), ("lr=0.1", "0.1")]


def test_scan_has_all_runs_with_their_configs(bucket):
    table = lox.scan(f"{bucket}/exp1-*", "loss")
    assert isinstance(table, pl.LazyFrame)
    rows = table.select("run", "step", "loss").collect()
    assert sorted(rows.rows()) == expected()
    high = table.filter(pl.col("lr") > 0.05).collect()
    assert set(high["run"]) == {"lr=0.1"}
    assert len(high) == 30
    assert high.columns == [
        *("store", "session", "process", "run", "run_id", "row", "time"),
        *("lr", "env", "net/width", "step", "loss"),
    ]
    assert set(high["store"]) == {f"{bucket}/exp1-{job}" for job in range(3)}
    assert sorted(high["time"].unique()) == [1.8e9 + step for step in range(10)]
    with pytest.raises(LookupError, match=r"No run in .* has the key 'lost'"):
        lox.scan(f"{bucket}/exp1-0", "lost")
    with pytest.raises(FileNotFoundError, match=r"There is no store in .*none"):
        lox.scan(f"{bucket}/none*")


def test_scan_of_a_folder_has_the_same_columns(bucket, tmp_path):
    remote = lox.scan(f"{bucket}/exp1-1", "loss").collect()
    logger = lox.loggers.SaveLogger(tmp_path / "there")
    lox.export(f"{bucket}/exp1-1", logger)
    local = lox.scan(tmp_path / "there", "loss").collect()
    assert local.columns == remote.columns
    order = ["run", "step"]
    columns = ["run", "step", "loss", "lr", "time"]
    assert local.sort(order).select(columns).equals(remote.sort(order).select(columns))


def test_scan_puts_types_and_shapes_together(url):
    logger = lox.loggers.SaveLogger(url)
    run = logger.init(3)
    for i, value in enumerate([np.int32(1), np.float32(2.5)]):
        logger.log(run, {"x": value, "v": np.full((2, 3), i, np.float32)}, step=i)
        logger.log(run, {"other": True}, step=i)
    logger.finish(run)
    table = lox.scan(url, ["x", "v"]).collect().sort("row")
    assert table["x"].to_list() == [1, 2.5]
    assert table["v"].dtype == pl.Array(pl.Float32, (2, 3))
    assert "other" not in table.columns
    assert lox.scan(url).collect()["other"].drop_nulls().to_list() == [True, True]


def test_compact_joins_objects_and_changes_no_row(bucket, capsys):
    url = f"{bucket}/exp1-0"

    def read():
        table = pl.scan_parquet(f"{url}/rows/**/*.parquet", hive_partitioning=True)
        return sorted(table.select("run", "step", "loss", "row", "time").collect().rows())

    def count():
        return len(Bucket(url).objects("rows"))

    before = read()
    (reader,) = open_store(url)
    assert count() == 5
    assert main(["compact", url]) == 0
    assert "5 objects became 1" in capsys.readouterr().out
    assert count() == 1
    assert read() == before
    # One who had opened it before, and one who opens it now.
    for opened in (reader, *open_store(url)):
        rows = read_key_rows(opened, [0])[0]["loss"]
        assert rows.steps["step"].tolist() == [*range(10)]
    assert sorted(lox.scan(url, "loss").select("run").collect()["run"]) == [
        *["lr=0.01"] * 10,
        *["lr=0.1"] * 10,
    ]
    assert main(["compact", url]) == 0
    assert "nothing to join" in capsys.readouterr().out
    assert main(["compact", "results"]) == 1
    assert "'results' is a folder" in capsys.readouterr().err


def test_compact_leaves_a_session_alone_that_is_being_written(url):
    writer, runs = write_job(url, 7, ended=False)
    assert compact(url).sessions == 0
    for run in runs:
        writer.close(run)
    assert compact(url).sessions == 1
    counted = collections.Counter(lox.scan(url, "loss").collect()["step"])
    assert counted == dict.fromkeys(range(10), 2)


def test_compact_loses_nothing_of_a_session_that_ends_at_the_same_time(url, monkeypatch):
    writer, runs = write_job(url, 7, ended=False)

    def opened(url):
        readers = open_store(url)
        while runs:  # and now, between two looks at the bucket, it ends
            writer.write(Batch([block(runs[-1].id, 7, 0.5, range(10, 12))]))
            writer.close(runs.pop())
        return readers

    module = sys.modules["lox_host.remote.compact"]
    monkeypatch.setattr(module, "open_store", opened)
    compact(url)
    counted = collections.Counter(lox.scan(url, "loss").collect()["step"])
    assert counted == dict.fromkeys(range(12), 2)


def test_queries_in_sql_over_several_stores(bucket, capsys):
    sql = "SELECT lr, count(*) AS n, max(step) AS s FROM rows GROUP BY lr ORDER BY lr"
    assert main(["query", sql, f"{bucket}/exp1-*", "--json"]) == 0
    lines = json.loads(capsys.readouterr().out)
    assert lines == [{"lr": lr, "n": 30, "s": 9} for lr in (0.01, 0.1)]
    assert main(["ls", f"{bucket}/exp1-*", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == 6


def test_the_viewer_reads_stores_in_buckets(bucket, tmp_path, capsys, monkeypatch):
    from lox_host.view.data import catalog as module

    for name in ("REMOTE", "SEARCH"):
        monkeypatch.setattr(module, name, 0.01)
    catalog = module.Catalog([f"{bucket}/exp1-*"])
    assert not catalog.problems
    assert sorted(run.run.name for run in catalog.runs) == sorted(["lr=0.01", "lr=0.1"] * 3)
    assert catalog.key_names() == ["loss"]
    write_job(f"{bucket}/exp1-1", 5)  # another job begins while somebody looks
    time.sleep(0.05)
    catalog.poll()
    assert len(catalog.runs) == 8
    page = tmp_path / "page.html"
    assert main(["view", f"{bucket}/exp1-1", "--export", str(page)]) == 0
    assert "4 runs" in capsys.readouterr().out


@pytest.mark.parametrize("to", ["delta", "iceberg", "lance"])
def test_export_to_table_formats(bucket, to, tmp_path, capsys):
    module = {"delta": "deltalake", "iceberg": "pyiceberg", "lance": "lance"}[to]
    pytest.importorskip(module)
    out = tmp_path / "out"
    assert main(["export", f"{bucket}/exp1-2", "--to", to, "-o", str(out)]) == 0
    assert "2 runs exported" in capsys.readouterr().out
    table = READ[to](out).select(["run", "step", "loss", "lr"]).to_pylist()
    rows = sorted((row["run"], row["step"], row["loss"], row["lr"]) for row in table)
    assert rows == sorted(
        (f"lr={lr}", s, loss(2, lr, s), lr) for lr in (0.1, 0.01) for s in range(10)
    )


def read_delta(folder):
    from deltalake import DeltaTable

    return DeltaTable(folder).to_pyarrow_table()


def read_iceberg(folder):
    from pyiceberg.table import StaticTable

    (metadata,) = sorted((folder / "lox/rows/metadata").glob("*.metadata.json"))[-1:]
    return StaticTable.from_metadata(str(metadata)).scan().to_arrow()


def read_lance(folder):
    import lance

    return lance.dataset(str(folder)).to_table()


READ = {"delta": read_delta, "iceberg": read_iceberg, "lance": read_lance}
