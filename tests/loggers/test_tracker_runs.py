"""Runs in trackers: their names, configurations, times and pasts, read without lox."""

import json
import time

import jax
import jax.numpy as jnp
import pytest

import lox
from lox import loggers
from support import tracked

wandb = pytest.mark.xdist_group("wandb")


def mlflow(test):
    """Its client takes long to import, and warns while it does."""
    warning = pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy")
    return pytest.mark.xdist_group("mlflow")(warning(test))


RATES = jnp.array([1e-3, 3e-4])
NAMES = ["lr=0.001", "lr=0.0003"]
CONFIGS = [
    {"env": "CartPole", "lr": lr, "net": {"width": 8, "deep": True}} for lr in (1e-3, 3e-4)
]


def sweep(logger, steps=range(3)):
    """Two runs of one key in a program. Returns when they were logging."""
    begin, end = min(steps), max(steps) + 1

    def train(lr):
        config = {"lr": lr, "net": {"width": 8, "deep": lr > 0}}
        run = logger.init(
            7, config=config, name="lr={lr:g}", group="a sweep", tags=("ppo", "small")
        )

        def body(carry, i):
            lox.log({"x": lr * i.astype(float)}, step=i)
            return carry, None

        logger.tap(lambda: jax.lax.scan(body, 0, jnp.arange(begin, end))[0], run)()
        logger.finish(run)

    start = time.time()
    with logger:
        jax.jit(jax.vmap(train))(RATES)
        lox.barrier()
    return start, time.time()


def session(logger, steps, *, resume=True, config=None):
    """A session of one run, with two keys."""
    with logger:
        run = logger.init(7, config=config or {"lr": 0.1}, name="mine", resume=resume)
        for i in steps:
            logger.log(run, {"x": float(i), "y": -float(i)}, step=i)


def env(**options):
    return {"config": {"env": "CartPole"}, **options}


# TensorBoard --------------------------------------------------------------------------


def hparams(run):
    """The hyperparameters of a run, as TensorBoard's plugin has them."""
    plugin_data_pb2 = pytest.importorskip("tensorboard.plugins.hparams.plugin_data_pb2")
    data = run.PluginTagToContent("hparams")["_hparams_/session_start_info"]
    info = plugin_data_pb2.HParamsPluginData.FromString(data).session_start_info
    kinds = {name: value.WhichOneof("kind") for name, value in info.hparams.items()}
    return {name: getattr(info.hparams[name], kind) for name, kind in kinds.items()}


def test_tensorboard_has_names_hparams_and_times(tmp_path):
    start, end = sweep(loggers.TensorBoardLogger(tmp_path, **env()))
    for name, lr in zip(NAMES, (1e-3, 3e-4), strict=True):
        run = tracked.tensorboard_run(tmp_path / name)
        expected = {"env": "CartPole", "lr": lr, "net/width": 8, "net/deep": True}
        assert hparams(run) == expected
        assert [event.step for event in run.Scalars("x")] == [0, 1, 2]
        times = [event.wall_time for event in run.Scalars("x")]
        assert start <= times[0] <= times[1] <= times[2] <= end
        info = json.loads((tmp_path / name / "run.json").read_text())
        assert (info["group"], info["tags"]) == ("a sweep", ["ppo", "small"])


def test_tensorboard_purges_what_a_resumed_run_supersedes(tmp_path):
    session(loggers.TensorBoardLogger(tmp_path), range(6))
    session(loggers.TensorBoardLogger(tmp_path), range(4, 9))
    session(loggers.TensorBoardLogger(tmp_path), range(7, 10))
    run = tracked.tensorboard_run(tmp_path / "mine")
    for key in ("x", "y"):
        assert [event.step for event in run.Scalars(key)] == [*range(10)]
    assert hparams(run) == {"lr": 0.1}
    # A run that starts afresh, and one with another configuration, have their own folders.
    session(loggers.TensorBoardLogger(tmp_path), range(2), resume=False)
    session(loggers.TensorBoardLogger(tmp_path), range(2), config={"lr": 0.2})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine", "mine-2", "mine-3"]
    # The newest is continued.
    session(loggers.TensorBoardLogger(tmp_path), range(1, 3))
    run = tracked.tensorboard_run(tmp_path / "mine-2")
    assert [event.step for event in run.Scalars("x")] == [0, 1, 2]


# MLflow -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def mlflow_client(tmp_path_factory):
    """The client of a database, which takes a while to set up."""
    mlflow = pytest.importorskip("mlflow")
    return mlflow.MlflowClient(f"sqlite:///{tmp_path_factory.mktemp('mlflow')}/mlflow.db")


def mlflow_logger(client, experiment, **options):
    uri = client.tracking_uri
    return loggers.MLflowLogger(experiment, tracking_uri=uri, **options)


def mlflow_runs(client, experiment):
    return client.search_runs([client.get_experiment_by_name(experiment).experiment_id])


@mlflow
def test_mlflow_has_names_params_tags_and_times(mlflow_client):
    start, end = sweep(mlflow_logger(mlflow_client, "sweep", **env(tags={"team": "a"})))
    runs = {run.info.run_name: run for run in mlflow_runs(mlflow_client, "sweep")}
    for name, lr in zip(NAMES, ("0.001", "0.0003"), strict=True):
        run = runs.pop(name)
        expected = {"env": "CartPole", "lr": lr, "net/width": "8", "net/deep": "True"}
        assert run.data.params == expected
        tags = {"ppo": "true", "small": "true", "team": "a", "group": "a sweep"}
        assert tags.items() <= run.data.tags.items()
        points = mlflow_client.get_metric_history(run.info.run_id, "x")
        assert [point.step for point in points] == [0, 1, 2]
        times = [point.timestamp for point in points]
        assert 1000 * start - 1 <= times[0] <= times[-1] <= 1000 * end + 3
    assert not runs


@mlflow
def test_mlflow_continues_the_same_run(mlflow_client):
    session(mlflow_logger(mlflow_client, "one"), range(4), resume=False)
    session(mlflow_logger(mlflow_client, "one"), range(3), resume=False)
    time.sleep(0.01)
    session(mlflow_logger(mlflow_client, "one"), range(2, 5))
    session(mlflow_logger(mlflow_client, "one"), range(2), config={"lr": 0.2})
    runs = sorted(mlflow_runs(mlflow_client, "one"), key=lambda run: run.info.start_time)
    first, second, other = (
        [point.step for point in mlflow_client.get_metric_history(run.info.run_id, "x")]
        for run in runs
    )
    assert (first, sorted(second), other) == ([0, 1, 2, 3], [0, 1, 2, 2, 3, 4], [0, 1])
    assert [run.info.status for run in runs] == ["FINISHED"] * 3


# W&B ----------------------------------------------------------------------------------


@pytest.fixture
def wandb_options(tmp_path):
    pytest.importorskip("wandb")
    return {"mode": "offline", "project": "p", "dir": str(tmp_path)}


def wandb_records(tmp_path):
    files = sorted(tmp_path.glob("wandb/*run-*/*.wandb"))
    return [list(tracked.wandb_ended(file)) for file in files]


def run_record(records):
    return next(record.run for record in records if record.HasField("run"))


@wandb
def test_wandb_has_names_config_group_tags_and_times(tmp_path, wandb_options):
    start, end = sweep(loggers.WandbLogger(**env(**wandb_options, tags=["mine"])))
    runs = tracked.wandb_runs(tmp_path)
    for name, config in zip(NAMES, CONFIGS, strict=True):
        own = {key: x for key, x in runs[name]["config"].items() if key != "_wandb"}
        assert own == config
        assert runs[name]["group"] == "a sweep"
        times = [row["_timestamp"] for row in runs[name]["rows"]]
        assert start <= times[0] <= times[1] <= times[2] <= end
    records = [run_record(each) for each in wandb_records(tmp_path)]
    assert [sorted(run.tags) for run in records] == [["mine", "ppo", "small"]] * 2
    assert len({run.run_id for run in records}) == 2


@wandb
def test_wandb_continues_the_run_with_the_same_id(tmp_path, wandb_options):
    session(loggers.WandbLogger(**wandb_options), range(3), resume=False)
    time.sleep(1.1)  # the names of folders have seconds
    session(loggers.WandbLogger(**wandb_options), range(3), resume=False)
    time.sleep(1.1)
    session(loggers.WandbLogger(**wandb_options), range(2, 5))
    time.sleep(1.1)
    session(loggers.WandbLogger(**wandb_options), range(2), config={"lr": 0.2})
    first, second, third, other = map(run_record, wandb_records(tmp_path))
    assert second.run_id == third.run_id
    assert len({first.run_id, second.run_id, other.run_id}) == 3


@wandb
def test_the_functions_of_wandb_take_traced_configs(tmp_path, wandb_options):
    def train(lr):
        run = lox.wandb.init(7, config={"lr": lr}, name="lr={lr:g}", **wandb_options)
        lox.wandb.log(run, {"x": lr}, step=0)
        lox.wandb.finish(run)

    jax.jit(jax.vmap(train))(RATES)
    lox.barrier()
    runs = tracked.wandb_runs(tmp_path)
    assert {name: runs[name]["config"]["lr"] for name in NAMES} == {
        "lr=0.001": 0.001,
        "lr=0.0003": 0.0003,
    }


# Others -------------------------------------------------------------------------------


@pytest.mark.xdist_group("trackio")
def test_trackio_has_names_and_configs_and_continues_runs(tmp_path, monkeypatch):
    pytest.importorskip("trackio")
    monkeypatch.setattr("trackio.utils.TRACKIO_DIR", tmp_path)
    monkeypatch.setattr("trackio.sqlite_storage.TRACKIO_DIR", tmp_path)
    sweep(loggers.TrackioLogger("project", **env()))
    session(loggers.TrackioLogger("project"), range(3), resume=False)
    session(loggers.TrackioLogger("project"), range(3, 5))
    runs = tracked.trackio_runs(tmp_path, "project")
    for name, config in zip(NAMES, CONFIGS, strict=True):
        assert config.items() <= runs[name]["config"].items()
        assert runs[name]["config"]["_Group"] == "a sweep"
    assert [row["step"] for row in runs["mine"]["rows"]] == [0, 1, 2, 3, 4]


@pytest.mark.xdist_group("neptune")
def test_neptune_has_names_configs_tags_and_times(tmp_path):
    pytest.importorskip("neptune_scale")
    sweep(loggers.NeptuneLogger(**env(log_directory=tmp_path)))
    runs = tracked.neptune_runs(tmp_path)
    for name, lr in zip(NAMES, (1e-3, 3e-4), strict=True):
        found = runs[name]["set"]
        assert found["config/lr"] == lr
        assert found["config/env"] == "CartPole"
        assert (found["config/net/width"], found["config/net/deep"]) == (8, True)
        assert found["lox/group"] == "a sweep"


def test_csv_and_json_have_the_config_beside_the_rows(tmp_path):
    for kind in (loggers.CSVLogger, loggers.JSONLogger):
        sweep(kind(tmp_path, **env()))
    for name, config in zip(NAMES, CONFIGS, strict=True):
        assert json.loads((tmp_path / f"{name}.config.json").read_text()) == config


def test_an_exported_run_keeps_its_times(tmp_path):
    start, end = sweep(loggers.SaveLogger(tmp_path / "store"))
    time.sleep(0.05)
    lox.export(tmp_path / "store", loggers.TensorBoardLogger(tmp_path / "tb"))
    run = tracked.tensorboard_run(tmp_path / "tb" / NAMES[0])
    times = [event.wall_time for event in run.Scalars("x")]
    assert start <= times[0] <= times[-1] <= end
