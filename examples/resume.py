"""Continue a run in another process, after the first one was killed.

A machine may be preempted at any time. So the program saves a checkpoint every few steps,
and always starts with `resume=True`: if there is nothing to continue, it starts a new run.
The first process here is killed some steps after its last checkpoint. The second one goes
back to the checkpoint and repeats these steps. The store then shows one curve.
"""

import argparse
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import lox

EVERY = 50  # steps between two checkpoints


@jax.jit
def update(w, step):
    noise = jax.random.normal(jax.random.fold_in(jax.random.key(0), step), w.shape)
    lox.log({"loss": jnp.mean(w**2)})
    return w - 0.02 * (w + 0.3 * noise)


def train(out, steps, dies_at):
    """Train until the end, or until the process is killed."""
    checkpoint = out / "checkpoint.npz"
    first, w = 0, jnp.ones(8)
    if checkpoint.exists():
        saved = np.load(checkpoint)
        first, w = int(saved["step"]), jnp.asarray(saved["w"])
    with lox.loggers.SaveLogger(out / "resumed") as logger:
        run = logger.init(0, config={"rate": 0.02}, name="resumed", resume=True)
        for step in range(first, steps):
            if step % EVERY == 0:
                np.savez(checkpoint, step=step, w=w)
            if step == dies_at:
                lox.barrier()  # so that the example is the same each time
                os.kill(os.getpid(), signal.SIGKILL)
            w, logs = lox.spool(update)(w, step)
            logger.log(run, logs, step=step)


def start(options, dies_at=None):
    """Train in a process of its own."""
    command = [sys.executable, __file__, "--out", str(options.out), "--train"]
    command += ["--quick"] * options.quick
    command += [] if dies_at is None else ["--dies-at", str(dies_at)]
    return subprocess.run(command, check=False).returncode


def plot(logs, superseded, path):
    figure, axis = plt.subplots(figsize=(6, 4), layout="constrained")
    axis.plot(logs.step["loss"], logs["loss"], label="the run")
    axis.plot(
        superseded.step["loss"], superseded["loss"], "--", lw=1, label="the first session"
    )
    axis.set(xlabel="step", ylabel="loss", yscale="log")
    axis.legend()
    figure.savefig(path, dpi=100)


def main():
    options = arguments()
    steps = 120 if options.quick else 400
    if options.train:
        train(options.out, steps, options.dies_at)
        return
    options.out.mkdir(parents=True, exist_ok=True)
    store = options.out / "resumed"
    shutil.rmtree(store, ignore_errors=True)
    (options.out / "checkpoint.npz").unlink(missing_ok=True)
    dies_at = steps * 3 // 4 + 20
    print(f"The first process ends with {start(options, dies_at)} at step {dies_at},")
    code = start(options)
    logs = lox.load(store)
    print(f"the second with {code}. The run has {len(logs['loss'])} rows.")
    # The store keeps what was superseded. The names of sessions begin with dates.
    first = min(path.name for path in store.iterdir() if path.is_dir())
    superseded = lox.load(store, session=first)
    print(f"The first session alone has {len(superseded['loss'])} rows.")
    picture = options.out / "resume.png"
    plot(logs, superseded, picture)
    print(f"picture: {picture}")


def arguments():
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer steps")
    parser.add_argument("--out", type=Path, default=Path(), help="folder for the results")
    parser.add_argument("--train", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--dies-at", type=int, help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
