"""The loggers of experiment trackers, each with the real package, offline."""

import math
import os
import subprocess
import sys
import time
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lox
from lox import loggers
from lox_host.writers._run_info import run_title
from lox_host.writers._tracker_rows import histograms
from support import tracked
from support.kept import Kept
from support.tracked import (
    CONFIG,
    KEYS,
    NAMES,
    XS,
    counted,
    expected,
    odd,
    rowwise,
    trained,
)

pytestmark = pytest.mark.usefixtures("offline")

PLAIN_CONFIG = {"lr": 0.1, "net": {"width": 64, "sizes": [1, 2]}}

in_one_worker = {
    name: pytest.mark.xdist_group(name)
    for name in ("wandb", "tensorboard", "mlflow", "trackio", "neptune")
}


def logged(logger, fun=odd):
    """Log what `fun` does in one run."""
    state = logger.init(KEYS[0], name=NAMES[0])
    logger.tap(fun, state)(jnp.float32(1))
    logger.finish(state)


def assert_rows(rows, expected):
    """Check that rows are the same, NaN included."""
    assert [*map(comparable, rows)] == [*map(comparable, expected)]


def without_own(rows):
    """Rows without what wandb adds to them."""
    return [{key: x for key, x in row.items() if key[0] != "_"} for row in rows]


def comparable(row):
    is_nan = {key for key, x in row.items() if isinstance(x, float) and math.isnan(x)}
    return {key: "NaN" if key in is_nan else x for key, x in row.items()}


# What NumPy makes of the arrays of `odd`.
VECTOR = {"values": [1, 1, 1], "bins": [1.0, 2.0, 3.0, 4.0]}
LANES = {"values": [1, 1], "bins": [1.0, 1.5, 2.0]}
NUMBERS = {"values": [1, 1], "bins": [10.0, 15.0, 20.0]}


# Weights & Biases ---------------------------------------------------------------------


@in_one_worker["wandb"]
@pytest.mark.parametrize("way", ["tap", "spool"])
def test_wandb_has_every_row_of_every_seed(way, tmp_path):
    logger = loggers.WandbLogger(dir=str(tmp_path), name="mine", config=CONFIG)
    trained(logger, way)

    runs = tracked.wandb_runs(tmp_path)
    assert set(runs) == {f"mine-{name}" for name in NAMES}
    assert len({run["group"] for run in runs.values()}) == 1
    for name, x in zip(NAMES, XS.tolist(), strict=True):
        run = runs[f"mine-{name}"]
        assert rowwise(without_own(run["rows"])) == expected(x)
        assert [row["_step"] for row in run["rows"]] == [*range(len(run["rows"]))]
        assert {"loss": "step", "score": "step"}.items() <= run["axes"].items()
        assert (
            run["config"].items()
            >= {"lr": 0.1, "net": {"width": 64, "sizes": [1, 2]}}.items()
        )


@in_one_worker["wandb"]
def test_wandb_has_what_is_odd(tmp_path):
    logged(loggers.WandbLogger(dir=str(tmp_path), id="odd"))

    (run,) = tracked.wandb_runs(tmp_path).values()
    kind = {"_type": "histogram"}
    assert_rows(
        without_own(run["rows"]),
        [
            {"nan": math.nan, "inf": math.inf, "key/0": 0, "key/1": 7, "half": 0.5},
            {"vector": {**kind, **VECTOR}, "vector/nonfinite": 1, "half": 1},
            {"epoch": 1, "time": 1, "epoch_": 3},
            {"a/b": 1, "a/b_": 2},
            {"lane": {**kind, **LANES}, "number": {**kind, **NUMBERS}},
        ],
    )


@in_one_worker["wandb"]
def test_wandb_lists_what_is_installed_once(tmp_path):
    with loggers.WandbLogger(dir=str(tmp_path)) as logger:
        jax.vmap(logger.init)(KEYS[:3])
    tracked.wandb_runs(tmp_path)
    assert len(list(tmp_path.glob("wandb/offline-run-*/files/requirements.txt"))) == 1


@in_one_worker["wandb"]
def test_wandb_settings_of_the_user_win(tmp_path):
    import wandb

    logger = loggers.WandbLogger(
        dir=str(tmp_path),
        group="ours",
        settings=wandb.Settings(x_disable_stats=False, run_notes="noted"),
    )
    state = logger.init(KEYS[0])
    (run,) = logger._host.writer._runs.values()
    assert not run.settings.x_disable_stats
    assert run.settings.silent
    assert (run.notes, run.group) == ("noted", "ours")
    logger.finish(state)
    logger = loggers.WandbLogger(mode="disabled", settings={"silent": False})
    logged(logger)


@in_one_worker["wandb"]
def test_wandb_functions_under_jit_and_vmap(tmp_path):
    def start(key):
        return lox.wandb.init(key, dir=str(tmp_path), project="p", config={"lr": 0.1})

    @jax.jit
    @jax.vmap
    def train(key, x):
        run = start(key)
        x, logs = lox.spool(lambda x: lox.log({"x": x}) and 2 * x)(x)
        lox.wandb.log(run, logs)
        return run, x

    runs, _ = train(KEYS[:2], XS[:2])
    assert jnp.array_equal(jax.vmap(start)(KEYS[:2]).state.run, runs.state.run)
    jax.vmap(lox.wandb.log)(runs, {"y": XS[:2]})
    jax.jit(jax.vmap(lox.wandb.finish))(runs)
    lox.barrier()

    found = tracked.wandb_runs(tmp_path)
    for name, x in zip(NAMES[:2], XS.tolist(), strict=False):
        rows = without_own(found[name]["rows"])
        assert rows == [{"x": pytest.approx(x)}, {"y": pytest.approx(x)}]
    with pytest.raises(ValueError, match="is finished"):
        lox.wandb.log(jax.tree.map(lambda x: x[0], runs), {"x": 1})
    lox.wandb.finish(runs)
    with pytest.raises(TypeError, match=r"`run` is 'int', not what `init\(key\)` returns"):
        lox.wandb.log(3, {})
    with pytest.raises(TypeError, match="put it into `config`"):
        jax.jit(lambda x: lox.wandb.init(KEYS[0], every=x))(0.1)


@in_one_worker["wandb"]
def test_wandb_without_a_network_raises_in_init(tmp_path):
    settings = {"base_url": "http://127.0.0.1:9", "api_key": "0" * 40, "init_timeout": 2}
    logger = loggers.WandbLogger(mode="online", dir=str(tmp_path), settings=settings)
    with pytest.raises(Exception, match=r"(?i)connect|timed out|network"):
        logger.init(KEYS[0])


# TensorBoard --------------------------------------------------------------------------


@in_one_worker["tensorboard"]
@pytest.mark.parametrize("way", ["tap", "spool"])
def test_tensorboard_has_every_row_of_every_seed(way, tmp_path):
    trained(loggers.TensorBoardLogger(tmp_path, config=CONFIG), way)
    trained(loggers.TensorBoardLogger(tmp_path), way)

    folders = [*NAMES, *(f"{name}-2" for name in NAMES)]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(folders)
    for name, x in zip(NAMES, XS.tolist(), strict=True):
        for folder in (name, f"{name}-2"):
            run = tracked.tensorboard_run(tmp_path / folder)
            scalars = {
                tag: [(event.step, event.value) for event in run.Scalars(tag)]
                for tag in run.Tags()["scalars"]
            }
            assert scalars == counted(expected(x))
    assert hyperparameters(tmp_path / NAMES[0]) == {
        "lr": 0.1, "net/width": 64.0, "net/sizes": "[1, 2]",
    }  # fmt: skip


def hyperparameters(folder):
    from tensorboard.plugins.hparams import plugin_data_pb2

    run = tracked.tensorboard_run(folder)
    content = run.PluginTagToContent("hparams")["_hparams_/session_start_info"]
    found = plugin_data_pb2.HParamsPluginData.FromString(content).session_start_info.hparams
    return {name: getattr(x, x.WhichOneof("kind")) for name, x in found.items()}


@in_one_worker["tensorboard"]
def test_tensorboard_has_what_is_odd(tmp_path):
    image = np.arange(24, dtype=np.uint8).reshape(2, 4, 3)
    gray = np.linspace(0, 1, 20, dtype=np.float32).reshape(2, 2, 5)

    def shown(x):
        odd(x)
        lox.log({"image": image, "grays": gray, "text": np.array([104, 105, 0], np.uint8)})
        lox.log({"plate": gray[0, :, :3], "flat": gray[0, 0]})
        lox.log({"empty": jnp.zeros(0)}, step=x)

    images = ["grays", "plate", "flat"]
    logged(loggers.TensorBoardLogger(tmp_path, images=images, texts=["text"]), shown)

    run = tracked.tensorboard_run(tmp_path / NAMES[0])
    scalars = {tag: [e.value for e in run.Scalars(tag)] for tag in run.Tags()["scalars"]}
    assert repr(scalars.pop("nan")) == "[nan]"
    assert scalars == {
        "inf": [math.inf], "key/0": [0], "key/1": [7], "half": [0.5, 1],
        "vector/nonfinite": [1], "epoch": [1], "time": [1], "epoch_": [3],
        "a/b": [1], "a/b_": [2], "step": [1],
    }  # fmt: skip
    assert run.Scalars("time")[0].step == 3
    vector = run.Histograms("vector")[0].histogram_value
    assert (vector.min, vector.max, vector.num, vector.sum) == (1, 4, 3, 7)
    assert vector.bucket == VECTOR["values"]
    assert vector.bucket_limit == VECTOR["bins"][1:]
    assert run.Histograms("lane")[0].histogram_value.bucket == LANES["values"]
    assert run.Histograms("number")[0].histogram_value.num == 2
    assert run.Histograms("empty")[0].histogram_value.num == 0
    assert np.array_equal(pixels(run.Images("image")[0]), image)
    first = pixels(run.Images("grays/0")[0])
    assert first.tolist() == np.round(255 * gray[0]).tolist()
    assert pixels(run.Images("plate")[0]).shape == (2, 3)
    assert run.Histograms("flat")[0].histogram_value.num == 5
    (text,) = run.Tensors("text")
    assert text.tensor_proto.string_val == [b"hi"]


def pixels(event):
    import io

    from PIL import Image

    return np.asarray(Image.open(io.BytesIO(event.encoded_image_string)))


# MLflow -------------------------------------------------------------------------------

by_mlflow = pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy")


@in_one_worker["mlflow"]
@by_mlflow
def test_mlflow_has_every_row_of_every_seed(mlflow_uri):
    import mlflow

    client = mlflow.MlflowClient(mlflow_uri)
    for way in ("tap", "spool"):
        trained(loggers.MLflowLogger(way, tracking_uri=mlflow_uri, config=CONFIG), way)

        experiment = client.get_experiment_by_name(way).experiment_id
        runs = {run.info.run_name: run for run in client.search_runs([experiment])}
        assert len({run.data.tags["group"] for run in runs.values()}) == 1
        for name, x in zip(NAMES, XS.tolist(), strict=True):
            run = runs[name]
            assert run.info.status == "FINISHED"
            assert run.data.params == {
                "lr": "0.1",
                "net/width": "64",
                "net/sizes": "[1, 2]",
            }
            points = tracked.mlflow_points(mlflow_uri, run.info.run_id)
            # MLflow does not say in which order it has points of one time.
            assert {key: sorted(own) for key, own in points.items()} == {
                key: sorted(own) for key, own in counted(expected(x)).items()
            }


@in_one_worker["mlflow"]
@by_mlflow
def test_mlflow_has_what_is_odd(mlflow_uri):
    def larger(x):
        odd(x)
        lox.log({"large": jnp.arange(100.0), "no (such) name": 1, "no [such] name": 2})
        for zero in (0.0, -0.0, jnp.nan, jnp.nan):
            lox.log({"zero": zero}, step=0)

    logger = loggers.MLflowLogger("odd", tracking_uri=mlflow_uri, tags={"by": "lox"})
    state = logger.init(KEYS[0])
    logger.tap(larger, state)(jnp.float32(1))
    lox.barrier()
    (run,) = logger._host.writer._runs.values()
    logger.finish(state)

    points = tracked.mlflow_points(mlflow_uri, run)
    values = {key: [value for _, value in own] for key, own in points.items()}
    assert all(map(math.isnan, values.pop("nan") + values.pop("vector/2")))
    assert sorted(map(str, values.pop("zero"))) in (
        ["-0.0", "0.0", "nan", "nan"],
        ["0.0", "0.0", "nan", "nan"],
    )
    assert values == {
        "inf": [sys.float_info.max], "key/0": [0], "key/1": [7], "half": [0.5, 1],
        "vector/0": [1], "vector/1": [2], "vector/3": [4],
        "epoch": [1], "time": [1], "epoch_": [3], "a/b": [1], "a/b_": [2],
        "lane/1": [1], "lane/2": [2], "number/1": [10], "number/2": [20],
        "large/mean": [49.5], "large/std": [pytest.approx(28.866, abs=1e-3)],
        "large/min": [0], "large/max": [99], "no _such_ name": [1], "no _such_ name_": [2],
    }  # fmt: skip
    assert points["time"] == [(3, 1)]


@in_one_worker["mlflow"]
def test_mlflow_without_its_server_raises_in_init(monkeypatch):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    logger = loggers.MLflowLogger(tracking_uri="http://127.0.0.1:9")
    with pytest.raises(Exception, match=r"(?i)connection"):
        logger.init(KEYS[0])


@pytest.fixture(scope="module")
def mlflow_uri(tmp_path_factory):
    """A database, which takes a while to set up."""
    return f"sqlite:///{tmp_path_factory.mktemp('mlflow')}/mlflow.db"


# trackio ------------------------------------------------------------------------------


@in_one_worker["trackio"]
@pytest.mark.parametrize("way", ["tap", "spool"])
def test_trackio_has_every_row_of_every_seed(way, offline):
    trained(loggers.TrackioLogger(way, name="mine", config=CONFIG), way)

    runs = tracked.trackio_runs(offline / "trackio", way)
    assert set(runs) == {f"mine-{name}" for name in NAMES}
    assert len({run["config"]["_Group"] for run in runs.values()}) == 1
    for name, x in zip(NAMES, XS.tolist(), strict=True):
        run = runs[f"mine-{name}"]
        assert (
            run["config"].items()
            >= {"lr": 0.1, "net": {"width": 64, "sizes": [1, 2]}}.items()
        )
        series = rowwise(run["rows"])
        for key, rows in expected(x).items():
            if "step" in rows[0][0]:
                assert series[key] == rows
            else:
                assert [value for _, value in series[key]] == [value for _, value in rows]
        assert series.keys() == expected(x).keys()


@in_one_worker["trackio"]
def test_trackio_has_what_is_odd(offline):
    def reserved(x):
        odd(x)
        lox.log({"step": 5, "__own": 6}, step=7)

    logged(loggers.TrackioLogger("odd"), reserved)

    (run,) = tracked.trackio_runs(offline / "trackio", "odd").values()
    kind = {"_type": "trackio.histogram"}
    assert_rows(
        run["rows"],
        [
            {
                "nan": "NaN",
                "inf": "Infinity",
                "key/0": 0,
                "key/1": 7,
                "half": 0.5,
                "step": 0,
            },
            {"vector": {**kind, **VECTOR}, "vector/nonfinite": 1, "half": 1, "step": 1},
            {"epoch": 1, "time_": 1, "epoch_": 3, "step": 3},
            {"a/b": 1, "a/b_": 2, "step": 4},
            {"lane": {**kind, **LANES}, "number": {**kind, **NUMBERS}, "step": 5},
            {"step_": 5, "_own": 6, "step": 7},
        ],
    )


# Neptune ------------------------------------------------------------------------------


@in_one_worker["neptune"]
@pytest.mark.parametrize("way", ["tap", "spool"])
def test_neptune_has_every_row_of_every_seed(way, tmp_path):
    trained(loggers.NeptuneLogger(log_directory=tmp_path, config=CONFIG), way)

    runs = tracked.neptune_runs(tmp_path)
    assert set(runs) == set(NAMES)
    assert len({run["set"]["lox/group"] for run in runs.values()}) == 1
    for name, x in zip(NAMES, XS.tolist(), strict=True):
        run = runs[name]
        assert run["set"]["config/lr"] == 0.1
        assert run["set"]["config/net/width"] == 64
        assert run["set"]["config/net/sizes"] == "[1, 2]"
        assert rowwise(tracked.neptune_rows(run)) == expected(x)


@in_one_worker["neptune"]
def test_neptune_has_what_is_odd(tmp_path):
    logged(loggers.NeptuneLogger(log_directory=tmp_path))

    (run,) = tracked.neptune_runs(tmp_path).values()
    rows = tracked.neptune_rows(run)
    for row, (key, histogram) in zip(
        (rows[1], rows[4], rows[4]),
        (("vector", VECTOR), ("lane", LANES), ("number", NUMBERS)),
        strict=True,
    ):
        found = row.pop(key)
        assert list(found.counts.values) == histogram["values"]
        assert list(found.bin_edges) == histogram["bins"]
    assert rows == [
        {
            "nan/nonfinite": "nan",
            "inf/nonfinite": "inf",
            "key/0": 0,
            "key/1": 7,
            "half": 0.5,
        },
        {"vector/nonfinite": 1, "half": 1},
        {"epoch": 1, "time": 1, "epoch_": 3},
        {"a/b": 1, "a/b_": 2},
        {},
    ]


@in_one_worker["neptune"]
def test_neptune_functions_under_jit_and_vmap(tmp_path):

    @jax.jit
    @jax.vmap
    def train(key, x):
        run = lox.neptune.init(key, log_directory=str(tmp_path))
        lox.neptune.log(run, {"x": x})
        lox.neptune.finish(run)

    train(KEYS[:2], XS[:2])
    lox.barrier()
    runs = tracked.neptune_runs(tmp_path)
    assert [runs[name]["series"] for name in NAMES[:2]] == [
        {"x": [(0, pytest.approx(x))]} for x in XS[:2].tolist()
    ]


# What all have in common --------------------------------------------------------------

MAKERS = {
    "wandb": lambda path: loggers.WandbLogger(dir=str(path)),
    "tensorboard": loggers.TensorBoardLogger,
    "mlflow": lambda path: loggers.MLflowLogger(tracking_uri=f"sqlite:///{path}/mlflow.db"),
    "trackio": lambda path: loggers.TrackioLogger("common"),
    "neptune": lambda path: loggers.NeptuneLogger(log_directory=path),
}
PACKAGES = {"neptune": "neptune_scale", "tensorboard": "tensorboard.compat.proto.event_pb2"}
EACH = [pytest.param(name, marks=in_one_worker[name]) for name in MAKERS]


@pytest.mark.parametrize("name", EACH)
def test_a_tracker_that_is_missing_names_its_extra(name, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, PACKAGES.get(name, name), None)
    message = rf"^\w+Logger needs `pip install 'jax-lox\[{name}\]'`, or .*\.$"
    with pytest.raises(ModuleNotFoundError, match=message):
        MAKERS[name](tmp_path)


@by_mlflow
@pytest.mark.parametrize("name", EACH)
def test_a_tracker_that_fails_warns_once_and_finish_raises(name, tmp_path, monkeypatch):
    logger = MAKERS[name](tmp_path)
    state = logger.init(KEYS[0], name=NAMES[0])
    writer = logger._host.writer
    (run,) = writer._files.values() if name == "tensorboard" else writer._runs.values()
    target, method = {
        "tensorboard": (run, "write"),
        "mlflow": (getattr(writer, "_client", None), "log_batch"),
        "neptune": (run, "log_metrics"),
    }.get(name, (run, "log"))

    def fail(*args, **kwargs):
        raise ConnectionError("no such host")

    monkeypatch.setattr(target, method, fail)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for i in range(3):
            logger.log(state, {"x": i})
            lox.barrier()
    (message,) = [str(w.message) for w in seen if "Logger failed" in str(w.message)]
    assert message.startswith(
        f"{type(logger).__name__} failed with ConnectionError: no such host."
    )
    assert NAMES[0] in message
    with pytest.raises(RuntimeError, match=r"no such host\. 3 logged rows"):
        logger.finish(state)
    logger.finish(state)
    with pytest.raises(ValueError, match="is finished"):
        logger.log(state, {"x": 1})


PROGRAM = """
import sys, warnings, jax, jax.numpy as jnp, lox
from lox.loggers import *
path = sys.argv[1]
logger = MultiLogger(
    WandbLogger(dir=path),
    TensorBoardLogger(path + "/tensorboard"),
    TrackioLogger("left"),
    NeptuneLogger(log_directory=path + "/neptune"),
)
def fun(x):
    def step(c, i):
        lox.log({"i": i}, step=i)
        return jnp.tanh(c @ c), None
    return jax.lax.scan(step, x * jnp.ones((50, 50)), jnp.arange(200))[0].sum()
keys = jax.random.split(jax.random.key(0), 2)
jax.jit(jax.vmap(lambda key: logger.tap(fun, logger.init(key))(1.0)))(keys)
"""


@in_one_worker["wandb"]
def test_runs_that_nobody_finishes_are_whole_at_exit(tmp_path):
    environment = {**os.environ, "TRACKIO_DIR": str(tmp_path / "trackio")}
    command = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr

    names = {"run0", "run1"}
    rows = {
        "wandb": {n: run["rows"] for n, run in tracked.wandb_runs(tmp_path).items()},
        "trackio": {
            n: run["rows"]
            for n, run in tracked.trackio_runs(tmp_path / "trackio", "left").items()
        },
        "neptune": {
            n: tracked.neptune_rows(run)
            for n, run in tracked.neptune_runs(tmp_path / "neptune").items()
        },
        "tensorboard": {
            n: [
                {"i": e.value, "step": e.step}
                for e in tracked.tensorboard_run(tmp_path / "tensorboard" / n).Scalars("i")
            ]
            for n in names
        },
    }
    for found in rows.values():
        assert found.keys() == names
        for own in found.values():
            assert [(row["i"], row["step"]) for row in own] == [(i, i) for i in range(200)]


def test_numbers_that_are_close_or_far_apart_have_a_histogram():
    close = 1e17 + 16 * np.arange(2.0)
    far = np.array([-1.7e308, 1.7e308])
    found = histograms({"close": np.repeat(close, 40), "far": far})
    assert [counts.sum() for counts, _ in found.values()] == [80, 2]
    assert all(np.isfinite(edges[[0, -1]]).all() for _, edges in found.values())


def test_each_process_has_a_name():
    run = loggers.Run(1, "0-5", (0, 5), {}, 0.0, "group", process=2)
    assert run_title(run) == "0-5-process-2"
    assert run_title(run, "mine") == "mine-0-5-process-2"


def test_rows_are_collected_as_long_as_one_likes():
    kept = Kept()
    with loggers.Logger(kept, every=60) as logger:
        state = logger.init(KEYS[0])
        logger.log(state, {"x": 1})
        time.sleep(0.7)
        assert not kept.batches
        lox.barrier()
        assert len(kept.batches) == 1
