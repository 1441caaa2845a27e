"""`logdict`: a dict, a pytree, and the table of what it can do."""

import copy
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lox


def train(x, n=3):
    """Logs `loss` in a loop, `total` once, `rare` in a branch."""

    def step(x, i):
        lox.log({"loss": x}, step=i, tags="metric")
        rare = lambda: lox.log({"rare": x}, episode=i) and None  # noqa: E731
        jax.lax.cond(i % 2 == 1, rare, lambda: None)
        return x * 2, None

    x, _ = jax.lax.scan(step, x, jnp.arange(n))
    lox.log({"total": x})
    return x


@pytest.fixture
def logs():
    return lox.spool(train)(1.0)[1]


def assert_same(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    jax.tree.map(np.testing.assert_array_equal, a, b)


def test_it_is_a_dict_in_the_order_of_logging(logs):
    assert isinstance(logs, dict)
    assert list(logs) == ["loss", "rare", "total"]
    assert type(logs.data) is dict
    assert list(logs.data) == list(logs)


def test_steps_are_attributes(logs):
    assert logs.step["loss"].tolist() == [0, 1, 2]
    assert list(logs.step) == ["loss"]
    assert logs.episode["rare"].tolist()[1] == 1
    assert set(logs.steps) == {"step", "episode"}
    with pytest.raises(
        AttributeError, match=r"no step 'epoch'; their steps are \['episode', 'step'\]"
    ):
        logs.epoch
    with pytest.raises(AttributeError, match="no step 'step', and no other steps"):
        lox.logdict().step


def test_valid_and_tags(logs):
    assert {key: mask.tolist() for key, mask in logs.valid.items()} == {
        "rare": [False, True, False]
    }
    assert logs.tags == {"loss": ("metric",), "rare": (), "total": ()}


def test_a_step_that_some_rows_lack_is_masked():
    def f():
        lox.log({"x": 1.0}, step=5)
        lox.log({"x": 2.0})

    _, logs = lox.spool(f)()

    assert logs.step.valid["x"].tolist() == [True, False]
    assert logs.step["x"][0] == 5
    assert not logs.valid


def test_compact_keeps_what_was_logged(logs):
    compact = logs.compact()

    assert compact["rare"].tolist() == [2.0]
    assert compact.episode["rare"].tolist() == [1]
    assert compact["loss"].tolist() == [1.0, 2.0, 4.0]
    assert not compact.valid


def test_compact_drops_a_key_without_rows():
    def f(x):
        jax.lax.cond(
            x > 0,
            lambda: lox.log({"a": x}) and None,
            lambda: lox.log({"b": x}) and None,
        )

    assert list(lox.spool(f)(1.0)[1].compact()) == ["a"]
    assert list(lox.spool(f)(-1.0)[1].compact()) == ["b"]
    assert not lox.spool(f)(1.0)[1].compact().valid


def test_compact_of_a_batch_moves_rows_to_the_front():
    def f(n):
        def step(_, i):
            jax.lax.cond(
                i % n == 0, lambda: lox.log({"i": i}, step=i) and None, lambda: None
            )
            return None, None

        jax.lax.scan(step, None, jnp.arange(6))

    _, behind = lox.spool(jax.vmap(f))(jnp.array([2, 3]))
    _, front = jax.vmap(lox.spool(f))(jnp.array([2, 3]))

    assert front.compact()["i"][0].tolist() == [0, 2, 4]
    assert front.compact()["i"][1, :2].tolist() == [0, 3]
    assert front.compact().step["i"][1, :2].tolist() == [0, 3]
    assert front.compact().valid["i"].tolist() == [[True] * 3, [True, True, False]]
    assert behind.compact()["i"][:, 0].tolist() == [0, 2, 4]
    assert behind.compact().valid["i"].tolist() == [
        [True, True],
        [True, True],
        [True, False],
    ]


def test_compact_of_keys_and_single_rows():
    def f(x):
        def some():
            lox.log({"key": jax.random.key(7)})
            lox.log({"key": jax.random.key(8)})

        jax.lax.cond(x > 0, some, lambda: lox.log({"key": jax.random.key(9)}) and None)

    logs = jax.vmap(lox.spool(f))(jnp.array([-1.0, -2.0]))[1].compact()

    assert logs["key"].shape == (2, 1)
    assert (
        jax.random.key_data(logs["key"][0, 0]) == jax.random.key_data(jax.random.key(9))
    ).all()


def test_compact_under_jit_is_an_error():
    with pytest.raises(
        TypeError, match=r"`logs.compact\(\)` was called under `jit`.*'rare'"
    ):
        jax.jit(lambda x: lox.spool(train)(x)[1].compact())(1.0)


def test_slice_takes_rows(logs):
    part = logs.slice[1:]

    assert part["loss"].tolist() == [2.0, 4.0]
    assert part.step["loss"].tolist() == [1, 2]
    assert part.valid["rare"].tolist() == [True, False]
    assert part["total"].shape == (0,)
    assert logs.slice[:1]["total"] == 8.0
    assert logs.slice[::2]["loss"].tolist() == [1.0, 4.0]
    with pytest.raises(TypeError, match=r"takes a slice of rows such as .*, not 3"):
        logs.slice[3]


def test_slice_knows_the_time_axis_after_vmap():
    batch = jax.vmap(lox.spool(train))(jnp.arange(2.0))[1]
    twice = jax.vmap(jax.vmap(lox.spool(train)))(jnp.ones((2, 5)))[1]
    inside = lox.spool(jax.vmap(train))(jnp.arange(2.0))[1]

    assert batch.slice[:2]["loss"].shape == (2, 2)
    assert twice.slice[:2]["loss"].shape == (2, 5, 2)
    assert inside.slice[:1]["loss"].shape == (1, 2)
    assert jax.tree.map(lambda x: x[0], batch).slice[:2]["loss"].shape == (2,)


def test_filter_prefix_and_union(logs):
    assert list(logs.filter(lambda key, value: value.ndim)) == ["loss", "rare"]
    assert list(logs.prefix("a/")) == ["a/loss", "a/rare", "a/total"]
    assert logs.prefix("a/").step["a/loss"].tolist() == [0, 1, 2]
    other = lox.logdict({"total": 1.0, "more": 2.0}, step={"more": 3})
    both = logs | other
    assert both["total"] == 1.0
    assert both.step["more"] == 3
    assert both.step["loss"].tolist() == [0, 1, 2]
    assert "step" not in (logs | {"loss": 0.0}).steps
    assert logs["total"] == 8.0
    with pytest.raises(TypeError):
        logs | 3
    with pytest.raises(TypeError):
        logs + 3


def test_the_sum_is_the_logs_of_both_in_sequence():
    def first(x):
        lox.log({"a": x, "b": x}, step=0)
        return train(x)

    def second(x):
        lox.log({"b": x})
        lox.log({"c": x}, step=0)
        return train(x, n=2)

    def both(x):
        return first(x), second(x)

    x = jnp.float32(3.0)
    expected = lox.spool(both)(x)[1]

    assert_same(lox.spool(first)(x)[1] + lox.spool(second)(x)[1], expected)
    xs = jnp.arange(4.0)
    expected = jax.vmap(lox.spool(both))(xs)[1]
    assert_same(
        jax.vmap(lox.spool(first))(xs)[1] + jax.vmap(lox.spool(second))(xs)[1], expected
    )
    expected = lox.spool(jax.vmap(both))(xs)[1]
    assert_same(
        lox.spool(jax.vmap(first))(xs)[1] + lox.spool(jax.vmap(second))(xs)[1], expected
    )


def test_the_sum_of_different_shapes_names_the_key():
    with pytest.raises(
        ValueError, match=r"'x' is logged as float32\[2\] .* and as float32\[\]"
    ):
        lox.log({"x": jnp.ones(2)}) + lox.log({"x": jnp.ones(())})


def test_changes_keep_steps_with_their_keys(logs):
    del logs["loss"]
    assert list(logs) == ["rare", "total"]
    assert "step" not in logs.steps
    logs["total"] = logs["total"] * 2
    assert logs["total"] == 16.0
    logs["rare"] = logs["rare"] + 1
    assert list(logs.episode) == ["rare"]
    logs["rare"] = jnp.zeros((2, 2))
    assert not logs.steps
    assert logs.setdefault("rare").shape == (2, 2)
    assert logs.setdefault("new", 3) == 3
    assert logs.pop("new") == 3
    assert logs.pop("new", None) is None
    logs.update({"other": 1.0})
    assert logs.popitem() == ("other", 1.0)
    logs |= lox.logdict({"z": 1.0}, step={"z": 4})
    assert logs.step == {"z": 4}
    logs.clear()
    assert not logs
    assert not logs.tags


def test_it_is_a_pytree_whose_structure_can_be_compared(logs):
    again = lox.spool(train)(2.0)[1]

    assert jax.tree.structure(logs) == jax.tree.structure(again)
    assert hash(jax.tree.structure(logs)) == hash(jax.tree.structure(again))
    assert jax.tree.structure(logs) != jax.tree.structure(logs.prefix("a/"))
    traces = []
    double = jax.jit(lambda logs: traces.append(1) or jax.tree.map(lambda x: x + x, logs))
    doubled = double(double(logs))
    assert len(traces) == 1
    assert list(doubled) == list(logs)
    assert doubled.step["loss"].tolist() == [0, 4, 8]
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree.leaves_with_path(logs)]
    assert paths[:4] == ["['loss']", "['rare']", "['total']", ".meta[0][0]['step']"]


def test_copies_and_pickles_are_the_same(logs):
    for same in (
        copy.copy(logs),
        copy.deepcopy(logs),
        logs.copy(),
        pickle.loads(pickle.dumps(logs)),
    ):
        assert isinstance(same, lox.logdict)
        assert same is not logs
        assert_same(same, logs)
    deep = copy.deepcopy(lox.logdict({"x": np.zeros(2)}))
    assert deep["x"] is not None


def test_it_prints_short():
    def show(**data):
        return repr(lox.spool(lambda: lox.log(data) and None)()[1])

    assert show(x=1.0, n=3, yes=True) == "{'x': 1.0, 'n': 3, 'yes': True}"
    assert show(x=jnp.arange(3)) == "{'x': [0, 1, 2]}"
    assert show(x=jnp.zeros((2, 2))) == "{'x': [[0.0, 0.0], [0.0, 0.0]]}"
    assert show(x=jnp.arange(100)) == "{'x': int32[100] [0, 1, ..., 98, 99]}"
    assert show(x=jnp.float32(0.1)) == "{'x': 0.1}"
    assert show(x=jax.random.key(0)) == "{'x': key<fry>[]}"
    assert show(x={"a": (1, [2.0])}) == "{'x': {'a': (1, [2.0])}}"
    assert show(x=(1,)) == "{'x': (1,)}"
    assert str(lox.logdict({"s": 1.5})) == "{'s': 1.5}"
    shown = []
    jax.jit(lambda x: shown.append(repr(lox.logdict({"x": x}))))(jnp.ones(3))
    deleted = jnp.arange(3.0) + 1
    deleted.delete()
    shown += [repr(lox.logdict({"x": deleted}))]
    assert shown == 2 * ["{'x': float32[3]}"]


def test_keywords_alone_are_values_as_those_of_a_dict():
    assert lox.logdict(x=1, y=2) == {"x": 1, "y": 2}
    assert repr(lox.logdict(x=1)) == "{'x': 1}"
    assert lox.logdict() == {}
    logs = lox.logdict({"x": 1}, step={"x": 3})
    assert (logs, logs.step["x"]) == ({"x": 1}, 3)
    assert lox.logdict({}, step={}) == {}
