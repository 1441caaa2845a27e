"""One of several processes of `jax.distributed`, started by `tests/test_distributed.py`.

It runs all checks, and writes what it saw to a file, which the tests read.
"""

import json
import os
import pathlib
import sys
import time

import jax

address, number, folder = sys.argv[1], int(sys.argv[2]), pathlib.Path(sys.argv[3])
# How long JAX waits for a process that has been killed.
PATIENCE = 10 if sys.argv[4] == "endless" else 100
jax.config.update("jax_num_cpu_devices", 2)
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize(address, 2, number, heartbeat_timeout_seconds=PATIENCE)

import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec as P  # noqa: E402

import lox  # noqa: E402
from lox.loggers import ConsoleLogger, CSVLogger, Logger, MultiLogger, SaveLogger  # noqa: E402

mesh = jax.make_mesh((4,), ("d",), axis_types=(AxisType.Auto,))
CHECKS = {}


def check(fun):
    CHECKS[fun.__name__] = fun
    return fun


def placed(array, sharding):
    return jax.make_array_from_callback(array.shape, sharding, lambda i: array[i])


def sharded(array, over=mesh):
    return placed(array, NamedSharding(over, P("d")))


XS = np.arange(8, dtype=np.float32)


def train(x):
    """Logs a value that all devices have, and one that is sharded over them."""

    def step(x, i):
        lox.log({"mean": x.mean(), "x": x}, step=i)
        return x / 2, None

    return jax.lax.scan(step, x, jnp.arange(3))[0]


def each_device(x):
    lox.log({"sum": x.sum()})
    return 2 * x


mapped = jax.jit(jax.shard_map(each_device, mesh=mesh, in_specs=P("d"), out_specs=P("d")))


def plain(logs):
    return {key: value.tolist() for key, value in logs.items()}


def described(array):
    """The spec of an array, and its shards that are here, by the index of the device."""
    shards = {s.device.id: np.asarray(s.data).tolist() for s in array.addressable_shards}
    return {"spec": list(array.sharding.spec), "shards": list(shards.values())}


def heard_by(transform, fun, *args):
    heard = []
    out = transform(fun, lambda logs: heard.append(plain(logs)))(*args)
    lox.barrier()
    return heard, out


@check
def spool():
    y, logs = jax.jit(lox.spool(train))(sharded(XS))
    _, eager = lox.spool(train)(sharded(XS))
    return {key: described(logs[key]) for key in logs} | {
        "y": described(y),
        "eager": described(eager["x"]),
        "step": described(logs.step["x"]),
        "print": repr(logs),
    }


@check
def tap():
    jitted, y = heard_by(lambda f, c: jax.jit(lox.tap(f, c)), train, sharded(XS))
    eager, _ = heard_by(lox.tap, train, sharded(XS))
    backwards = Mesh(mesh.devices[::-1], ("d",))
    other, _ = heard_by(lox.tap, jax.jit(train), sharded(XS, backwards))
    own, _ = heard_by(lox.tap, jax.jit(train), XS + number)
    return {"y": described(y), "jitted": jitted, "eager": eager} | {
        "backwards": other,
        "own": own,
    }


@check
def tap_of_shard_map():
    heard = []

    def note(logs):
        where = [int(logs.steps[name]["sum"]) for name in ("d", "process")]
        heard.append([*where, float(logs["sum"])])

    lox.tap(mapped, note, process=True)(sharded(XS))
    lox.barrier()
    _, logs = lox.spool(mapped)(sharded(XS))
    return {"heard": sorted(heard), "spooled": described(logs["sum"])}


@check
def print_and_nolog():
    jax.jit(train)(sharded(XS))
    lox.barrier()
    print("--", flush=True)
    y = jax.jit(lox.nolog(train))(sharded(XS))
    lox.barrier()
    return described(y)


@check
def progress():
    y = lox.progress(jax.jit(train))
    with lox.silent():
        return described(y(sharded(XS)))


@check
def one_writer():
    with SaveLogger(folder / "one") as logger:
        state = logger.init(jax.random.key(0))
        logger.tap(jax.jit(train), state)(sharded(XS))
        logger.spool(jax.jit(train), state)(sharded(XS))
        _, logs = jax.jit(lox.spool(train))(sharded(XS))
        logger.log(state, logs)
    return int(state.run)


@check
def one_bucket():
    """Both processes write to one store on object storage, if there is a server."""
    if "AWS_ENDPOINT_URL" in os.environ:
        with SaveLogger("s3://pair/exp1", all_processes=True) as logger:
            state = logger.init(jax.random.key(0))
            logger.tap(jax.jit(train), state)(sharded(XS))
            logger.tap(lambda x: lox.log({"own": x}) and None, state)(XS * number)


@check
def seeds_on_all_processes():
    logger = SaveLogger(folder / "seeds", mode="w")
    data = np.asarray(jax.random.key_data(jax.random.split(jax.random.key(1), 8)))

    @jax.jit
    @jax.vmap
    def experiment(data):
        state = logger.init(data)

        def run(w):
            def step(w, i):
                lox.log({"w": w}, step=i)
                return w / 2, None

            return jax.lax.scan(step, w, jnp.arange(3))[0]

        w = logger.tap(run, state)(jax.random.normal(jax.random.wrap_key_data(data)))
        logger.finish(state)
        return w

    for _ in range(3):  # the same keys again are other sessions
        w = experiment(sharded(data))
    lox.barrier()
    return {"spec": list(w.sharding.spec), "keys": data.tolist()}


@check
def all_write():
    for mode in ("w", "a"):  # the second session counts
        with SaveLogger(folder / "all", mode, all_processes=True) as logger:
            state = logger.init(jax.random.key(0))
            logger.tap(jax.jit(train), state)(sharded(XS))
            logger.tap(mapped, state)(sharded(XS))
            logger.tap(lambda x: lox.log({"own": x}) and None, state)(XS * number)
    return int(state.run)


@check
def several_loggers():
    with open(folder / f"console-{number}", "w") as console:
        loggers = (
            SaveLogger(folder / "several"),
            CSVLogger(folder / "csv", all_processes=True),
            ConsoleLogger(file=console),
        )
        with MultiLogger(*loggers) as logger:
            state = logger.init(jax.random.key(0))
            logger.tap(jax.jit(train), state, "mean")(sharded(XS))


class Counting:
    """A writer that counts what it is asked to do."""

    def __init__(self):
        self.calls = []

    def open(self, run):
        self.calls.append(["open", run.process])

    def write(self, batch):
        self.calls.append(["rows", len(list(batch.rows()))])

    def flush(self):
        pass

    def close(self, run):
        self.calls.append(["close", run.process])


@check
def own_writers():
    called = {}
    for everywhere in (False, True):
        writer = Counting()
        with Logger(writer, all_processes=everywhere) as logger:
            state = logger.init(3)
            logger.tap(jax.jit(train), state)(sharded(XS))
        called[str(everywhere)] = writer.calls
    return called


@check
def refused():
    state = (logger := SaveLogger(folder / "refused")).init(jax.random.key(0))
    some = Mesh([device for device in jax.devices() if device.id % 2 == 0], "d")
    spec = {"in_specs": P("d"), "out_specs": P("d")}
    abstract = jax.jit(jax.shard_map(each_device, mesh=some.abstract_mesh, **spec))
    errors = []
    for fun, mesh_of_data in ((mapped, mesh), (abstract, some)):
        try:
            logger.tap(fun, state)(sharded(XS, mesh_of_data))
        except ValueError as error:
            errors.append(str(error))
    return errors


@check
def save():
    _, logs = jax.jit(lox.spool(train))(sharded(XS))
    lox.save(logs, folder / "saved", mode="w")
    jax.jit(lambda logs: lox.save(logs, folder / "staged"))(logs)
    lox.save({"own": np.float32(number)}, folder / "own", mode="w")
    lox.barrier()


@check
def no_collective_is_added():
    def compiled(fun):
        text = jax.jit(fun).lower(sharded(XS)).compile().as_text()
        return [text.count(f" {name}(") for name in ("all-reduce", "all-gather")]

    def mean(x):
        lox.log({"mean": x.mean()})
        return x / 2

    by_hand = compiled(lambda x: (x / 2, x.mean()))
    return [by_hand, compiled(lox.spool(mean)), compiled(lox.tap(mean)), compiled(mean)]


def endless():
    """Log until this is killed."""
    logger = SaveLogger(folder / "endless")
    state = logger.init(jax.random.key(0))

    @jax.jit
    def once(x, i):
        lox.log({"i": i, "mean": x.mean()})
        return x

    step, x = logger.tap(once, state), sharded(XS)
    for i in range(10**9):
        x = step(x, jnp.int32(i))
        jax.block_until_ready(x)
        if i == 100:
            lox.barrier()
            (folder / f"going-{number}").touch()


if sys.argv[4] == "endless":
    endless()

results, seconds = {}, {}
for name, fun in CHECKS.items():
    start = time.monotonic()
    results[name] = fun()
    seconds[name] = time.monotonic() - start
lox.barrier()
(folder / f"seconds-{number}.json").write_text(json.dumps(seconds))
(folder / f"{number}.json").write_text(json.dumps(results))
jax.distributed.shutdown()
