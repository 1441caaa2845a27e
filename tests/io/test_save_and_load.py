"""Logs on disk are the logs that were saved, and runs are found again."""

import json

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import lox
from lox._rows.rows import key_data
from lox.loggers import Batch, Block, Form
from lox_host.cli.main import main
from lox_host.writers.save import SaveWriter
from support.programs import PROGRAMS
from support.selection import thin
from support.storing import block, run

some = pytest.mark.parametrize("p", thin(PROGRAMS, 9), ids=lambda p: p.name)


def arrays(tree):
    return [np.asarray(key_data(leaf)) for leaf in jax.tree.leaves(tree)]


def assert_same_bits(loaded, saved):
    for a, b in zip(arrays(loaded), arrays(saved), strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        assert a.tobytes() == b.tobytes()


def assert_saved(loaded, logs):
    """All that was really logged, and nothing else, in the place where it was."""
    before = {key: own for key, own in logs.rows().items() if own.leading or own.batch}
    before = {key: before.get(key, own) for key, own in logs.compact().rows().items()}
    after = loaded.rows()
    assert [key for key in logs if key in after] == list(after)
    assert before.keys() <= after.keys()
    for key, own in before.items():
        its = after[key]
        assert_same_bits(its.value, own.value)
        dtypes = [x.dtype for x in jax.tree.leaves(own.value)]
        assert [x.dtype for x in jax.tree.leaves(its.value)] == dtypes
        for name in ("tags", "time", "batch", "ndim", "leading", "length"):
            assert getattr(its, name) == getattr(own, name), name
        assert_same_bits(its.valid, own.valid)
        for name, step in own.steps.items():
            step, there = np.asarray(step), np.asarray(own.masks.get(name, True))
            if not there.any() and name not in its.steps:
                continue
            found = np.broadcast_to(its.masks.get(name, True), there.shape)
            np.testing.assert_array_equal(found, there)
            assert its.steps[name].dtype == step.dtype
            np.testing.assert_array_equal(its.steps[name][there], step[there])


@some
def test_what_is_loaded_is_what_was_saved(p, tmp_path):
    _, logs = lox.spool(p.fun)(p.x)

    for number in range(2):
        lox.save(logs, tmp_path, key=(number,))
        if logs:
            assert_saved(lox.load(tmp_path, key=(number,)), logs)


@some
def test_logs_of_examples_come_back_with_their_axes(p, tmp_path):
    for number, f in enumerate((jax.vmap(lox.spool(p.fun)), lox.spool(jax.vmap(p.fun)))):
        _, logs = jax.jit(f)(p.xs)
        lox.save(logs, tmp_path, key=(number,))
        assert_saved(lox.load(tmp_path, key=(number,)), logs)


def everything(x):
    """Each kind of rows there is."""

    def body(c, i):
        key = jax.random.fold_in(jax.random.key(1), i)
        lox.log({"loss": c, "key": key}, tags="t", step=i)
        lox.log({"tree": {"b": [c, None], "a": (c.astype(jnp.bfloat16),)}}, tags=("u", "v"))
        odd = lambda: lox.log({"odd": i, "some": i}, step=i) and None  # noqa: E731
        jax.lax.cond(i % 2 == 1, odd, lambda: lox.log({"some": i}) and None)
        jax.lax.cond(x > 100, lambda: lox.log({"never": i}) and None, lambda: None)
        return c + 1, None

    lox.log({"first": x, "empty": jnp.zeros((0, 3)), "rbg": jax.random.key(0, impl="rbg")})
    jax.lax.scan(body, x, jnp.arange(5))
    jax.lax.scan(lambda c, i: (c, lox.log({"none": i}, step=i) and None), 0, jnp.arange(0))
    return x


def test_each_kind_of_rows_comes_back(tmp_path):
    _, logs = jax.jit(lox.spool(everything))(1.0)

    for _ in range(2):
        lox.save(logs, tmp_path, mode="w")
        loaded = lox.load(tmp_path)
        assert_saved(loaded, logs)
        assert list(loaded) == [key for key in logs if key != "never"]
        assert loaded["none"].shape == loaded.step["none"].shape == (0,)
        np.testing.assert_array_equal(loaded["odd"], [1, 3])
        np.testing.assert_array_equal(
            loaded.step.valid["some"], [False, True] * 2 + [False]
        )
        assert loaded["key"].dtype == jax.random.key(0).dtype
        assert loaded["rbg"].dtype == jax.random.key(0, impl="rbg").dtype
        assert loaded["tree"]["a"][0].dtype == jnp.bfloat16
        assert loaded.tags["tree"] == ("u", "v")
    # What was loaded can be saved and added like any logs.
    lox.save(loaded, tmp_path, key=1)
    assert_saved(lox.load(tmp_path, key=1), logs)
    assert (loaded + loaded)["loss"].shape == (10,)
    assert len(lox.runs(tmp_path)) == 2


def test_what_vmap_gives_comes_back(tmp_path):
    _, logs = jax.vmap(lox.spool(everything))(jnp.array([1.0, 200.0]))

    lox.save(logs, tmp_path)

    loaded = lox.load(tmp_path)
    assert_saved(loaded, logs)
    assert loaded["loss"].shape == (2, 5)
    np.testing.assert_array_equal(loaded.valid["never"], [[False] * 5, [True] * 5])


def test_numbers_that_were_not_logged_by_jax_come_back(tmp_path):
    logs = lox.logdict(
        {"x": 0.5, "n": 3, "b": True, "big": np.uint64(2**64 - 1)}, step={"x": 7}
    )

    lox.save(logs, tmp_path)

    loaded = lox.load(tmp_path)
    assert {key: value.item() for key, value in loaded.items()} == dict(logs)
    assert loaded.step["x"] == 7
    lox.save({"plain": np.arange(3)}, tmp_path)
    np.testing.assert_array_equal(lox.load(tmp_path)["plain"], [0, 1, 2])


def test_what_is_loaded_has_the_dtypes_that_tables_know(tmp_path):
    logs = {"n": np.arange(3) * 10**9, "x": np.linspace(0, 1e200, 3)}
    lox.save(logs, tmp_path)
    loaded = lox.load(tmp_path)
    table = loaded.to_polars()
    for key, array in logs.items():
        # NumPy says 0 of a dtype with a byte order of its own, which is no other dtype.
        assert loaded[key].dtype.isbuiltin == 1
        assert table[key].to_list() == [array.tolist()]


def test_modes_of_save(tmp_path):
    logs = lox.logdict({"x": 1.0})

    lox.save(logs, tmp_path / "s", mode="x")
    with pytest.raises(FileExistsError, match="mode='w'"):
        lox.save(logs, tmp_path / "s", mode="x")
    lox.save(logs, tmp_path / "s")
    assert [run.rows for run in lox.runs(tmp_path / "s")] == [2]
    lox.save(logs, tmp_path / "s", mode="w")
    assert [run.rows for run in lox.runs(tmp_path / "s")] == [1]


def test_runs_are_found_by_their_keys(tmp_path):
    keys = jax.random.split(jax.random.key(0), 3)
    for i, key in enumerate(keys):
        lox.save(lox.logdict({"x": float(i)}), tmp_path, key=key)
    lox.save(lox.logdict({"x": 10.0}), tmp_path, mode="w", key=keys[1])

    assert lox.load(tmp_path, key=keys[1])["x"] == 10
    assert lox.load(tmp_path, key=jax.random.key_data(keys[2]))["x"] == 2
    every = lox.load(tmp_path)
    np.testing.assert_array_equal(every["x"], [0, 2, 10])
    runs = lox.runs(tmp_path)
    assert len(runs) == 3
    assert len({r.name for r in runs}) == 3
    assert lox.load(tmp_path, key=runs[0].key)["x"] == 0
    with pytest.raises(
        LookupError, match=r"no run with the key \(7, 7\). It has .*lox.runs"
    ):
        lox.load(tmp_path, key=(7, 7))


def test_runs_of_one_session_are_loaded_together(tmp_path):
    writer = SaveWriter(tmp_path)
    for i in range(4):
        writer.open(run(i, id=i))
    # As under `vmap`: at each step a row for each run.
    steps, ids = np.repeat(np.arange(6), 4), np.tile(np.arange(4), 6).astype(np.int32)
    keys = np.stack([ids, steps], -1).astype(np.uint32)
    form = Form(time=True), Form(time=True, keys=((0, "threefry2x32"),))
    rows = Block(ids, {"step": steps}, {"x": 10 * ids + steps, "key": keys},
                 dict(zip(("x", "key"), form, strict=True)))  # fmt: skip
    writer.write(Batch([rows]))
    for i in range(4):
        writer.close(run(i, id=i))

    logs = lox.load(tmp_path)

    assert list(logs) == ["x", "key"]
    np.testing.assert_array_equal(logs["x"], 10 * np.arange(4)[:, None] + np.arange(6))
    np.testing.assert_array_equal(logs.step["x"], [range(6)] * 4)
    np.testing.assert_array_equal(arrays(logs["key"])[0][..., 1], [range(6)] * 4)
    assert logs.slice[-1:]["x"].shape == (4, 1)
    assert [r.rows for r in lox.runs(tmp_path)] == [6] * 4
    np.testing.assert_array_equal(lox.load(tmp_path, "x", key=(2,))["x"], range(20, 26))
    _damage_first_column(tmp_path)
    # A list of runs says what was written; that it is damaged is known when it is read.
    assert [r.rows for r in lox.runs(tmp_path)] == [6] * 4
    assert main(["doctor", str(tmp_path)]) == 1
    for key in (None, (2,)):
        lost = (pytest.warns(UserWarning, match=f"A part of '{k}', 24 rows") for k in logs)
        with next(lost), next(lost):
            assert lox.load(tmp_path, key=key) == {}


def _damage_first_column(path):
    (file,) = path.glob("*/*.arrows")
    (journal,) = path.glob("*/journal")
    line = next(line for line in journal.read_text().splitlines() if '"flush"' in line)
    at = json.loads(line[9:])["flush"]["frames"][0]["columns"][0][0]
    data = bytearray(file.read_bytes())
    data[at] ^= 1
    file.write_bytes(data)


def test_runs_of_different_lengths_and_keys_are_stacked_with_valid(tmp_path):
    writer = SaveWriter(tmp_path)
    for i in range(2):
        writer.open(run(i, id=i))
        writer.write(Batch([block(np.arange(3 + i), id=i)]))
    lox.save(lox.logdict({"z": 1.0}), tmp_path)
    for i in range(2):
        writer.close(run(i, id=i))

    logs, alone = lox.load(tmp_path), [lox.load(tmp_path, run=(i,)) for i in range(2)]

    assert logs["x"].shape[:2] == (3, 4)
    np.testing.assert_array_equal(
        logs.valid["x"], [[True] * 3 + [False], [True] * 4, [False] * 4]
    )
    for i, own in enumerate(alone):
        for key in own:
            rows = len(own[key])
            np.testing.assert_array_equal(logs[key][i, :rows], own[key])
            np.testing.assert_array_equal(logs.step[key][i, :rows], own.step[key])
    np.testing.assert_array_equal(logs["z"], [0, 0, 1])
    np.testing.assert_array_equal(logs.valid["z"], [False, False, True])
    with pytest.raises(LookupError, match=r"has no key 'z'. All keys of its session"):
        lox.load(tmp_path, ["x", "z"], key=(1,))


def test_what_is_not_there_is_an_error(tmp_path):
    with pytest.raises(
        FileNotFoundError, match=r"^No such folder: '.*missing'. Give the path that"
    ):
        lox.load(tmp_path / "missing")
    with pytest.raises(FileNotFoundError, match=r"it has no file 'lox.json'"):
        lox.runs(tmp_path)
    lox.save(lox.logdict({"x": 1.0}), tmp_path)
    with pytest.raises(
        LookupError, match=r"no key 'y'. All keys of its session are \['x'\]"
    ):
        lox.load(tmp_path, "y")
    (session,) = tmp_path.glob("*-*")
    (session / "journal").unlink()
    with (
        pytest.warns(UserWarning, match=f"the session {session.name} has lost its journal"),
        pytest.raises(LookupError, match="has no runs yet"),
    ):
        lox.load(tmp_path)
    with pytest.raises(TypeError, match=r"`key` is the string 'saved'.*`lox.runs\(path\)`"):
        lox.load(tmp_path, key="saved")
    (tmp_path / "lox.json").write_text('{"format": 1000}')
    with pytest.raises(ValueError, match="format 1000"):
        lox.load(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"values": {"x": np.zeros((2, 3))}},
            r"The rows of 'x' .* some are int64\[\] and some are float64\[3\].*`argnames`",
        ),
        (
            {"values": {"x": np.zeros(2, ml_dtypes.bfloat16)}},
            r"some are int64\[\] and some are bfloat16\[\]",
        ),
        (
            {"forms": {"x": Form(batch=1)}, "values": {"x": np.arange(2)[:, None]}},
            "in batches",
        ),
        ({"forms": {"x": Form(keys=((0, "rbg"),))}}, "as a PRNG key"),
        (
            {"steps": {"step": np.zeros((2, 1))}},
            "The rows of the step 'step' of 'x' do not fit into one array",
        ),
    ],
)
def test_rows_of_different_forms_are_an_error(tmp_path, change, message):
    first = {"values": {"x": np.arange(2)}, "forms": {"x": Form()}, "steps": {}}
    first["steps"] = {"step": np.arange(2)}
    writer = SaveWriter(tmp_path)
    writer.open(run(0))
    for fields in (first, {**first, **change}):
        writer.write(Batch([Block(np.zeros(2, np.int32), **fields)]))
    writer.close(run(0))

    with pytest.raises(ValueError, match=message):
        lox.load(tmp_path)


def test_dtypes_of_one_key_are_promoted(tmp_path):
    logger = lox.loggers.SaveLogger(tmp_path)
    state = logger.init(0)
    for value in (1, 1.5, True):
        logs = {"a": value, "t": {"b": [value, 2]}}
        logger.log(state, lox.logdict(logs, step=dict.fromkeys(logs, value)))
    logger.finish(state)

    logs = lox.load(tmp_path)

    np.testing.assert_array_equal(logs["a"], [1, 1.5, 1])
    np.testing.assert_array_equal(logs["t"]["b"][0], [1, 1.5, 1])
    np.testing.assert_array_equal(logs.step["a"], [1, 1.5, 1])
    assert logs["a"].dtype == np.result_type(jnp.asarray(1).dtype, jnp.asarray(1.5).dtype)
    assert logs["t"]["b"][1].dtype == jnp.asarray(2).dtype


def opened(path, number):
    """A writer with some runs, whose ids are not in order."""
    writer = SaveWriter(path)
    each = [run(i, id=(7 * i + 5) % 11) for i in range(number)]
    for own in each:
        writer.open(own)
    return writer, each


def rows_of(own, value, *, key="x", tags=(), **steps):
    value = np.asarray(value)
    ids = np.full(len(value), own.id, np.int32)
    steps = {name: np.asarray(step) for name, step in steps.items()}
    return Block(ids, steps, {key: value}, {key: Form(tags, time=True)})


def test_runs_are_loaded_in_the_order_in_which_they_were_started(tmp_path):
    for first in (0, 6):
        writer, each = opened(tmp_path, 8)
        for i, own in enumerate(each):
            writer.write(Batch([rows_of(own, [first + i])]))
        for own in each:
            writer.close(own)

        np.testing.assert_array_equal(lox.load(tmp_path)["x"][:, 0], first + np.arange(8))
        assert [r.key for r in lox.runs(tmp_path)][-8:] == [(i,) for i in range(8)]


@pytest.mark.parametrize("close", [False, True])
def test_a_run_has_nothing_of_the_others(tmp_path, close):
    writer, (a, b) = opened(tmp_path, 2)
    writer.write(Batch([rows_of(a, np.zeros((2, 2)), key="w")]))
    writer.write(Batch([rows_of(b, np.zeros((2, 4)), key="w")]))
    writer.write(Batch([rows_of(a, [0, 1]), rows_of(b, [2, 3], tags=("t",), step=[5, 6])]))
    writer.write(Batch([rows_of(b, np.zeros(0), key="none"), rows_of(b, [1], key="y")]))
    writer.flush()
    for own in (a, b) if close else ():
        writer.close(own)

    logs, others = (lox.load(tmp_path, key=own.key) for own in (a, b))

    assert list(logs) == ["w", "x"]
    assert logs["w"].shape == (2, 2)
    assert logs.steps == {}
    assert logs.tags["x"] == ()
    assert list(others) == ["w", "x", "y"]
    assert others["w"].shape == (2, 4)
    assert others.tags["x"] == ("t",)
    np.testing.assert_array_equal(others.step["x"], [5, 6])
    assert [r.keys for r in lox.runs(tmp_path)] == [("w", "x"), ("w", "x", "y")]
    with pytest.raises(LookupError, match="has no key 'y'"):
        lox.load(tmp_path, "y", key=a.key)
    # Together, what only one of them has is masked.
    both = lox.load(tmp_path, "x")
    np.testing.assert_array_equal(both["x"], [[0, 1], [2, 3]])
    np.testing.assert_array_equal(both.step.valid["x"], [[False] * 2, [True] * 2])
    for names in (None, "w"):
        with pytest.raises(ValueError, match="The 2 runs in"):
            lox.load(tmp_path, names)


def test_what_cannot_be_stacked_is_an_error(tmp_path):
    for i, impl in enumerate(("rbg", "unsafe_rbg")):
        lox.save({"k": jax.random.key(0, impl=impl)}, tmp_path / "keys", key=(i,))
    for i, dtype in enumerate((jnp.bfloat16, jnp.int32)):
        lox.save({"k": jnp.zeros(2, dtype)}, tmp_path / "dtypes", key=(i,))

    forms = {
        "keys": r"uint32\[4\] of a rbg key in .seed0. and uint32\[4\] of a unsafe",
        "dtypes": r"bfloat16\[2\] in 'seed0' and int32\[2\] in 'seed1'",
    }
    for name, text in forms.items():
        with pytest.raises(
            ValueError, match=rf"The 2 runs in .*'k' is {text}.*`lox.runs\(path\)`"
        ):
            lox.load(tmp_path / name)


def test_a_key_without_rows_is_one_of_the_runs_that_were_saved_with_it(tmp_path):
    def f(x):
        scan = jax.lax.scan
        scan(lambda c, i: (c, lox.log({"none": i}, step=i) and None), 0, jnp.arange(0))
        lox.log({"x": x})

    jax.vmap(lambda x: lox.save(lox.spool(f)(x)[1], tmp_path))(jnp.arange(3.0))
    lox.barrier()

    assert lox.load(tmp_path)["none"].shape == (3, 0)
    assert lox.load(tmp_path, key=(1,))["none"].shape == (0,)
    assert [r.keys for r in lox.runs(tmp_path)] == [("none", "x")] * 3


def test_a_session_can_be_asked_for(tmp_path):
    logger = lox.loggers.SaveLogger(tmp_path)
    for i in range(3):
        state = logger.init(i % 2)
        logger.log(state, {"x": float(i)})
        logger.finish(state)

    names = [r.session for r in lox.runs(tmp_path)]
    for i, name in enumerate(names):
        assert lox.load(tmp_path, session=name)["x"] == i
        assert lox.load(tmp_path, "x", run=(i % 2,), session=name)["x"] == i
    assert lox.load(tmp_path, key=(0,))["x"] == 2
    with pytest.raises(LookupError, match=f"no session 'old'. It has .*{names[1]}.*runs"):
        lox.load(tmp_path, session="old")
    with pytest.raises(LookupError, match=r"no run with the key \(1,\) in the session"):
        lox.load(tmp_path, key=(1,), session=names[0])


def test_containers_may_be_empty(tmp_path):
    value = {"a": np.ones(2, bool), "b": {}, "c": [], "d": ((), None)}
    logger = lox.loggers.SaveLogger(tmp_path)
    for number in range(2):
        state = logger.init(number)
        logger.log(state, {"v": value})
        logger.finish(state)
        lox.save({"v": value}, tmp_path / "saved", mode="w")

        for logs in (lox.load(tmp_path, key=number), lox.load(tmp_path / "saved")):
            assert str(logs["v"]) == str(value)


def test_paths_are_those_of_the_moment_and_of_the_user(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    logger = lox.loggers.SaveLogger("here")
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    logger.finish(logger.init(0))
    for path in ("~/saved", "~/logged"):
        lox.save({"x": 1.0}, "~/saved", mode="w")
        logger = lox.loggers.SaveLogger("~/logged")
        logger.finish(logger.init(0))
        assert len(lox.runs(path)) > 0

    assert len(lox.runs(tmp_path / "here")) == 1
    assert lox.load("~/saved")["x"] == 1
    assert not any((tmp_path / "other").iterdir())


def test_a_mode_that_is_none_is_refused_at_once(tmp_path):
    with pytest.raises(ValueError, match="not 'q'"):
        lox.loggers.SaveLogger(tmp_path, mode="q")


def test_runs_say_what_they_are(tmp_path):
    config = {"lr": 0.1, "layers": [1, 2], "at": np.float32(2), "f": print, 3: None}
    writer = SaveWriter(tmp_path)
    own = run(5)
    own = type(own)(own.id, own.name, own.key, config, own.start, own.launch, process=2)
    writer.open(own)
    assert lox.runs(tmp_path)[0].rows == 0
    assert "0 rows of nothing" in repr(lox.runs(tmp_path)[0])
    writer.write(Batch([block([0, 1], split=True), block([2])]))
    writer.close(own)

    (found,) = lox.runs(tmp_path)

    assert (found.name, found.key, found.rows, found.keys) == ("run-5", (5,), 3, ("x", "y"))
    assert (found.process, found.launch, found.start) == (2, "group", 1e9 + 5)
    assert found.config == {
        "lr": 0.1, "layers": [1, 2], "at": 2.0, "f": str(print), "3": None
    }  # fmt: skip
    assert (tmp_path / found.session).is_dir()
    text = repr(found)
    assert text.startswith("<run run-5: 3 rows of x, y, key=(5,), started 2001-09-0")
    assert "'lr': 0.1" in text


# Under transformations ----------------------------------------------------------------


def test_save_under_jit(tmp_path):
    @jax.jit
    def f(x):
        _, logs = lox.spool(scanned)(x)
        lox.save(logs, tmp_path, key=jax.random.key(3))
        return x

    def scanned(x):
        def step(c, i):
            lox.log({"c": c, "key": jax.random.fold_in(jax.random.key(0), i)}, step=i)
            jax.lax.cond(i > 1, lambda: lox.log({"late": i}) and None, lambda: None)
            return 2 * c, None

        jax.lax.scan(step, x, jnp.arange(4))

    for x in (1.0, 3.0):
        f(x)
    lox.barrier()

    logs = lox.load(tmp_path, key=jax.random.key(3))
    assert len(lox.runs(tmp_path)) == 1
    assert list(logs) == ["c", "key", "late"]
    np.testing.assert_array_equal(logs["c"], [1, 2, 4, 8, 3, 6, 12, 24])
    np.testing.assert_array_equal(logs.step["c"], [*range(4)] * 2)
    np.testing.assert_array_equal(logs["late"], [2, 3] * 2)
    expected = jax.vmap(lambda i: jax.random.fold_in(jax.random.key(0), i))(jnp.arange(4))
    assert (logs["key"] == jnp.concatenate([expected, expected])).all()


def test_save_under_vmap_makes_a_run_of_each_example(tmp_path):
    keys = jax.random.split(jax.random.key(0), 3)

    def f(key, x):
        lox.save({"x": x}, tmp_path / "keys", key=key, mode="w")
        jax.lax.cond(x > 0, lambda: lox.save({"y": x}, tmp_path / "none"), lambda: None)

    for times, wrap in enumerate((jax.jit, lambda fun: fun), 1):
        wrap(jax.vmap(f))(keys, jnp.arange(3.0))
        lox.barrier()

        assert [lox.load(tmp_path / "keys", key=key)["x"] for key in keys] == [0, 1, 2]
        added = lox.load(tmp_path / "none")["y"].reshape(2, -1)
        np.testing.assert_array_equal(added, [[1] * times, [2] * times])
    assert [run.key for run in lox.runs(tmp_path / "none")] == [(1,), (2,)]


def test_a_failure_of_save_under_jit_is_raised_by_the_barrier(tmp_path):
    (tmp_path / "file").write_text("")
    f = jax.jit(lambda x: lox.save({"x": x}, tmp_path / "file" / "s"))
    f(1.0)
    with pytest.raises(RuntimeError, match=r"`lox\.save` raised NotADirectoryError"):
        lox.barrier()
    with pytest.raises(ValueError, match="not 'q'"):
        jax.jit(lambda x: lox.save({"x": x}, tmp_path, mode="q"))(1.0)
    with pytest.raises(TypeError, match=r"The value of 'x' is (or contains )?`None`"):
        lox.save({"x": None}, tmp_path)
