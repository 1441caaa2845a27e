"""What all loggers have in common: runs, order, the thread that writes, failures."""

import io
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import make_dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lox
from lox.loggers import ConsoleLogger, Logger, LoggerState, MultiLogger
from lox.loggers.functional import start_run
from lox_host import write_buffer
from lox_host.runs.run_id import run_name
from support.kept import Kept, assert_kept
from support.programs import PROGRAMS, Program
from support.selection import thin
from support.truth import records_of_each, run
from support.while_programs import PROGRAMS as WHILE_PROGRAMS, XS, truth_of_each

KEYS = jax.random.split(jax.random.key(0), 3)


def name(key) -> str:
    return "-".join(map(str, np.asarray(jax.random.key_data(key)).tolist()))


def counting(xs):
    """Logs in a loop, with a step and without, and not always."""

    def step(total, x):
        total += x
        lox.log({"total": total}, step=x)
        jax.lax.cond(x % 2 == 1, lambda: lox.log({"odd": {"x": x}}) and None, lambda: None)
        return total, None

    lox.log({"first": xs})
    return jax.lax.scan(step, 0, xs)[0]


INTS = jnp.arange(5)


# What each run is given ---------------------------------------------------------------


def logs_flatly(records) -> bool:
    """Whether no `vmap` of the program's own is around a record."""
    return all(len(record.lanes) == 1 for record in records)


@pytest.mark.parametrize("p", thin(PROGRAMS, 6, 2), ids=lambda p: p.name)
def test_each_run_has_what_its_example_logs(p: Program):
    records = records_of_each(p)
    if not logs_flatly(records):
        return
    writer = Kept()
    logger = Logger(writer)

    def train(key, x):
        return logger.tap(p.fun, logger.init(key))(x)

    jax.jit(jax.vmap(train))(KEYS, p.xs)
    lox.barrier()

    for i, key in enumerate(KEYS):
        mine = [record for record in records if record.lanes == (i,)]
        assert_kept(writer.rows(name(key)), mine)


@pytest.mark.parametrize(
    ("fun", "batch"),
    [
        pytest.param(fun, batch, id=f"{fun.__name__}-{batch}")
        for i, fun in enumerate(thin(WHILE_PROGRAMS, 3))
        for batch in thin([None, 3], 2, i)
    ],
)
def test_each_run_has_what_its_loops_of_unknown_length_log(fun, batch):
    _, records = truth_of_each(fun)
    writer = Kept()
    logger = Logger(writer)
    keys = jax.random.split(jax.random.key(1), len(XS))

    def train(key, x):
        return logger.tap(fun, logger.init(key), batch=batch)(x)

    jax.jit(jax.vmap(train))(keys, XS)
    lox.barrier()

    if logs_flatly(records):
        for i, key in enumerate(keys):
            mine = [record for record in records if record.lanes == (i,)]
            assert_kept(writer.rows(name(key)), mine)


WAYS = {
    "tap": lambda logger, f, state: logger.tap(f, state),
    "spool": lambda logger, f, state: logger.spool(f, state),
    "jit of tap": lambda logger, f, state: jax.jit(logger.tap(f, state)),
    "jit of spool": lambda logger, f, state: jax.jit(logger.spool(f, state)),
    "tap of jit": lambda logger, f, state: logger.tap(jax.jit(f), state),
    "spool of jit": lambda logger, f, state: logger.spool(jax.jit(f), state),
    "batches": lambda logger, f, state: logger.tap(f, state, batch=2),
    "a state that is an argument": lambda logger, f, state: (
        lambda xs: jax.jit(lambda state, xs: logger.tap(f, state)(xs))(state, xs)
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_run_has_what_the_eager_run_logs(way):
    _, records = run(counting, INTS)
    writer = Kept()
    logger = Logger(writer)
    state = logger.init(KEYS[0])

    for _ in range(2):
        out = WAYS[way](logger, counting, state)(INTS)
        assert out == 10
    logger.finish(state)

    assert_kept(writer.rows(name(KEYS[0])), records * 2)
    assert [run_name(run.key) for run in writer.closed] == [name(KEYS[0])]


@pytest.mark.parametrize(
    ("number", "way"),
    [
        (number, way)
        for i, number in enumerate([1, 8, 256])
        for way in thin(["tap", "spool", "batches"], 3, i)
    ],
)
def test_one_run_for_each_seed(way, number):
    keys = jax.random.split(jax.random.key(2), number)
    _, records = run(counting, INTS)
    writer = Kept()
    logger = Logger(writer)

    @jax.jit
    @jax.vmap
    def train(key):
        state = logger.init(key)
        out = WAYS[way](logger, counting, state)(INTS)
        logger.finish(state)
        return out

    assert train(keys).tolist() == [10] * number
    lox.barrier()

    assert [run_name(run.key) for run in writer.opened] == [*map(name, keys)]
    assert len({run.launch for run in writer.opened}) == 1
    assert sorted(run_name(run.key) for run in writer.closed) == sorted(map(name, keys))
    for key in keys[:: max(1, number // 3)]:
        assert_kept(writer.rows(name(key)), records)


def test_many_seeds_make_one_host_call_for_a_record():
    writer = Kept()
    logger = Logger(writer)
    sent = []
    logger._host.take = lambda *args, **_: sent.append(args)
    states = jax.vmap(logger.init)(jax.random.split(jax.random.key(3), 256))

    jax.jit(jax.vmap(lambda state: logger.tap(counting, state)(INTS)))(states)
    jax.effects_barrier()

    # One for what is logged before the loop, one for each iteration, one where some log.
    assert len(sent) == 1 + len(INTS) + 2


def test_a_gradient_logs_the_primal_once():
    def loss(x):
        lox.log({"x": x})
        return jax.checkpoint(lambda x: lox.log({"y": x * x}) and x * x)(x)

    writer = Kept()
    logger = Logger(writer)
    state = logger.init(KEYS[0])
    slope = jax.jit(jax.grad(logger.tap(loss, state)))(3.0)
    slope += jax.jit(logger.spool(jax.grad(loss), state))(3.0)
    logger.finish(state)

    assert slope == 12
    assert_kept(writer.rows(name(KEYS[0])), run(loss, 3.0)[1] * 2)


def test_a_logger_inside_a_loop():
    writer = Kept()
    logger = Logger(writer)

    @jax.jit
    def train(key):
        state = logger.init(key)

        def epoch(c, i):
            logger.tap(lambda i: lox.log({"i": i}, epoch=i), state)(i)
            logger.log(state, lox.logdict({"square": i * i}, epoch={"square": i}))
            return c, None

        jax.lax.scan(epoch, 0, jnp.arange(4))
        logger.finish(state)

    train(KEYS[0])
    lox.barrier()

    rows = writer.rows(name(KEYS[0]))
    for key, power in (("i", 1), ("square", 2)):
        own = [(steps, values[key]) for steps, values in rows if key in values]
        assert own == [({"epoch": i}, i**power) for i in range(4)]
    assert len(writer.closed) == 1


def test_untaken_branches_and_finished_examples_log_nothing():
    writer = Kept()
    logger = Logger(writer)

    def collatz(n):
        def body(n):
            lox.log({"n": n})
            return jnp.where(n % 2 == 0, n // 2, 3 * n + 1)

        return jax.lax.while_loop(lambda n: n != 1, body, n)

    jax.jit(jax.vmap(lambda key, n: logger.tap(collatz, logger.init(key))(n)))(
        KEYS, jnp.array([4, 1, 3])
    )
    lox.barrier()

    seen = [[int(values["n"]) for _, values in writer.rows(name(k))] for k in KEYS]
    assert seen == [[4, 2], [], [3, 10, 5, 16, 8, 4, 2]]


def test_logs_that_are_there_already():
    writer = Kept()
    logger = Logger(writer)
    state = logger.init(KEYS[0])
    _, logs = lox.spool(counting)(INTS)
    logger.log(state, logs)
    jax.jit(logger.log)(state, logs)
    logger.log(state, {"plain": 1.5})
    logger.log(state, lox.logdict())
    logger.finish(state)

    _, records = run(counting, INTS)
    rows = writer.rows(name(KEYS[0]))
    assert rows.pop() == ({}, {"plain": 1.5})
    assert_kept(rows, records * 2)


def test_logs_that_are_there_already_get_steps():
    writer = Kept()
    logger = Logger(writer)
    states = jax.vmap(logger.init)(KEYS[:2])
    one = jax.tree.map(lambda x: x[0], states)
    logger.log(one, {"plain": 1.5}, step=3)
    _, logs = lox.spool(counting, ["total", "odd"])(INTS)
    logger.log(one, logs, epoch=7)
    logger.log(one, logs.slice[:2], step=10, epoch=8)
    jax.jit(jax.vmap(lambda s, x, i: logger.log(s, {"x": x}, step=i)))(
        states, jnp.arange(2.0), jnp.arange(20, 22)
    )
    with pytest.raises(ValueError, match="A step cannot be called 'items'"):
        logger.log(one, {"x": 1.0}, items=1)
    jax.vmap(logger.finish)(states)

    rows = writer.rows(name(KEYS[0]))
    of = {key: [(s, v[key]) for s, v in rows if key in v] for key in ("total", "odd", "x")}
    assert rows[0] == ({"step": 3}, {"plain": 1.5})
    sums = enumerate(np.cumsum(INTS).tolist())
    again = [({"step": 10, "epoch": 8}, 0), ({"step": 10, "epoch": 8}, 1)]
    assert of["total"] == [({"step": i, "epoch": 7}, sum) for i, sum in sums] + again
    assert [s for s, _ in of["odd"]] == [{"epoch": 7}] * 2 + [{"step": 10, "epoch": 8}]
    assert of["x"] == [({"step": 20}, 0.0)]
    assert writer.rows(name(KEYS[1])) == [({"step": 21}, {"x": 1.0})]


def test_options_are_those_of_spool_and_tap():
    writer = Kept()
    logger = Logger(writer)
    state = logger.init(KEYS[0])
    logger.tap(counting, state, "total", prefix="a/", interval=2)(INTS)
    logger.spool(counting, state, argnames="total", prefix="b/", reduce="mean")(INTS)
    logger.spool(counting, state, "first", keep_logs=True)(INTS)
    logger.finish(state)

    rows = writer.rows(name(KEYS[0]))
    assert {key for _, values in rows for key in values} == {"a/total", "b/total", "first"}
    assert [v["a/total"] for _, v in rows if "a/total" in v] == [0, 3, 10]
    assert [v["b/total"] for _, v in rows if "b/total" in v] == [4]


def test_how_many_rows_are_expected():
    def program(x):
        def outer(c, i):
            jax.lax.scan(lambda c, j: (c, lox.log({"inner": j}) and None), 0, jnp.arange(3))
            jax.lax.cond(i > 0, lambda: lox.log({"b": i}) and None, lambda: None)
            jax.lax.cond(i > 0, *2 * [lambda: lox.log({"both": i}) and None])
            return c, lox.log({"outer": i}) and None

        jax.lax.scan(outer, 0, jnp.arange(4))
        jax.lax.while_loop(lambda x: x < 2, lambda x: lox.log({"w": x}) and x + 1, x)

    writer = Kept()
    logger = Logger(writer)
    state = logger.init(KEYS[0])
    logger.tap(program, state)(0)
    logger.tap(program, state, argnames="outer", prefix="p/", interval=3)(0)
    logger.finish(state)

    expected = {k: b.expected for batch in writer.batches for b in batch for k in b.values}
    known = {"inner": 12, "outer": 4, "both": 4, "p/outer": 2}
    assert expected == {**known, "b": None, "w": None}


# Runs ---------------------------------------------------------------------------------


def test_the_same_key_is_the_same_run_until_it_is_finished():
    writer = Kept()
    logger = Logger(writer, config={"lr": 0.1})
    first, again, other = map(logger.init, (KEYS[0], KEYS[0], KEYS[1]))
    assert first.run == again.run != other.run

    logger.finish(first)
    logger.finish(again)
    later = logger.init(KEYS[0])

    assert later.run != first.run
    begun = [run_name(run.key) for run in writer.opened]
    assert begun == [*map(name, (KEYS[0], KEYS[1], KEYS[0]))]
    assert [run_name(run.key) for run in writer.closed] == [name(KEYS[0])]
    assert writer.opened[0].config == {"lr": 0.1}
    assert writer.opened[0].key == tuple(jax.random.key_data(KEYS[0]).tolist())
    logger.finish(other)
    logger.finish(later)


def test_keys_of_all_kinds_start_runs():
    writer = Kept()
    logger = Logger(writer)
    for key in (
        jax.random.key(5),
        jax.random.PRNGKey(5),
        jax.random.key(5, impl="rbg"),
        5,
        np.uint32(5),
    ):
        logger.init(key)
    assert [run.key for run in writer.opened] == [(0, 5), (0, 5, 0, 5), (5,)]
    assert [run.name for run in writer.opened] == ["seed5", "seed5-2", "seed5-3"]
    jax.vmap(logger.init)(jnp.arange(3, dtype=jnp.uint32))
    assert [run.key for run in writer.opened[3:]] == [(0,), (1,), (2,)]
    names = ["run0-seed0", "run1-seed1", "run2-seed2"]
    assert [run.name for run in writer.opened[3:]] == names
    logger.finish(jax.vmap(logger.init)(jnp.arange(3, dtype=jnp.uint32)))
    assert len(writer.closed) == 3


def test_a_finished_run_takes_nothing_more():
    writer = Kept()
    logger = Logger(writer)
    state = logger.init(KEYS[0])
    late = jax.jit(lambda state, x: logger.tap(lambda x: lox.log({"x": x}), state)(x))
    logger.finish(state)
    for use in (
        lambda: logger.log(state, {"x": 1}),
        lambda: logger.tap(counting, state),
        lambda: logger.spool(counting, state),
        lambda: (late(state, 1), lox.barrier()),
    ):
        with pytest.raises(ValueError, match=f"The run '{name(KEYS[0])}' is finished"):
            use()
    assert not writer.batches


def test_an_id_from_another_process_is_refused():
    logger = Logger(Kept())
    logger.init(KEYS[0])
    state = LoggerState(jnp.int32(12345))
    for use in (
        lambda: logger.tap(counting, state),
        lambda: logger.log(state, {"x": 1}),
        lambda: logger.finish(state),
        lambda: (jax.jit(logger.log)(state, {"x": 1}), lox.barrier()),
    ):
        with pytest.raises(
            ValueError, match=r"no run with the id 12345.*`logger.init\(key\)`"
        ):
            use()


def test_bad_input():
    logger = Logger(Kept())
    states = jax.vmap(logger.init)(KEYS)
    with pytest.raises(ValueError, match=r"takes one PRNG key.*`jax.vmap\(logger.init\)"):
        logger.init(KEYS)
    for wrong in (0.5, None, "abc", jnp.arange(8), np.zeros(0, np.uint32)):
        with pytest.raises(ValueError, match="takes one PRNG key or number, not"):
            logger.init(wrong)
    with pytest.raises(ValueError, match="The state contains 3 runs"):
        logger.tap(counting, states)
    with pytest.raises(TypeError, match=r"`state` is 'int', not what `logger\.init"):
        logger.log(3, {})  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match=r"`logger\.tap` takes a function"):
        logger.tap(3, logger.init(KEYS[0]))  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match='must be "warn" or "raise", not \'no\''):
        Logger(Kept(), on_error="no")  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match=r"be a mapping .*not 'Config'.*\.asdict\(con"):
        Logger(Kept(), config=make_dataclass("Config", ["rate"])(0.1))  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match="is 'function', which lacks `open`, `write`"):
        Logger(lambda batch: None)  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match=r"Logs are a mapping from keys to.*`float`"):
        logger.log(logger.init(KEYS[0]), 1.0)  # pyright: ignore[reportArgumentType]
    state = logger.init(KEYS[0])
    with pytest.raises(TypeError, match=r"takes the run first.*`logger\.log\(run, logs\)`"):
        logger.log({"x": 1.0})  # pyright: ignore[reportArgumentType]
    with pytest.raises(
        TypeError, match=r"no values: keywords are steps.*\(run, \{\"x\": \.\.\.\}\)"
    ):
        logger.log(state, x=1.0)
    with pytest.raises(ValueError, match=r"not the string 'myrun'\. Each run has its own"):
        logger.init("myrun")
    with pytest.raises(TypeError, match="takes one or more loggers, not Kept"):
        MultiLogger(Kept())  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match="takes one or more loggers, not none"):
        MultiLogger()


def test_a_context_finishes_its_runs():
    writer = Kept()
    with Logger(writer) as logger:
        states = jax.vmap(logger.init)(KEYS)
        jax.jit(jax.vmap(lambda s: logger.tap(counting, s)(INTS)))(states)
    assert len(writer.closed) == 3
    assert all(len(writer.rows(name(key))) == 8 for key in KEYS)


# When it is written -------------------------------------------------------------------


def test_single_rows_are_joined_and_flushed_twice_a_second():
    writer = Kept()
    logger = Logger(writer)
    state = logger.init(KEYS[0])
    logger.tap(
        lambda n: jax.lax.fori_loop(0, n, lambda i, c: lox.log({"i": i}) and c, 0), state
    )(2000)
    deadline = time.monotonic() + 5
    while writer.flushed == 0 and time.monotonic() < deadline:
        time.sleep(0.01)
    lox.barrier()
    assert sum(len(batch[0]) for batch in writer.batches) == 2000
    assert all(len(batch) == 1 for batch in writer.batches)
    assert len(writer.batches) < 20


def test_rows_of_a_key_stay_in_order_when_its_form_changes():
    writer = Kept()
    logger = Logger(writer)
    state = logger.init(KEYS[0])
    for i in range(3):
        logger.log(state, lox.logdict({"x": i}, step={"x": i}))
        logger.log(state, {"x": 10 * i})
        logger.log(state, {"y": i})
    logger.finish(state)
    rows = [values for _, values in writer.rows(name(KEYS[0]))]
    assert rows == [row for i in range(3) for row in ({"x": i}, {"x": 10 * i}, {"y": i})]


def test_rows_of_a_key_stay_in_order_when_its_steps_go_back():
    def program(xs):
        def step(c, x):
            lox.log({"there": x}, step=x)
            lox.log({"back": x}, step=4 - x)
            return c, None

        return jax.lax.scan(step, 0, xs)[0]

    for way in ("tap", "batches", "spool"):
        writer = Kept()
        logger = Logger(writer)
        state = logger.init(KEYS[0])
        WAYS[way](logger, program, state)(INTS)
        logger.finish(state)
        assert_kept(writer.rows(name(KEYS[0])), run(program, INTS)[1])


class Slow(Kept):
    def write(self, batch):
        time.sleep(0.05)
        super().write(batch)


def test_a_slow_writer_makes_the_program_wait_and_loses_nothing(monkeypatch):
    writer = Slow()
    logger = Logger(writer)
    monkeypatch.setattr(write_buffer, "MAX_ROWS", 10)
    state = logger.init(KEYS[0])
    logger.tap(
        lambda: jax.lax.fori_loop(0, 500, lambda i, c: lox.log({"i": i}) and c, 0), state
    )()
    jax.effects_barrier()
    assert len(writer.batches) > 20
    logger.finish(state)
    assert [int(v["i"]) for _, v in writer.rows(name(KEYS[0]))] == [*range(500)]


def test_runs_from_several_threads():
    writer = Kept()
    logger = Logger(writer)

    def work(seed):
        state = logger.init(jax.random.key(seed))
        for _ in range(5):
            logger.tap(counting, state)(INTS)
        logger.finish(state)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    _, records = run(counting, INTS)
    for seed in range(4):
        assert_kept(writer.rows(name(jax.random.key(seed))), records * 5)


def test_finish_in_a_program_comes_after_what_was_logged_before():
    x = jnp.ones((300, 300)) / 300

    def heavy(x):
        x = jax.lax.fori_loop(0, 20, lambda i, x: x @ x, x)
        lox.log({"sum": x.sum()})
        return x

    inner = Kept()
    logger = Logger(inner)

    @jax.jit
    def train(key, x):
        state = logger.init(key)
        x = logger.tap(heavy, state)(x)
        x = jax.jit(lambda x: logger.spool(heavy, state)(x))(x)
        logger.finish(state)
        return x

    for i in range(10):
        train(jax.random.key(i), x)
    lox.barrier()
    for i in range(10):
        assert len(inner.rows(name(jax.random.key(i)))) == 2
    assert len(inner.closed) == 10


def test_finish_in_a_part_of_a_program_waits_for_the_rest():
    def finish_in_a_branch(logger, state, x):
        jax.lax.cond(x > 0, lambda: logger.finish(state), lambda: None)

    def finish_in_a_function(logger, state, x):
        jax.jit(logger.finish)(state)

    def finish_in_a_loop(logger, state, x):
        jax.lax.scan(lambda c, _: (c, logger.finish(state)), 0, None, length=1)

    for i, finish in enumerate(
        (finish_in_a_branch, finish_in_a_function, finish_in_a_loop)
    ):
        writer = Kept()
        logger = Logger(writer)

        @jax.jit
        def train(key, xs):
            state = logger.init(key)
            out = logger.tap(counting, state)(xs)
            finish(logger, state, out)
            return out

        train(key := jax.random.key(i), INTS)
        lox.barrier()
        assert_kept(writer.rows(name(key)), run(counting, INTS)[1])
        assert len(writer.closed) == 1


def test_logs_around_and_inside_of_loops_and_branches_come_in_order():
    writer = Kept()
    logger = Logger(writer)

    def heavy(x):
        return jax.lax.fori_loop(0, 20, lambda i, x: jnp.tanh(x @ x), x)

    @jax.jit
    def program(key, x):
        state = logger.init(key)

        def log(i):
            logger.log(state, {"i": i})

        log(heavy(x)[0, 0] * 0)
        x, _ = jax.lax.scan(lambda x, i: (jnp.tanh(x), log(i)), x, jnp.arange(1.0, 4.0))
        x = logger.tap(lambda x: (lox.log({"i": heavy(x)[0, 0] * 0 + 4}), x)[1], state)(x)
        x = jax.lax.cond(x[0, 0] > 0, lambda: log(jnp.float32(5)) or heavy(x), lambda: x)
        log(jnp.float32(6))
        return x

    for i in range(5):
        program(key := jax.random.key(i), jnp.ones((200, 200)))
        lox.barrier()
        found = [float(values["i"]) for _, values in writer.rows(name(key))]
        assert found == [0, 1, 2, 3, 4, 5, 6]


def test_what_comes_after_a_finish_that_waits():
    writer = Kept()
    logger = Logger(writer)

    @jax.jit
    def train(key):
        state = logger.init(key)
        jax.lax.scan(lambda c, i: (c, logger.log(state, {"i": i})), 0, jnp.arange(3))
        logger.finish(state)
        return state

    state = train(KEYS[0])
    with pytest.raises(ValueError, match="is finished"):
        logger.log(state, {"i": 3})
    train(KEYS[0])
    again = logger.init(KEYS[0])
    train(KEYS[0])
    lox.barrier()
    assert len(writer.opened) == len(writer.closed) == 3
    assert [int(v["i"]) for _, v in writer.rows(name(KEYS[0]))] == [0, 1, 2] * 3
    assert again.run in [run.id for run in writer.opened]


def test_a_run_that_is_begun_twice_in_a_program():
    writer = Kept()
    logger = Logger(writer)

    @jax.jit
    def twice(key):
        for i in range(2):
            state = logger.init(key)
            logger.log(state, {"i": i})
            logger.finish(state)

    twice(KEYS[0])
    lox.barrier()
    assert len(writer.opened) == len(writer.closed) == 2
    assert [int(v["i"]) for _, v in writer.rows(name(KEYS[0]))] == [0, 1]


def test_the_same_key_twice_in_a_batch():
    writer = Kept()
    logger = Logger(writer)
    states = jax.vmap(logger.init)(jax.random.key_data(KEYS[jnp.array([0, 0])]))
    jax.vmap(lambda s, x: logger.log(s, {"x": x}))(states, jnp.arange(2))
    logger.finish(states)
    assert len(writer.opened) == len(writer.closed) == 1
    assert [int(v["x"]) for _, v in writer.rows(name(KEYS[0]))] == [0, 1]


def test_numbers_of_64_bits_are_other_runs():
    writer = Kept()
    logger = Logger(writer)
    jax.config.update("jax_enable_x64", True)
    try:
        for number in (0, 2**32, -1, 2**32 - 1):
            logger.init(number)
    finally:
        jax.config.update("jax_enable_x64", False)
    assert len({run_name(run.key) for run in writer.opened}) == 4


def test_keys_come_in_the_order_of_logging():
    def program(x):
        lox.log({"z": x, "a": x})
        lox.log({"m": x})

    for way in WAYS:
        writer = Kept()
        logger = Logger(writer)
        WAYS[way](logger, program, logger.init(KEYS[0]))(1.0)
        lox.barrier()
        found = [key for _, values in writer.rows(name(KEYS[0])) for key in values]
        assert found == ["z", "a", "m"], way


def test_threads_with_equal_options_share_one_logger():
    class Slow(Logger):
        def __init__(self, **options):
            time.sleep(0.05)
            super().__init__(Kept(), **options)

    start = threading.Barrier(4)

    def begin(key):
        start.wait()
        return start_run(Slow, {"every": 0.1}, key)

    with ThreadPoolExecutor(4) as pool:
        runs = list(pool.map(begin, range(4)))
    assert len({begun.logger for begun in runs}) == 1
    for begun in runs:
        begun.logger.finish(begun.state)


# Failures -----------------------------------------------------------------------------


def test_a_bad_state_does_not_cost_the_others_their_rows():
    writer = Kept()
    logger = Logger(writer)
    states = jax.vmap(logger.init)(KEYS)
    logger.finish(jax.tree.map(lambda x: x[1], states))
    jax.jit(jax.vmap(lambda s: logger.tap(counting, s)(INTS)))(states)
    with pytest.raises(ValueError, match="The run 'run1' is finished"):
        lox.barrier()
    for key, rows in zip(KEYS, (8, 0, 8), strict=True):
        assert len(writer.rows(name(key))) == rows


class Quitting(Kept):
    def write(self, batch):
        sys.exit("no")


def test_nothing_ends_the_thread_that_writes():
    logger = Logger(Quitting())
    state = logger.init(KEYS[0])
    logger.log(state, {"x": 1})
    with pytest.warns(RuntimeWarning, match="failed with SystemExit: no"):
        lox.barrier()
    with pytest.raises(RuntimeError, match="failed with SystemExit"):
        logger.finish(state)

    writer = Kept()
    logger = Logger(writer)
    state = logger.init(KEYS[0])
    logger.log(state, {"k": {"a": {"b": 1.0}}})
    logger.log(state, {"k": {"a/b": 1.0}})
    logger.log(state, {"k": {"a": {"b": 1.0}, "c": {}}})
    logger.finish(state)
    assert [v["k"] for _, v in writer.rows(name(KEYS[0]))] == [
        {"a": {"b": 1.0}},
        {"a/b": 1.0},
        {"a": {"b": 1.0}, "c": {}},
    ]


class Stuck(Kept):
    def close(self, run):
        raise OSError("cannot close")


def test_a_run_that_cannot_be_closed_is_named():
    logger = Logger(Stuck())
    state = logger.init(KEYS[0])
    with (
        pytest.warns(RuntimeWarning, match=f"no rows of the run '{name(KEYS[0])}'"),
        pytest.raises(RuntimeError, match="failed with OSError: cannot close"),
    ):
        logger.finish(state)
    # What went wrong in the block is what is raised.
    with pytest.warns(RuntimeWarning, match="cannot close"), pytest.raises(KeyError):
        stuck()


def stuck():
    with Logger(Stuck()) as logger:
        logger.init(KEYS[0])
        raise KeyError("mine")


def test_a_finish_that_waits_raises_at_the_barrier():
    logger = Logger(Stuck())

    @jax.jit
    def train(key):
        state = logger.init(key)
        jax.jit(lambda: logger.log(state, {"x": 1}))()
        logger.finish(state)

    train(KEYS[0])
    with (
        pytest.warns(RuntimeWarning, match="cannot close"),
        pytest.raises(RuntimeError, match="failed with OSError: cannot close"),
    ):
        lox.barrier()


class Failing(Kept):
    """Fails from the second batch on."""

    def write(self, batch):
        if self.batches:
            raise OSError("no space left")
        super().write(batch)


def logged_twice(logger, state):
    logger.log(state, {"x": 1})
    lox.barrier()
    logger.log(state, {"x": 2})
    lox.barrier()


def test_a_writer_that_fails_warns_once_and_finish_raises():
    writer = Failing()
    logger = Logger(writer)
    state = logger.init(KEYS[0])
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        logged_twice(logger, state)
        logger.log(state, {"x": 3})
        lox.barrier()
    (warning,) = seen
    message = str(warning.message)
    assert message.startswith("Logger failed with OSError: no space left.")
    assert name(KEYS[0]) in message
    with pytest.raises(RuntimeError, match=r"no space left\. 2 logged rows") as raised:
        logger.finish(state)
    assert isinstance(raised.value.__cause__, OSError)
    assert [values for _, values in writer.rows(name(KEYS[0]))] == [{"x": 1}]
    assert len(writer.closed) == 1


def test_a_writer_that_fails_can_stop_the_program():
    writer = Failing()
    logger = Logger(writer, on_error="raise")
    state = logger.init(KEYS[0])

    def forever(x):
        return jax.lax.while_loop(lambda x: x > 0, lambda x: lox.log({"x": x}) and x + 1, x)

    with (
        pytest.warns(RuntimeWarning, match="Logger failed with OSError"),
        pytest.raises(Exception, match="OSError: no space left"),
    ):
        jax.block_until_ready(logger.tap(forever, state)(jnp.int32(1)))
    with pytest.raises(RuntimeError, match="no space left"):
        logger.finish(state)


class Closed(Kept):
    def open(self, run):
        raise PermissionError("nobody may write here")


def test_a_back_end_that_cannot_be_opened_raises_in_init():
    logger = Logger(Closed())
    for _ in range(2):
        with pytest.raises(PermissionError, match="nobody may write here"):
            logger.init(KEYS[0])
        with pytest.raises(PermissionError, match="nobody may write here"):
            jax.vmap(logger.init)(KEYS)


def test_a_back_end_that_cannot_be_opened_stops_a_jitted_program():
    logger = Logger(Closed())
    with pytest.raises(Exception, match="nobody may write here"):
        jax.block_until_ready(jax.jit(logger.init)(KEYS[0]))


def test_one_of_several_loggers_that_fails_does_not_silence_the_others():
    bad, good = Failing(), Kept()
    logger = MultiLogger(Logger(bad), Logger(good))
    state = logger.init(KEYS[0])
    with pytest.warns(RuntimeWarning, match="Logger failed"):
        logged_twice(logger, state)
    with pytest.raises(RuntimeError, match="no space left"):
        logger.finish(state)
    assert [values for _, values in good.rows(name(KEYS[0]))] == [{"x": 1}, {"x": 2}]
    assert len(good.closed) == 1


def test_several_loggers_open_all_or_none():
    good, mine = Kept(), Kept()
    own = Logger(mine)
    state = own.init(KEYS[0])
    logger = MultiLogger(Logger(good), own, Logger(Closed()))
    with pytest.raises(PermissionError):
        logger.init(KEYS[0])
    assert good.opened == good.closed
    own.log(state, {"x": 1})
    own.finish(state)
    assert len(mine.closed) == 1


def test_one_of_several_loggers_that_is_finished_alone():
    first, second = Kept(), Kept()
    alone = Logger(first)
    logger = MultiLogger(alone, Logger(second))
    state = logger.init(KEYS[0])
    logger.log(state, {"x": 1})
    alone.finish(alone.init(KEYS[0]))
    # Its thread gets the row late: `barrier` has to wait for it.
    alone._host.worker.submit(lambda: time.sleep(0.3))
    logger.log(state, {"x": 2})
    with pytest.raises(ValueError, match="is finished"):
        lox.barrier()
    logger.finish(state)
    assert [v["x"] for _, v in first.rows(name(KEYS[0]))] == [1]
    assert [v["x"] for _, v in second.rows(name(KEYS[0]))] == [1, 2]


def test_several_loggers_share_a_configuration():
    first, second = Kept(), Kept()
    logger = MultiLogger(
        Logger(first, config={"env": "a", "lr": 1}), Logger(second), config={"lr": 2}
    )
    logger.finish(logger.init(KEYS[0]))
    configs = [writer.opened[0].config for writer in (first, second)]
    assert configs == [{"env": "a", "lr": 2}, {"lr": 2}]


def test_several_loggers_have_the_same():
    first, second = Kept(), Kept()
    alone = Logger(first)
    logger = MultiLogger(alone, Logger(second))
    alone.log(alone.init(KEYS[0]), {"own": 1})

    @jax.jit
    @jax.vmap
    def train(key):
        state = logger.init(key)
        out = logger.tap(counting, state)(INTS)
        logger.finish(state)
        return out

    train(KEYS)
    lox.barrier()
    _, records = run(counting, INTS)
    for key in KEYS:
        assert_kept(second.rows(name(key)), records)
    assert first.rows(name(KEYS[0]))[0] == ({}, {"own": 1})
    assert len(first.opened) == len(first.closed) == 3


# The end of the process ---------------------------------------------------------------

PROGRAM = """
import sys, time, jax, jax.numpy as jnp, lox
from lox.loggers import Logger
class Printing:
    def open(self, run): pass
    def write(self, batch):
        for row in batch.rows(): print(int(row.values["i"]))
    def flush(self): sys.stdout.flush()
    def close(self, run): print("closed", flush=True)
logger = Logger(Printing())
state = logger.init(jax.random.key(0))
def fun(n):
    def step(c, i):
        lox.log({"i": i})
        return jnp.tanh(c @ c), None
    return jax.lax.scan(step, jnp.ones((50, 50)), jnp.arange(n))[0].sum()
"""


def started(end: str) -> subprocess.Popen:
    command = [sys.executable, "-u", "-c", PROGRAM + end]
    return subprocess.Popen(command, stdout=-1, stderr=-1, text=True, env=dict(os.environ))


def test_exit_right_after_dispatch_writes_everything():
    process = started("jax.jit(logger.tap(fun, state), static_argnums=0)(500)")
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert out.splitlines() == [*map(str, range(500)), "closed"]


SUBNORMAL = """
import jax, jax.numpy as jnp, numpy as np
from lox.loggers import Logger
class Printing:
    def open(self, run): pass
    def write(self, batch):
        for row in batch.rows(): print(row.values["x"].item())
    def flush(self): pass
    def close(self, run): pass
logger = Logger(Printing())
@jax.jit
def begin(key, x):
    logger.log(logger.init(key), {"x": (x @ x).sum()})
begin(jax.random.key(0), jnp.ones((300, 300)))
logger.log(logger.init(jax.random.key(0)), {"x": np.float32(1e-41)})
"""


def test_the_smallest_numbers_are_not_zero_wherever_the_first_run_begins():
    code, out = ended(SUBNORMAL)
    assert (code, out.split()) == (0, ["27000000.0", str(float(np.float32(1e-41)))])


def test_an_exception_writes_everything():
    process = started("logger.tap(fun, state)(50); raise ValueError('mine')")
    out, err = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "ValueError: mine" in err
    assert out.splitlines() == [*map(str, range(50)), "closed"]


# What ends the process while the main thread is in Python, or in JAX.
BUSY = {
    "in Python": "while True: time.sleep(1)",
    "in JAX": """
loop = jax.jit(lambda x: jax.lax.while_loop(lambda x: x >= 0, lambda x: x * 0.5, x))
jax.block_until_ready(loop(1.0))
""",
}


@pytest.mark.parametrize("where", BUSY)
def test_sigterm_writes_what_has_reached_the_host(where):
    process = started(
        f"logger.tap(fun, state)(50); jax.effects_barrier(); print('ready')\n{BUSY[where]}"
    )
    assert process.stdout is not None
    lines = []
    while "ready" not in lines:
        lines.append(process.stdout.readline().strip())
        assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=30)
    lines += out.splitlines()
    assert process.returncode == -signal.SIGTERM, err
    rows = [line for line in lines if line != "ready"]
    assert rows[:50] == [*map(str, range(50))]


def test_a_handler_of_the_users_stays():
    before = "import signal; signal.signal(signal.SIGTERM, lambda *_: print('mine'))\n"
    end = "signal.raise_signal(signal.SIGTERM)"
    command = [sys.executable, "-c", before + PROGRAM + end]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines() == ["mine", "closed"], done.stderr


def ended(program: str, *args) -> tuple[int, str]:
    command = [sys.executable, "-c", program, *map(str, args)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    return done.returncode, done.stdout + done.stderr


def test_a_handler_of_the_users_that_comes_later_stays():
    end = """
import signal
signal.signal(signal.SIGTERM, lambda *_: print("mine"))
signal.raise_signal(signal.SIGTERM)
time.sleep(0.5)
"""
    code, out = ended(PROGRAM + end)
    assert (code, out.splitlines()) == (0, ["mine", "closed"])


FORKING = """
import multiprocessing, sys, time, warnings
warnings.simplefilter("ignore")
import jax, lox
logger = lox.loggers.SaveLogger(sys.argv[1])
state = logger.init(jax.random.key(0))
for i in range(3): logger.log(state, {"i": i})
def use():
    try: logger.init(jax.random.key(0))
    except RuntimeError as error: print(error, flush=True)
fork = multiprocessing.get_context("fork")
for target, wait in ((lambda: time.sleep(60), False), (use, True)):
    child = fork.Process(target=target)
    child.start()
    time.sleep(0.5)
    child.join() if wait else child.terminate()
    child.join()
logger.log(state, {"i": 3})
logger.finish(state)
print(list(map(int, lox.load(sys.argv[1])["i"])))
"""


def test_children_that_are_forked_leave_it_alone(tmp_path):
    code, out = ended(FORKING, tmp_path)
    assert code == 0, out
    assert "was created before the process was forked" in out
    assert out.splitlines()[-1] == "[0, 1, 2, 3]"


def test_at_exit_all_is_written_also_if_a_callback_has_raised(tmp_path):
    program = """
import sys, os, jax, lox
from lox.loggers import JSONLogger, MultiLogger, SaveLogger
os.chdir(sys.argv[1])
logger = MultiLogger(SaveLogger("store"), JSONLogger("lines"))
state = logger.init(7)
for i in range(50): logger.log(state, {"i": i})
os.chdir("/")
jax.jit(lox.tap(lambda x: lox.log({"x": x}) and None, lambda logs: 1 / 0))(1.0)
"""
    _, out = ended(program, tmp_path)
    assert "ZeroDivisionError" in out
    assert len(lox.load(tmp_path / "store")["i"]) == 50
    assert len((tmp_path / "lines" / "seed7.jsonl").read_text().splitlines()) == 50


@pytest.mark.parametrize("batch", [None, 7])
def test_the_console_knows_the_end_if_a_branch_logs_too(batch):
    def step(carry, x):
        lox.log({"x": x})
        jax.lax.cond(x > 5, lambda: lox.log({"big": x}) and None, lambda: None)
        return carry, None

    out = io.StringIO()
    with ConsoleLogger(file=out) as logger:
        run = logger.init(0)
        logger.tap(lambda: jax.lax.scan(step, 0, jnp.arange(20)), run, batch=batch)()
    assert "100%, 20/20 rows" in out.getvalue()


def test_import_brings_jax_and_numpy_only():
    others = {"rich", "nanoarrow", "polars", "wandb", "mlflow", "trackio", "tensorboard"}
    # Ours, which many programs do not need, and what `jax.extend` would bring.
    others |= {
        "lox.loggers",
        "lox_host.store",
        "lox_host.host_logger",
        "lox_host.wide_table",
    }
    others |= {"lox_host.wide_table", "lox_host.display.curves"}
    # For older versions, a patch replaces what only `jax.extend` makes public.
    if jax.__version_info__ >= (0, 12):
        others |= {"jax._src.pallas.core"}
    code = f"import sys, lox; print({others} & {{*sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "set()", done.stderr


KILLED = """
import sys, jax, jax.numpy as jnp, lox
logger = lox.loggers.SaveLogger(sys.argv[1])
def forever(x):
    def body(i):
        lox.log({"i": i, "square": i * i}, step=i)
        return i + 1
    return jax.lax.while_loop(lambda i: i >= 0, body, x)
jax.block_until_ready(logger.tap(forever, logger.init(jax.random.key(0)))(jnp.int32(0)))
"""


@pytest.mark.filterwarnings("ignore:.*left out")
def test_what_was_flushed_outlives_kill_9(tmp_path):
    """Whenever it is killed: all rows up to some one, and that is a recent one."""
    for seconds in (0.6, 1.3):
        path = tmp_path / str(seconds)
        command = [sys.executable, "-c", KILLED, path]
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        rows = None
        while rows is None:
            time.sleep(0.05)
            assert process.poll() is None
            rows = flushed_rows(path)
        time.sleep(seconds)
        before = flushed_rows(path)
        process.kill()
        process.wait()
        logs = lox.load(path)
        number = len(logs["i"])
        assert number >= before > 0
        np.testing.assert_array_equal(logs["i"], range(number))
        np.testing.assert_array_equal(logs.step["square"], range(number))
        square = np.arange(number, dtype=np.int32)
        np.testing.assert_array_equal(logs["square"], square * square)


def flushed_rows(path) -> int | None:
    try:
        return len(np.atleast_1d(lox.load(path, "i")["i"]))
    except (FileNotFoundError, LookupError):
        return None
