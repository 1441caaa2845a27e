"""What reading costs: `lox.load` of 1,024 runs x 1,000 rows ÷ other files.

The runs are those of one `vmap`, with a step and a number in each row. The others hold the
same numbers, and are turned into the same two arrays. polars reads the columns of a table.
"""

import pathlib
import tempfile

import jax
import jax.numpy as jnp
import numpy as np
import polars as pl
from _measure import Figure, compare, table

import lox
from lox.loggers import SaveLogger

RUNS, ROWS = 1024, 1000


def figures() -> list[Figure]:
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        found = []
        for way, options in {"spool": {}, "tap": {"batch": 100}}.items():
            store = folder / way
            save(store, way, **options)
            found += figures_of(way, store, folder)
        return found


def figures_of(way, store, folder):
    logs = lox.load(store)
    rows = {"step": np.asarray(logs.step["loss"]), "loss": np.asarray(logs["loss"])}
    runs = np.repeat(np.arange(RUNS, dtype=np.int32), ROWS)
    columns = {"run": runs, **{name: x.reshape(-1) for name, x in rows.items()}}
    pl.DataFrame(columns).write_parquet(folder / "rows.parquet")
    np.savez(folder / "rows.npz", **rows)

    def load():
        return lox.load(store)["loss"]

    def parquet():
        return pl.read_parquet(folder / "rows.parquet")["loss"].to_numpy()

    def npz():
        with np.load(folder / "rows.npz") as file:
            return file["loss"], file["step"]

    size = sum(path.stat().st_size for path in store.rglob("*") if path.is_file())
    other = (folder / "rows.npz").stat().st_size
    note = f"{size / 1e6:.3g} MB ÷ {other / 1e6:.3g} MB"
    return [
        compare(f"{way}: lox.load ÷ polars, Parquet", load, parquet, goal="≤ 3"),
        compare(f"{way}: lox.load ÷ NumPy, npz", load, npz, goal=""),
        Figure(f"{way}: size of the store ÷ npz", size / other, "≤ 1.2", note),
    ]


def save(store, way, **options):
    """Log the runs of one `vmap`, each with a scan."""
    logger = SaveLogger(store)

    def train(key):
        run = logger.init(key)
        total = getattr(logger, way)(steps, run, **options)(key)
        logger.finish(run)
        return total

    jax.vmap(train)(jax.random.split(jax.random.key(0), RUNS)).block_until_ready()
    lox.barrier()


def steps(key):
    def body(total, i):
        total = 0.99 * total + jax.random.normal(jax.random.fold_in(key, i))
        lox.log({"loss": total}, step=i)
        return total, None

    return jax.lax.scan(body, 1.0, jnp.arange(ROWS))[0]


if __name__ == "__main__":
    print(table(figures()))
