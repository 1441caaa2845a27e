"""Stores on object storage, read back by lox like a folder."""

import dataclasses
import io
import json

import jax
import jax.numpy as jnp
import numpy as np
import pyarrow.parquet as pq
import pytest
from obstore.store import from_url

import lox
from lox_host.cli.main import main
from lox_host.remote import Bucket
from lox_host.rows import Batch
from lox_host.runs.run import Run
from lox_host.writers.save_remote import RemoteSaveWriter
from support.object_server import environment
from support.remote_writer import block

LR = 1e-3


def train(x):
    def step(x, i):
        lox.log({"loss": x, "grad": {"w": x * jnp.ones(3)}}, step=i)
        return x / 2, None

    return jax.lax.scan(step, x, jnp.arange(5))[0]


LOSS = 0.5 ** np.arange(5, dtype=np.float32)


@pytest.fixture
def written(url):
    """A store with a run of five rows, and one more key at the end."""
    logger = lox.loggers.SaveLogger(url, config={"lr": LR, "net": {"width": 64}})
    run = logger.init(jax.random.key(0))
    logger.tap(train, run)(1.0)
    # Reading in the process that writes has all of it, as with a folder.
    before = lox.load(url)
    logger.log(run, {"accuracy": 0.75}, step=4)
    logger.finish(run)
    assert list(before) == ["loss", "grad"]
    return url


def test_a_store_in_a_bucket_is_read_like_a_folder(written):
    for _ in range(2):
        logs = lox.load(written)
        np.testing.assert_array_equal(logs["loss"], LOSS)
        np.testing.assert_array_equal(logs["grad"]["w"], LOSS[:, None] * np.ones(3))
        np.testing.assert_array_equal(logs.step["loss"], np.arange(5))
        assert logs["accuracy"] == 0.75
    (run,) = lox.runs(written)
    assert (run.rows, run.keys) == (5, ("loss", "grad", "accuracy"))
    assert run.config == {"lr": LR, "net": {"width": 64}}


def test_nothing_is_left_on_the_machine_that_wrote(written, tmp_path):
    left = [p for p in (tmp_path / "spool").rglob("*") if p.is_dir()]
    assert [path.name for path in left] == [written.replace(":", "%3A").replace("/", "%2F")]


def test_another_machine_reads_it(written, proxy, tmp_path, monkeypatch):
    for name, value in environment(proxy.url, tmp_path / "elsewhere").items():
        monkeypatch.setenv(name, value)
    np.testing.assert_array_equal(lox.load(written, "loss")["loss"], LOSS)
    # A segment is downloaded once, however often it is read.
    before = proxy.requests["GET"]
    np.testing.assert_array_equal(lox.load(written, "loss")["loss"], LOSS)
    assert proxy.requests["GET"] - before <= 2  # the listing of manifests


def test_the_command_line_reads_it(written, capsys):
    assert main(["ls", written, "--json"]) == 0
    (run,) = json.loads(capsys.readouterr().out)
    assert run["rows"] == 5
    assert main(["show", written]) == 0
    assert "accuracy" in capsys.readouterr().out
    assert main(["tail", written, "--no-follow", "-k", "loss", "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["values"]["loss"] for row in rows] == LOSS.tolist()
    assert main(["ls", f"{written}-not-there"]) == 1
    assert "There is no store in" in capsys.readouterr().err


def test_the_objects_are_parquet_in_hive_folders(written):
    paths = [found.path for found in Bucket(written).objects("")]
    (session,) = {path.split("session=")[1].split("/")[0] for path in paths if "=" in path}
    assert [path.split("/")[0] for path in paths] == [
        *("lox.json", "manifests", "rows", "rows", "runs")
    ]
    assert all(f"session={session}/process=0/" in p for p in paths if "=" in p)
    data, _ = Bucket(written).get(paths[2])
    table = pq.read_table(io.BytesIO(data))
    assert table.column_names == ["run", "run_id", "row", "time", "step", "loss", "grad/w"]
    assert table["loss"].to_pylist() == LOSS.tolist()
    assert table["grad/w"].to_pylist() == [[x] * 3 for x in LOSS.tolist()]
    metadata = pq.ParquetFile(io.BytesIO(data)).metadata
    assert metadata.row_group(0).column(2).compression == "ZSTD"


def test_every_dtype_comes_back_bit_by_bit(url):
    values = {
        "bool": np.array([True, False]),
        "int8": np.array([-128, 127], np.int8),
        "uint32": np.array([0, 2**32 - 1], np.uint32),
        "float16": np.array([1.5, np.inf], np.float16),
        "bfloat16": jnp.array([1.5, jnp.nan], jnp.bfloat16),
        "complex64": np.array([1 + 2j, -1j], np.complex64),
        "float8": jnp.array([0.5, 2], jnp.float8_e4m3fn),
        "empty": np.zeros((2, 0), np.float32),
        "nan": np.array([np.nan, -np.inf], np.float32),
    }
    logger = lox.loggers.SaveLogger(url)
    run = logger.init(3)
    logger.log(run, {**values, "key": jax.random.key(7)}, step=0)
    logger.finish(run)
    logs = lox.load(url)
    for name, value in values.items():
        value = np.asarray(value)
        assert logs[name].dtype == value.dtype, name
        assert logs[name].tobytes() == value.tobytes(), name
    assert jax.random.key_data(logs["key"]).tolist() == [0, 7]


def test_keys_that_change_their_type_are_kept_apart_and_joined(url):
    logger = lox.loggers.SaveLogger(url)
    run = logger.init(3)
    for i, value in enumerate([np.int32(1), np.float32(2.5), np.int32(3)]):
        logger.log(run, {"x": value}, step=i)
    logger.finish(run)
    np.testing.assert_array_equal(lox.load(url)["x"], [1, 2.5, 3])


def test_two_jobs_with_one_key_are_two_sessions(url):
    for value in (1.0, 2.0):
        logger = lox.loggers.SaveLogger(url)
        run = logger.init(5)
        logger.log(run, {"x": value})
        logger.finish(run)
    first, second = lox.runs(url)
    assert first.session != second.session
    assert lox.load(url)["x"] == 2.0
    assert lox.load(url, session=first.session)["x"] == 1.0


def test_modes(url):
    def write(mode):
        logger = lox.loggers.SaveLogger(url, mode)
        run = logger.init(5)
        logger.log(run, {"x": 1.0})
        logger.finish(run)

    write("x")
    with pytest.raises(FileExistsError, match=r"There is a store in 's3://.*`mode` is 'x'"):
        write("x")
    write("a")
    assert len(lox.runs(url)) == 2
    write("w")
    assert len(lox.runs(url)) == 1
    names = {path.path.split("/")[1] for path in Bucket(url).objects("rows")}
    assert len(names) == 1


def test_a_folder_on_this_machine_by_its_address(tmp_path, monkeypatch):
    for name, value in environment("", tmp_path).items():
        monkeypatch.setenv(name, value)
    url = f"file://{tmp_path}/there"
    logger = lox.loggers.SaveLogger(url)
    run = logger.init(5)
    logger.log(run, {"x": 1.0})
    logger.finish(run)
    assert lox.load(url)["x"] == 1.0
    assert len(list((tmp_path / "there/rows").rglob("*.parquet"))) == 1
    # The folder is the same store, for reading.
    assert lox.load(tmp_path / "there")["x"] == 1.0
    assert len(lox.scan(tmp_path / "there", "x").collect()) == 1
    with pytest.raises(ValueError, match=r"give its address: 'file:///.*there'"):
        lox.loggers.SaveLogger(tmp_path / "there").init(5)


def test_an_address_that_lox_does_not_know():
    with pytest.raises(ValueError, match=r"does not know the address 'ftp://x/y'.*s3://"):
        lox.load("ftp://x/y")


def test_what_is_not_there(url, capsys):
    with pytest.raises(FileNotFoundError, match="There is no store in 's3://"):
        lox.load(url)
    with pytest.raises(ConnectionError, match="There is no bucket 'not-there'"):
        lox.load("s3://not-there/exp1")
    for command in ("ls", "show"):
        assert main([command, "s3://not-there/exp1"]) == 1
        assert "There is no bucket 'not-there'" in capsys.readouterr().err
    assert from_url(url)  # obstore itself sees nothing wrong with it


def test_save_adds_to_a_run_or_replaces_it(url):
    lox.save(lox.logdict({"loss": 0.5}, step={"loss": 3}), url)
    assert lox.load(url) == {"loss": 0.5}
    lox.save(lox.logdict({"loss": 0.25}, step={"loss": 4}), url)
    assert lox.load(url)["loss"].tolist() == [0.5, 0.25]
    lox.save(lox.logdict({"other": 1.0}), url, key=7)
    lox.save(lox.logdict({"loss": 1.0}), url, mode="w")
    names = sorted(run.name for run in lox.runs(url))
    assert names == ["saved", "seed7"]
    with pytest.raises(FileExistsError, match="`mode` is 'x'"):
        lox.save(lox.logdict({"loss": 1.0}), url, mode="x")


def test_what_is_uploaded_is_not_sent_again(url, proxy):
    """The proxy counts each byte that is put, manifests and all."""
    writer = RemoteSaveWriter(url)
    run = Run(1, "run", (0,), {}, 1e9, "l", 0, "0" * 8)
    writer.open(run)
    random = np.random.default_rng(0)
    for first in range(0, 60_000, 1000):
        rows = block(run.id, first, 1000)
        noise = {"loss": random.normal(size=1000).astype(np.float32)}
        times = 1.8e9 + np.arange(first, first + 1000) + random.random(1000)
        writer.write(Batch([dataclasses.replace(rows, values=noise, time=times)]))
        writer.flush()
        writer.push()
    writer.close(run)
    stored = sum(found.size for found in Bucket(url).objects("rows"))
    assert len(Bucket(url).objects("rows")) >= 60
    assert sum(proxy.bytes_put.values()) / stored < 1.1
    segments = [n for path, n in proxy.objects_put.items() if "/rows/" in path]
    assert set(segments) == {1}


def test_a_run_that_is_resumed_elsewhere_is_one_curve(url, proxy, tmp_path, monkeypatch):
    for machine, steps in (("one", range(5)), ("other", range(3, 7))):
        for name, value in environment(proxy.url, tmp_path / machine).items():
            monkeypatch.setenv(name, value)
        logger = lox.loggers.SaveLogger(url)
        run = logger.init(5, resume=machine == "other")
        for i in steps:
            logger.log(run, {"x": machine == "other"}, step=i)
        logger.finish(run)
    logs = lox.load(url)
    assert logs.step["x"].tolist() == [*range(7)]
    assert logs["x"].tolist() == [False] * 3 + [True] * 4
    rows = lox.scan(url, "x").collect().sort("step")
    assert rows["step"].to_list() == [*range(7)]
    assert rows["x"].to_list() == [False] * 3 + [True] * 4
