"""What trackers cost: a training loop with one ÷ without, or ÷ a Python loop that calls it.

Each of 200 steps logs two numbers and a step, to one run, offline or local. Time ends
when the tracker has all of them.
"""

import contextlib
import importlib.util
import itertools as it
import os
import tempfile
import time
import warnings

import jax
import jax.numpy as jnp
from _measure import Figure, compare, table

import lox
from lox import loggers

STEPS = 200
X = jnp.full((256, 256), 0.01)


def figures() -> list[Figure]:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as path:
        # One for each: the databases of MLflow and trackio would have the same names.
        folders = {name: f"{path}/{name}" for name in TRACKERS}
        for folder in folders.values():
            os.mkdir(folder)
        os.environ |= {"TRACKIO_DIR": folders["trackio"], "WANDB_DIR": folders["wandb"]}
        os.environ |= {"MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "true"}
        os.environ["WANDB_MODE"] = "offline"
        found = filter(is_there, TRACKERS)
        return [figure for name in found for figure in figures_of(name, folders[name])]


def figures_of(name, path):
    make, start = TRACKERS[name]
    with nothing_lost(name), make(path) as logger, start(path) as log:
        state = logger.init(0)
        tapped = written(jax.jit(logger.tap(train, state, batch=100)))
        spooled = written(jax.jit(logger.spool(train, state)))
        silent = jax.jit(lox.nolog(train))
        by_hand = looped(log)
        for what, ours, theirs in (
            ("tap(batch=100) ÷ no logs", tapped, silent),
            ("spool ÷ no logs", spooled, silent),
            ("tap(batch=100) ÷ by hand", tapped, by_hand),
        ):
            yield compare(f"{name}: {what}", lambda: ours(X), lambda: theirs(X), goal="")  # noqa: B023


@contextlib.contextmanager
def nothing_lost(name):
    """Raise if there is a warning: so lox and trackers say that they could not write."""
    # Not as errors: trackio prints those, and continues.
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("ignore")
        for category in (UserWarning, RuntimeWarning):
            warnings.simplefilter("always", category)
        yield
    if caught:
        listed = "\n".join(str(warning.message) for warning in caught)
        raise RuntimeError(f"The figures of {name} mean nothing, as it warned:\n{listed}")


def step(x):
    x = jnp.tanh(x @ x)
    return x, {"mean": x.mean(), "square": (x**2).mean()}


def train(x):
    def body(x, i):
        x, metrics = step(x)
        lox.log(metrics, step=i)
        return x, None

    return jax.lax.scan(body, x, jnp.arange(STEPS))[0]


def looped(log):
    jitted = jax.jit(step)

    def loop(x):
        for i in range(STEPS):
            x, metrics = jitted(x)
            log({name: float(value) for name, value in metrics.items()}, i)
        return x

    return loop


def written(fun):
    """Call `fun`, and wait until all that it logs has been written."""

    def call(x):
        out = jax.block_until_ready(fun(x))
        lox.barrier()
        return out

    return call


# Each tracker by hand: what is called with the metrics and the number of the step. It has
# written all of them at the end.


@contextlib.contextmanager
def wandb_by_hand(path):
    import wandb

    settings = wandb.Settings(silent=True, console="off", x_disable_stats=True)
    run = wandb.init(project="hand", reinit="create_new", settings=settings)
    yield lambda metrics, i: run.log({**metrics, "step": i})
    run.finish()


@contextlib.contextmanager
def tensorboard_by_hand(path):
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    writer = EventFileWriter(f"{path}/hand")

    def log(metrics, i):
        values = [Summary.Value(tag=key, simple_value=x) for key, x in metrics.items()]
        event = Event(wall_time=time.time(), step=i, summary=Summary(value=values))
        writer.add_event(event)

    yield log
    writer.close()


@contextlib.contextmanager
def mlflow_by_hand(path):
    import mlflow

    client = mlflow.MlflowClient(f"sqlite:///{path}/hand.db")
    run = client.create_run("0").info.run_id
    # The same value at the same time and step would be taken for one.
    now = it.count(int(1000 * time.time()))

    def log(metrics, i):
        at = next(now)
        entries = [mlflow.entities.Metric(key, x, at, i) for key, x in metrics.items()]
        client.log_batch(run, entries)

    yield log
    client.set_terminated(run)


@contextlib.contextmanager
def trackio_by_hand(path):
    import trackio

    run = trackio.init(project="hand", auto_log_gpu=False, auto_log_cpu=False, embed=False)
    yield lambda metrics, i: run.log(metrics, step=i)
    run.finish()


@contextlib.contextmanager
def neptune_by_hand(path):
    import neptune_scale

    run = neptune_scale.Run(
        project="lox/hand",
        mode="offline",
        log_directory=f"{path}/hand",
        enable_console_log_capture=False,
        source_tracking_config=None,
    )
    number = it.count()
    yield lambda metrics, i: run.log_metrics({**metrics, "step": i}, next(number))
    run.close()


TRACKERS = {
    "wandb": (lambda path: loggers.WandbLogger(project="lox"), wandb_by_hand),
    "tensorboard": (loggers.TensorBoardLogger, tensorboard_by_hand),
    "mlflow": (
        lambda path: loggers.MLflowLogger(tracking_uri=f"sqlite:///{path}/lox.db"),
        mlflow_by_hand,
    ),
    "trackio": (lambda path: loggers.TrackioLogger("lox"), trackio_by_hand),
    "neptune": (
        lambda path: loggers.NeptuneLogger(log_directory=f"{path}/lox"),
        neptune_by_hand,
    ),
}


def is_there(name):
    return importlib.util.find_spec("neptune_scale" if name == "neptune" else name)


if __name__ == "__main__":
    print(table(figures()))
