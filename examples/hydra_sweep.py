"""A Hydra sweep: each job writes a store of its own, and lox reads the whole tree.

    python examples/hydra_sweep.py --out sweep        # needs hydra-core

Hydra runs this program once for each learning rate, in a folder of its own. A job trains
all seeds in one jitted program and passes Hydra's configuration to its logger. Afterwards
`lox.runs` and `lox ls` find the stores in the folders, with the learning rate of each run.
"""

import argparse
import dataclasses
import pathlib
import sys

import hydra
import jax
import jax.numpy as jnp
from hydra.core.config_store import ConfigStore
from omegaconf import OmegaConf

import lox


@dataclasses.dataclass
class Config:
    """What Hydra can change from outside, as in `rate=0.1,0.3`."""

    rate: float = 0.1
    seeds: int = 4
    steps: int = 200


ConfigStore.instance().store("config", Config)


def train(key, rate, steps):
    """Walk down a bowl with noisy slopes."""

    def update(x, inputs):
        step, key = inputs
        loss = jnp.sum(x**2)
        lox.log({"loss": loss}, step=step)
        slope = 2 * x + 0.3 * jax.random.normal(key, x.shape)
        return x - rate * slope, None

    start, noise = jax.random.split(key)
    inputs = jnp.arange(steps), jax.random.split(noise, steps)
    return jax.lax.scan(update, jax.random.normal(start, 8), inputs)[0]


@hydra.main(version_base=None, config_path=None, config_name="config")
def job(config: Config) -> None:
    """Train all seeds of one learning rate. The current folder is that of the job."""
    logger = lox.loggers.SaveLogger("results", config=OmegaConf.to_container(config))

    def experiment(key):
        run = logger.init(key, name="rate={rate:g}-{index}")
        return logger.tap(train, run, batch=50)(key, config.rate, config.steps)

    with logger:
        keys = jax.random.split(jax.random.key(0), config.seeds)
        jax.block_until_ready(jax.jit(jax.vmap(experiment))(keys))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", default=".", help="where to write (default: here)")
    parser.add_argument("--quick", action="store_true", help="fewer and shorter jobs")
    options = parser.parse_args()
    out = pathlib.Path(options.out).resolve()
    rates, steps = ("0.03,0.3", 20) if options.quick else ("0.01,0.03,0.1,0.3", 200)
    # Hydra reads the command line itself.
    sys.argv[1:] = [
        *("--multirun", f"rate={rates}", f"steps={steps}"),
        *(f"hydra.sweep.dir={out}/multirun", "hydra.job.chdir=True"),
    ]
    job()
    print(lox.runs(out / "multirun"))
    print(f"\nTry next:\n  lox ls {out}/multirun --group-by rate")
    print(f"  lox plot {out}/multirun -k loss --by rate --log y -o {out}/loss.png")


if __name__ == "__main__":
    main()
