"""`logger.init`: configurations, names and identities of runs, under `jit` and `vmap`."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lox
from lox._runs import open_run
from lox.loggers import CSVLogger, JSONLogger, Logger, MultiLogger, SaveLogger
from support.kept import Kept

KEYS = jax.random.split(jax.random.key(0), 3)
SEEDS = jax.vmap(jax.random.key)(jnp.arange(2))
RATES = jnp.array([1e-3, 3e-4, 0.1])


@pytest.fixture
def writer():
    return Kept()


@pytest.fixture
def logger(writer):
    return Logger(writer, config={"env": "CartPole", "net": {"width": 64}})


def names(writer):
    return [run.name for run in writer.opened]


# Configurations -----------------------------------------------------------------------


def test_each_run_of_a_grid_has_its_own_config(writer, logger):
    def start(key, lr):
        config = {"lr": lr, "net": {"depth": 2}, "on": lr > 1e-2, "sizes": (1, lr)}
        return logger.init(key, config=config)

    grid = jax.vmap(jax.vmap(start, (None, 0)), (0, None))
    eager = grid(SEEDS, RATES)
    assert eager.run.shape == (2, 3)
    assert len(set(eager.run.reshape(-1).tolist())) == 6
    assert jnp.array_equal(jax.jit(grid)(SEEDS, RATES).run, eager.run)
    assert [run.config for run in writer.opened] == 2 * [
        {
            "env": "CartPole",
            "net": {"width": 64, "depth": 2},
            "lr": lr,
            "on": lr > 1e-2,
            "sizes": [1, lr],
        }
        for lr in (1e-3, 3e-4, 0.1)
    ]
    assert [run.seed for run in writer.opened] == [0, 0, 0, 1, 1, 1]
    assert [run.index for run in writer.opened] == [*range(6)]
    assert len({run.launch for run in writer.opened}) == 1


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (0.5, 0.5),
        (np.float32(0.1), 0.1),
        (jnp.float32(0.1), 0.1),
        (np.float64(0.1), 0.1),
        (jnp.bfloat16(0.5), 0.5),
        (np.float32("nan"), None),
        (7, 7),
        (2**70, 2**70),
        (jnp.int8(-3), -3),
        (True, True),
        (np.bool_(True), True),
        (jnp.array([[1, 2], [3, 4]]), [[1, 2], [3, 4]]),
        (jnp.array([0.1, 0.2]), [0.1, 0.2]),
        (jnp.complex64(1 + 2j), "(1+2j)"),
        ("text", "text"),
        (None, None),
        ((1, "a", None), [1, "a", None]),
        (jax.random.key(7), [0, 7]),
        (jax.nn.silu, "jax._src.nn.functions.silu"),
        ({"a": {"b": jnp.arange(2)}}, {"a": {"b": [0, 1]}}),
    ],
)
def test_values_are_plain_traced_or_not(writer, logger, value, plain):
    logger.init(0, config={"x": value})
    found = writer.opened[0].config["x"]
    if isinstance(value, np.float32) and np.isnan(value):
        assert np.isnan(found)
        return
    assert (found, type(found)) == (plain, type(plain))
    assert json.loads(json.dumps(found)) == plain
    # The same value from a program means the same run.
    leaves, tree = jax.tree.flatten(value)
    traced = [isinstance(leaf, jax.Array) for leaf in leaves]
    if not any(traced):
        return

    @jax.jit
    def start(arrays):
        given = iter(arrays)
        mixed = [
            next(given) if is_array else x
            for x, is_array in zip(leaves, traced, strict=True)
        ]
        return logger.init(0, config={"x": jax.tree.unflatten(tree, mixed)})

    start([leaf for leaf, is_array in zip(leaves, traced, strict=True) if is_array])
    assert len(writer.opened) == 1


def test_one_host_call_opens_all_runs(monkeypatch, writer, logger):
    calls = []
    original = open_run._open_on_host

    def counted(*args):
        calls.append(1)
        return original(*args)

    monkeypatch.setattr(open_run, "_open_on_host", counted)
    keys = jax.random.split(jax.random.key(1), 1024)

    def start(key, lr):
        return logger.init(key, config={"lr": lr, "sizes": [lr, 2 * lr]}, name="{index}")

    jax.block_until_ready(jax.jit(jax.vmap(start))(keys, jnp.linspace(0.1, 0.9, 1024)))
    assert len(calls) == 1
    assert len(writer.opened) == 1024
    expected = np.linspace(0.1, 0.9, 1024, dtype=np.float32)
    found = [run.config["lr"] for run in writer.opened]
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert names(writer) == [str(i) for i in range(1024)]


def test_the_config_of_several_loggers_is_merged(tmp_path):
    kept = Kept()
    logger = MultiLogger(
        SaveLogger(tmp_path / "store", config={"a": 1, "b": {"x": 1}, "c": 1}),
        Logger(kept, config={"d": 1}),
        config={"b": {"y": 2}, "c": 2},
    )
    name = "{a}-{b.y}-{d}-{lr:.1f}"
    with logger:
        jax.vmap(lambda lr: logger.init(0, config={"c": 3, "lr": lr}, name=name))(RATES[:2])
    over = {"c": 3, "lr": 0.001}
    assert kept.opened[0].config == {"d": 1, "b": {"y": 2}, **over}
    first, second = lox.runs(tmp_path / "store")
    assert first.config == {"a": 1, "b": {"x": 1, "y": 2}, **over}
    # Both loggers have the same names, which are unique.
    assert [first.name, second.name] == names(kept) == ["1-2-1-0.0", "1-2-1-0.0-2"]


def test_a_bad_config_says_what_to_do(logger):
    with pytest.raises(TypeError, match=r"be a mapping .*, not 'list'.*dataclasses.asdict"):
        logger.init(0, config=[1])
    with pytest.raises(TypeError, match="`name` must be a string, not 'int'"):
        logger.init(0, name=3)
    with pytest.raises(TypeError, match="`tags` takes strings, not `int`"):
        logger.init(0, tags=[1])
    with pytest.raises(TypeError, match=r"must be True or False, not '.*Tracer'") as e:
        jax.jit(lambda resume: logger.init(0, resume=resume))(True)
    assert "the same for all runs" in str(e.value)


# Names --------------------------------------------------------------------------------


def test_default_names_are_position_and_seed(writer, logger):
    jax.vmap(logger.init)(SEEDS)
    jax.vmap(logger.init)(KEYS)
    logger.init(jax.random.key(7))
    logger.init(8)
    logger.init(KEYS[0], config={"alone": True})
    assert names(writer) == [
        *("run0-seed0", "run1-seed1"),
        *("run0", "run1", "run2"),
        *("seed7", "seed8"),
        "-".join(map(str, jax.random.key_data(KEYS[0]).tolist())),
    ]


def test_names_refer_to_config_seed_and_index(writer, logger):
    def start(key, lr):
        name = "{env}/lr={lr:g} {net.width:03d} {net/width} {seed} #{index} {{}}"
        return logger.init(key, config={"lr": lr}, name=name, group="sweep", tags="ppo")

    jax.jit(jax.vmap(start, (0, 0)))(SEEDS, RATES[:2])
    assert names(writer) == [
        "CartPole/lr=0.001 064 64 0 #0 {}",
        "CartPole/lr=0.0003 064 64 1 #1 {}",
    ]
    assert {(run.group, run.tags) for run in writer.opened} == {("sweep", ("ppo",))}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("{rate}", r"there is no {rate}. It can refer to {seed}, {index}, {env}, "),
        ("{lr:d}", "Unknown format code 'd'"),
        ("{env:g}", "Unknown format code 'g'"),
        ("{lr", "expected '}'"),
        ("{}", "there is no {}"),
        ("{env.__class__}", "there is no {env.__class__}"),
    ],
)
def test_a_name_that_does_not_work_is_an_error_while_tracing(writer, logger, name, message):
    def start(key, lr):
        return logger.init(key, config={"lr": lr}, name=name)

    for fun in (start, jax.vmap(start), jax.jit(jax.vmap(start))):
        args = (KEYS[0], 0.1) if fun is start else (KEYS, RATES)
        with pytest.raises(ValueError, match="`name` is") as error:
            fun(*args)
        assert message in str(error.value)
    assert not writer.opened


def test_a_name_that_comes_out_empty_is_the_default_one(writer, logger):
    logger.init(7, name="")
    logger.init(8, config={"note": " "}, name="{note}")
    jax.vmap(lambda seed: logger.init(seed, name=" "))(jnp.array([9]))
    assert names(writer) == ["seed7", "seed8", "run0-seed9"]


def test_names_are_unique_among_the_open_runs(writer, logger):
    first = logger.init(0, name="same")
    logger.init(1, name="same")
    logger.finish(first)
    logger.init(2, name="same")
    assert names(writer) == ["same", "same-2", "same"]


def test_files_of_runs_with_strange_names_stay_in_the_folder(tmp_path):
    for kind in (CSVLogger, JSONLogger):
        with kind(tmp_path / "a" / "b") as logger:
            for i, name in enumerate(["../x", "a/b", "a:b", "lr={lr:g}"]):
                logger.log(logger.init(i, config={"lr": 0.1}, name=name), {"x": i})
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["b"]
    stems = ["_x", "a_b", "a_b-2", "lr=0.1"]
    found = sorted(path.name for path in (tmp_path / "a" / "b").glob("*.csv"))
    assert found == sorted(f"{stem}.csv" for stem in stems)
    config = json.loads((tmp_path / "a" / "b" / "lr=0.1.config.json").read_text())
    assert config == {"lr": 0.1}


# Identities ---------------------------------------------------------------------------


def test_the_same_key_with_two_rates_is_two_runs(writer, logger):
    start = jax.jit(jax.vmap(lambda lr: logger.init(KEYS[0], config={"lr": lr})))
    states = start(RATES)
    assert len(set(states.run.tolist())) == 3
    assert start(RATES).run.tolist() == states.run.tolist()
    # The next float is another run.
    other = start(jnp.nextafter(RATES, 1))
    assert set(other.run.tolist()).isdisjoint(states.run.tolist())
    assert len(writer.opened) == 6
    logger.finish(states)
    assert len(writer.closed) == 3


def logs_steps(x):
    def body(carry, i):
        lox.log({"x": x * i}, step=i)
        return carry, None

    return jax.lax.scan(body, x, jnp.arange(2))[0]


@pytest.mark.parametrize("way", ["tap", "spool"])
def test_examples_that_share_a_run_are_told_apart(writer, logger, way):
    def train(x):
        run = logger.init(0)  # the same for all of them
        return getattr(logger, way)(logs_steps, run)(x)

    def train_twice():
        for _ in range(2):
            jax.jit(jax.vmap(train))(jnp.arange(3))
            lox.barrier()

    with pytest.warns(UserWarning, match=r"3 examples of a `vmap` log.* 'seed0'") as seen:
        train_twice()
    assert len([w for w in seen if "examples of a `vmap`" in str(w.message)]) == 1
    found = {
        (int(steps["example"]), int(steps["step"]), int(values["x"]))
        for steps, values in writer.rows("seed0")
    }
    assert found == {(x, i, x * i) for x in range(3) for i in range(2)}
    assert len(writer.rows("seed0")) == 12


def test_two_examples_of_a_batch_may_be_one_run(writer, logger):
    keys = jnp.array([5, 6, 5], jnp.uint32)
    train = jax.vmap(lambda key, x: logger.tap(logs_steps, logger.init(key))(x))

    def train_and_wait():
        train(keys, jnp.arange(3))
        lox.barrier()

    with pytest.warns(UserWarning, match="log to the same run 'run0-seed5'"):
        train_and_wait()
    assert names(writer) == ["run0-seed5", "run1-seed6"]
    rows = writer.rows("run0-seed5")
    assert sorted({int(steps["example"]) for steps, _ in rows}) == [0, 2]


def test_a_step_called_example_stays(writer, logger):
    run = logger.init(0)

    def log_and_wait():
        jax.vmap(lambda x: logger.log(run, {"x": x}, example=10 * x))(jnp.arange(3))
        lox.barrier()

    with pytest.warns(UserWarning, match="log to the same run"):
        log_and_wait()
    assert [int(steps["example"]) for steps, _ in writer.rows("seed0")] == [0, 10, 20]
