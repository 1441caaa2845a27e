"""Write the store that every later version must be able to read.

`store/` was written by this script with the code of format 1, and is never written again:
a change of the format gets another store beside it. `expected.json` and `expected.npz` hold
what was logged, as NumPy made it; lox has not touched them.

    store/              five sessions, the oldest first:
                        1. a run whose process was killed
                        2. three seeds under `vmap`: scalars, vectors, trees, PRNG keys,
                           rows and steps that only some iterations have, masked examples
                        3. the first seed once more, with another configuration
                        4. `lox.save` of one array per dtype
                        5. rows of every dtype, from two runs, in several layouts and frames
    torn/               a session that was killed in the middle of a frame
"""

import dataclasses
import itertools as it
import json
import os
import pathlib
import signal
import sys
import time
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

import lox
from lox.loggers import Batch, Block, Form, Run
from lox_host.writers.save import SaveWriter

SEEDS, STEPS, LANES = 3, 7, 4
NUMPY = [
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128"),
]
SMALL = [
    *("bfloat16", "int2", "int4", "uint2", "uint4", "float4_e2m1fn", "float6_e2m3fn"),
    *("float6_e3m2fn", "float8_e3m4", "float8_e4m3", "float8_e4m3b11fnuz"),
    *("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"),
    "float8_e8m0fnu",
]
CONFIG = {"lr": 0.1, "net": {"width": 64, "sizes": [1, 2]}, "note": "a b"}


# What is logged, made by NumPy ----------------------------------------------------------


def noise(*shape: int, dtype: str = "float32", seed: int = 0) -> np.ndarray:
    """Random bits as numbers of a dtype, NaN and infinities of either sign among them."""
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    bits = 8
    if dtype == "bool":
        bits = 1
    elif kind.isbuiltin == 2:
        info = ml_dtypes.iinfo if "int" in dtype else ml_dtypes.finfo
        bits = min(info(kind).bits, 8)
    size = int(np.prod(shape)) * kind.itemsize
    codes = np.random.default_rng([seed, size]).integers(0, 2**bits, size, np.uint8)
    array = codes.view(kind).reshape(shape).copy()
    if kind.kind in "fc" or dtype == "bfloat16":
        array.reshape(-1)[:4] = [np.nan, np.inf, -np.inf, -0.0][: array.size]
    return array


def curves() -> dict[str, np.ndarray]:
    """What the seeds log: `(seed, step, ...)`."""
    rng = np.random.default_rng(7)
    steps = np.arange(STEPS)
    loss = np.exp(-steps / 3) + rng.normal(size=(SEEDS, STEPS)) / 20
    loss[1, 3], loss[2, -1], loss[2, 2] = np.nan, np.nan, np.inf
    return {
        "loss": loss.astype(np.float32),
        "half": rng.normal(size=(SEEDS, STEPS)).astype(ml_dtypes.bfloat16),
        "count": rng.integers(0, 10**6, (SEEDS, STEPS)).astype(np.int32),
        "done": rng.integers(0, 2, (SEEDS, STEPS)).astype(bool),
        "w": rng.normal(size=(SEEDS, STEPS, 3)).astype(np.float32),
        "z": (rng.normal(size=(SEEDS, STEPS, 2)) @ [1, 1j]).astype(np.complex64),
        "key": rng.integers(0, 2**32, (SEEDS, STEPS, 2), np.uint32),
        "lane": rng.normal(size=(SEEDS, STEPS, LANES)).astype(np.float32),
    }


# How it is logged -----------------------------------------------------------------------


def train(xs: dict[str, jax.Array]) -> None:
    """Log one seed."""

    def step(carry: None, own: Any) -> tuple[None, None]:
        i, x = own
        lox.log({"loss": x["loss"], "half": x["half"]}, tags=("metric",), step=i)
        lox.log({"net": {"w": x["w"], "rest": [x["count"], (x["done"], x["z"])]}}, step=i)
        lox.log({"key": jax.random.wrap_key_data(x["key"])}, step=i)
        # Only every other iteration has a row, and only every third one an epoch.
        some = jax.lax.cond
        some(i % 2 == 0, lambda: rare(x, i), lambda: None)
        some(i % 3 == 0, lambda: mixed(x, step=i, epoch=i // 3), lambda: mixed(x, step=i))
        jax.vmap(lambda y, j: some(j <= i, lambda: lane(y, i, j), lambda: None))(
            x["lane"], jnp.arange(LANES)
        )
        return carry, None

    jax.lax.scan(step, None, (jnp.arange(STEPS), xs))
    lox.log({"final": xs["loss"][-1]})


def rare(x: Any, i: Any) -> None:
    lox.log({"eval/score": x["half"]}, step=i)


def mixed(x: Any, **steps: Any) -> None:
    lox.log({"mixed": x["count"]}, **steps)


def lane(y: Any, i: Any, j: Any) -> None:
    lox.log({"member": y}, step=i, lane=10 * j)


def write_seeds(path: pathlib.Path) -> list[dict[str, Any]]:
    """A session of all seeds, and one of the first seed alone."""
    data = curves()
    keys = jax.random.split(jax.random.key(0), SEEDS)
    words = jax.random.key_data(keys).tolist()
    expected = []
    for number, config in [(SEEDS, CONFIG), (1, {"lr": 0.3})]:
        logger = lox.loggers.SaveLogger(path, config=config)

        def one(key: jax.Array, xs: Any, logger: Any = logger) -> None:
            state = logger.init(key)
            logger.tap(train, state)(xs)
            logger.finish(state)

        own = {name: x[:number] for name, x in data.items()}
        jax.jit(jax.vmap(one))(keys[:number], own)
        lox.barrier()
        for seed in range(number):
            run = {"key": words[seed], "config": config, "rows": STEPS}
            expected.append({**run, "logs": seed_logs(data, seed)})
    return expected


def seed_logs(data: dict[str, np.ndarray], seed: int) -> dict[str, Any]:
    """What a seed logged, by key."""
    x = {name: array[seed] for name, array in data.items()}
    steps = np.arange(STEPS, dtype=np.int32)
    even, third = steps % 2 == 0, steps % 3 == 0
    lanes = np.arange(LANES, dtype=np.int32)
    valid = lanes <= steps[:, None]
    net = {"w": x["w"], "rest": [x["count"], (x["done"], x["z"])]}
    epoch = np.where(third, steps // 3, 0)
    both = (
        np.broadcast_to(steps[:, None], valid.shape),
        np.broadcast_to(10 * lanes, valid.shape),
    )
    return {
        "loss": entry(x["loss"], {"step": steps}, tags=["metric"]),
        "half": entry(x["half"], {"step": steps}, tags=["metric"]),
        "net": entry(net, {"step": steps}),
        "key": entry(x["key"], {"step": steps}, impl="threefry2x32"),
        "eval/score": entry(x["half"][even], {"step": steps[even]}),
        "mixed": entry(x["count"], {"step": steps, "epoch": epoch}, masks={"epoch": third}),
        "member": entry(x["lane"], {"step": both[0], "lane": both[1]}, valid=valid),
        "final": entry(x["loss"][-1], {}),
    }


def write_saved(path: pathlib.Path) -> list[dict[str, Any]]:
    """A session of `lox.save`: one array of each dtype."""
    values = {name: noise(6, dtype=name, seed=1) for name in NUMPY + SMALL}
    lox.save(values, path, key=np.array([5], np.uint32))
    run = {"key": [5], "config": {}, "rows": 1}
    return [{**run, "logs": {name: entry(x, {}) for name, x in values.items()}}]


def write_dtypes(path: pathlib.Path) -> list[dict[str, Any]]:
    """A session with rows of each dtype, of two runs in turn, in two layouts."""
    writer = SaveWriter(path)
    runs = [Run(3 + i, f"dtypes-{i}", (i,), {"i": i}, time.time(), "g") for i in (0, 1)]
    for run in runs:
        writer.open(run)
    rows, steps = 5, np.arange(5, dtype=np.int64)
    expected = []
    for run in runs:
        scalars = dict.fromkeys(NUMPY + SMALL, ())
        vectors = {f"v/{name}": (3,) for name in ("bool", "bfloat16", "complex64")}
        values = {
            name: noise(rows, *shape, dtype=name.removeprefix("v/"), seed=2 + run.id)
            for name, shape in {**scalars, **vectors, "v/float64": (2, 2)}.items()
        }
        late = noise(2, dtype="float64", seed=9 + run.id)
        forms = dict.fromkeys(values, Form(time=True))
        for part in (slice(0, 2), slice(2, 5)):
            at = {"step": steps[part]}
            ids = np.full(len(at["step"]), run.id, np.int32)
            own = {name: x[part] for name, x in values.items()}
            writer.write(Batch([Block(ids, at, own, forms)]))
            writer.flush()
        logs = {name: entry(x, {"step": steps}) for name, x in values.items()}
        more = {"step": np.array([5, 6]), "time": np.array([0.5, np.inf])}
        ids, name = np.full(2, run.id, np.int32), "float64"
        writer.write(Batch([Block(ids, more, {name: late}, {name: Form(time=True)})]))
        whole = np.concatenate([values[name], late])
        times = np.concatenate([np.zeros(rows), more["time"]])
        masks = {"time": np.arange(rows + 2) >= rows}
        logs[name] = entry(whole, {"step": np.arange(rows + 2), "time": times}, masks=masks)
        description = {"key": [run.key[0]], "config": {"i": run.key[0]}, "rows": rows + 2}
        expected.append({**description, "logs": logs})
    for run in runs:
        writer.close(run)
    return expected


def write_killed(path: pathlib.Path, rows: int = 6) -> list[dict[str, Any]]:
    """A session whose process is killed, after each flush of one row."""
    steps = np.arange(rows, dtype=np.int32)
    x = np.sin(steps).astype(np.float32)
    child = os.fork()
    if not child:
        writer = SaveWriter(path)
        writer.open(Run(0, "killed", (9,), {"lr": 1}, time.time(), "k"))
        for i in range(rows):
            at, own = {"step": steps[i : i + 1]}, {"x": x[i : i + 1]}
            writer.write(
                Batch([Block(np.zeros(1, np.int32), at, own, {"x": Form(time=True)})])
            )
            writer.flush()
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    run = {"key": [9], "config": {"lr": 1}, "rows": rows}
    return [{**run, "logs": {"x": entry(x, {"step": steps})}}]


def tear(path: pathlib.Path) -> list[dict[str, Any]]:
    """A session that was killed in the middle of its last frame."""
    expected = write_killed(path, rows=4)
    (data,) = path.glob("*/*.arrows")
    with data.open("ab") as file:
        file.write(data.read_bytes()[-40:])
    return expected


# What is expected -----------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Entry:
    """A key of a run."""

    value: Any
    steps: dict[str, np.ndarray]
    masks: dict[str, np.ndarray]
    valid: np.ndarray | None
    tags: list[str]
    impl: str | None


def entry(
    value: Any,
    steps: dict[str, np.ndarray],
    *,
    masks: dict[str, np.ndarray] | None = None,
    valid: np.ndarray | None = None,
    tags: list[str] | None = None,
    impl: str | None = None,
) -> dict[str, Any]:
    return vars(Entry(value, steps, masks or {}, valid, tags or [], impl))


def write_expected(folder: pathlib.Path, expected: dict[str, Any]) -> None:
    """Write the bits of all arrays to an `.npz`, and where each is in them to a `.json`."""
    bits: list[bytes] = []

    def plain(value: Any) -> Any:
        if isinstance(value, np.ndarray | np.generic):
            start = sum(map(len, bits))
            bits.append(value.tobytes())
            return {"array": [value.dtype.name, *value.shape], "start": start}
        if isinstance(value, dict):
            return {"dict": {name: plain(inner) for name, inner in value.items()}}
        if isinstance(value, list | tuple):
            return {type(value).__name__: [plain(inner) for inner in value]}
        return value

    text = json.dumps(plain(expected), separators=(",", ":"))
    (folder / "expected.json").write_text(text + "\n")
    np.savez_compressed(
        folder / "expected.npz", bits=np.frombuffer(b"".join(bits), np.uint8)
    )


def main(folder: pathlib.Path) -> None:
    clock = it.count(1_000_000_000)
    time.time = lambda: float(next(clock))
    time.time_ns = lambda: next(clock) * 10**9
    store = folder / "store"
    # Those that fork come first: JAX starts threads.
    torn, runs = tear(folder / "torn"), write_killed(store)
    for write in (write_seeds, write_saved, write_dtypes):
        runs += write(store)
    write_expected(folder, {"store": runs, "torn": torn})


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
