"""Each example runs by itself, at small size, and writes what it says it does.

An example takes `--quick`, and writes only into the folder `--out`, the current one by
default. What is special to one of them is in `CHECKS`, under its name.
"""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import lox
from support.pictures import assert_picture

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
# No window.
ENVIRONMENT = {"PYTHONPATH": str(ROOT), "MPLBACKEND": "agg"}


def ppo(out: Path, text: str) -> None:
    """Learning rates and seeds in a store. Some learn: their last returns are better."""
    number = r" +([\d.]+)"
    table = re.findall(rf"^{3 * number} +[\d.]+$", text, re.MULTILINE)
    assert [float(rate) for rate, *_ in table] == [3e-4, 1e-3, 3e-3, 3e-2]
    assert len(lox.runs(out / "runs")) == 8
    first, last = np.array(table, float).T[1:]
    assert last.max() > 1.5 * first.max()
    assert (out / "learning_curves.png").exists()
    for command in ("ls", "show", "plot", "tail"):
        assert re.search(
            rf"^  \S+lox {command} {re.escape(str(out))}/runs", text, re.MULTILINE
        )
    logs = lox.load(out / "runs", "loss/value", run="rate=0.003-1")
    assert logs["loss/value"].shape == (25 * 16,)


def live_plot(out: Path, text: str) -> None:
    """Two pictures, of losses that fall."""
    assert {path.name for path in out.iterdir()} == {"live_plot.png", "by_hand.png"}
    ((first, last),) = re.findall(r"from ([\d.]+) to ([\d.]+)\.$", text, re.MULTILINE)
    assert float(last) < float(first) / 2


def diverge(out: Path, text: str) -> None:
    """The last steps of a run that has diverged, on disk."""
    logs = lox.load(out / "black-box")
    (step,) = re.findall(r"^stopped by loss, hidden at step=(\d+)$", text, re.MULTILINE)
    loss, steps = logs["loss"], logs.step["loss"]
    assert steps.tolist() == list(range(int(step) - 15, int(step) + 3))
    assert np.isfinite(loss[:16]).tolist() == [True] * 15 + [False]
    assert isinstance(logs["hidden"], lox.Histogram)


def nesting(out: Path, text: str) -> None:
    """A time axis for all of the loops, and one for the batch."""
    shapes = dict(re.findall(r"^(\w+) +(\([\d, ]+\))", text, re.MULTILINE))
    assert (shapes["distance"], shapes["energy"]) == ("(20, 3)", "(800, 3)")


def sharded(out: Path, text: str) -> None:
    """The same loss on one device and on eight, and one of them found out."""
    (difference,) = re.findall(r"mean of the devices (\S+)$", text, re.MULTILINE)
    assert float(difference) < 1e-6
    assert re.findall(r"device (\d).*look", text) == ["5"]


def solver(out: Path, text: str) -> None:
    """The same number of iterations, whether they are counted, or kept."""
    (counts,) = re.findall(r"count +\[([\d ]+)\]", text)
    kept = re.findall(r"kept +(\d+) of +(\d+)", text)
    assert [int(count) for count in counts.split()] == [int(of) for _, of in kept]
    assert all(int(there) == min(int(of), 40) for there, of in kept)


def sweep(out: Path, text: str) -> None:
    """A run for each learning rate and seed, with its own configuration."""
    runs = lox.runs(out / "sweep")
    assert len({run.name for run in runs}) == len(runs) == 10
    table = re.findall(r"^ +([\d.]+) +[\d.]+ +[\d.]+$", text, re.MULTILINE)
    assert [f"{rate:.3g}" for rate in sorted({run.config["rate"] for run in runs})] == table


def resume(out: Path, text: str) -> None:
    """A process that was killed, and one curve without a gap."""
    assert "ends with -9 at step 110" in text
    logs = lox.load(out / "resumed")
    assert logs.step["loss"].tolist() == [*range(120)]
    assert (np.diff(logs["loss"][::40]) < 0).all()


def nan_hunt(out: Path, text: str) -> None:
    """A report of the step after the last finite one, and none once it is repaired."""
    (finite,) = re.findall(r"finite in (\d+) of", text)
    assert "first non-finite value: log of 0.0\n" in text
    assert f"scan iteration {finite} (nan_hunt.py:" in text
    assert re.search(r"example \d+$", text, re.MULTILINE)
    assert text.rstrip().endswith("With `log_softmax` instead: None")


def hydra_sweep(out: Path, text: str) -> None:
    """A store for each job, and all of them in one table."""
    runs = lox.runs(out / "multirun", where={"rate": 0.3})
    assert [run.name for run in runs] == [f"rate=0.3-{i}" for i in range(4)]
    assert len(list((out / "multirun").glob("*/results"))) == 2
    assert "[8 runs]" in text


CHECKS: dict[str, Callable[[Path, str], None]] = {
    "diverge": diverge,
    "hydra_sweep": hydra_sweep,
    "live_plot": live_plot,
    "nan_hunt": nan_hunt,
    "nesting": nesting,
    "ppo": ppo,
    "resume": resume,
    "sharded": sharded,
    "solver": solver,
    "sweep": sweep,
}


@pytest.mark.long
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example(path, tmp_path):
    elsewhere, out = tmp_path / "elsewhere", tmp_path / "out"
    elsewhere.mkdir(), out.mkdir()
    done = subprocess.run(
        [sys.executable, "-W", "error", str(path), "--quick", "--out", str(out)],
        cwd=elsewhere,
        env=os.environ | ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    assert not list(elsewhere.iterdir())
    if path.stem != "nan_hunt":
        assert not re.search(r"\b(nan|inf)\b", done.stdout, re.IGNORECASE), done.stdout
    for picture in out.rglob("*.png"):
        assert_picture(picture)
    CHECKS.get(path.stem, lambda *_: None)(out, done.stdout)
