"""The loggers of experiment trackers, each with the real package, offline."""

import contextlib
import math
import os
import sqlite3
import subprocess
import sys
import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tracked
from tracked import counted, expected, rowwise, training

import lox
from lox import loggers

KEYS = jax.random.split(jax.random.key(0), 8)
NAMES = ["-".join(map(str, data)) for data in jax.random.key_data(KEYS).tolist()]
XS = jnp.linspace(0.1, 0.9, 8)
CONFIG = {"lr": 0.1, "net": {"width": 64, "sizes": np.array([1, 2])}}

in_one_worker = {
    name: pytest.mark.xdist_group(name)
    for name in ("wandb", "tensorboard", "mlflow", "trackio", "neptune")
}


@pytest.fixture(scope="session", autouse=True)
def offline(tmp_path_factory):
    """Keep all trackers on this machine, and in folders of the tests."""
    home = tmp_path_factory.mktemp("trackers")
    with pytest.MonkeyPatch.context() as patch:
        for name in ("DIR", "CACHE_DIR", "CONFIG_DIR", "DATA_DIR", "ARTIFACT_DIR"):
            patch.setenv(f"WANDB_{name}", str(home / "wandb"))
        patch.setenv("WANDB_MODE", "offline")
        patch.setenv("WANDB_ERROR_REPORTING", "false")
        patch.setenv("TRACKIO_DIR", str(home / "trackio"))
        patch.setenv("HF_HUB_OFFLINE", "1")
        patch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
        patch.setenv("DO_NOT_TRACK", "true")
        (home / "wandb").mkdir()
        yield home


def trained(logger, way="tap"):
    """Train with eight seeds at once."""

    @jax.jit
    @jax.vmap
    def train(key, x):
        state = logger.init(key)
        out = getattr(logger, way)(training, state)(x)
        logger.finish(state)
        return out

    assert jnp.array_equal(train(KEYS, XS), XS)
    lox.barrier()


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
        rows = [{k: x for k, x in row.items() if k[0] != "_"} for row in run["rows"]]
        assert rowwise(rows) == expected(x)
        assert [row["_step"] for row in run["rows"]] == [*range(len(rows))]
        assert {"loss": "step", "score": "step"}.items() <= run["axes"].items()
        assert run["config"].items() >= {"lr": 0.1, "net": {"width": 64, "sizes": [1, 2]}}.items()
