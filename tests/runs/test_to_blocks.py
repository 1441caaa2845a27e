"""Logs as blocks: which keys share one, and which rows are in it."""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lox
from lox._logdict.numpy import to_numpy
from lox._runs.to_blocks import to_blocks


class Pair(NamedTuple):
    first: jax.Array
    second: jax.Array


def made(f, *args, **options):
    _, logs = lox.spool(f)(*args)
    return to_blocks(to_numpy(logs.rows()), 7, **options)


def scanned(log, n=4):
    def f():
        jax.lax.scan(lambda c, i: (c, log(i) and None), 0, jnp.arange(n))

    return f


def test_keys_with_the_same_steps_share_a_block():
    def log(i):
        lox.log({"a": i, "b": 2 * i}, tags="t", step=i)
        lox.log({"c": i})

    first, second = made(scanned(log), expected={"a": 4, "c": math.inf})

    assert list(first.values) == ["a", "b"]
    assert list(second.values) == ["c"]
    np.testing.assert_array_equal(first.values["b"], [0, 2, 4, 6])
    np.testing.assert_array_equal(first.steps["step"], [0, 1, 2, 3])
    np.testing.assert_array_equal(first.runs, [7] * 4)
    assert (first.forms["a"].tags, first.forms["a"].time, first.expected) == (
        ("t",),
        True,
        4,
    )
    assert second.expected is None


def test_a_single_row_has_an_axis_of_rows():
    (block,) = made(lambda: lox.log({"x": jnp.ones(3)}) and None)

    assert block.values["x"].shape == (1, 3)
    assert not block.forms["x"].time


def test_rows_that_were_not_logged_are_left_out():
    def log(i):
        jax.lax.cond(i % 2 == 1, lambda: lox.log({"x": i}, step=i) and None, lambda: None)

    (block,) = made(scanned(log))

    np.testing.assert_array_equal(block.values["x"], [1, 3])
    np.testing.assert_array_equal(block.steps["step"], [1, 3])
    assert made(scanned(log, n=1)) == []


def test_a_loop_of_no_iterations_leaves_a_block_without_rows():
    (block,) = made(scanned(lambda i: lox.log({"x": i}), n=0))

    assert len(block) == 0
    assert block.values["x"].shape == (0,)


def test_a_step_that_some_rows_lack_begins_another_block():
    def f():
        for i in range(5):
            lox.log({"x": i}, **({"step": i} if i in (1, 2) else {}))
            lox.log({"y": i}, **({"step": i} if i < 3 else {}))

    each = made(f)

    x, y = ([b for b in each if key in b.values] for key in "xy")
    assert [b.values["x"].tolist() for b in x] == [[0], [1, 2], [3, 4]]
    assert [b.values["y"].tolist() for b in y] == [[0, 1, 2], [3, 4]]
    assert [list(b.steps) for b in x] == [[], ["step"], []]


def test_axes_of_vmap_come_after_that_of_rows():
    def f(x):
        jax.lax.cond(x > 1, scanned(lambda i: lox.log({"x": x + i}, step=i)), lambda: None)

    _, outer = jax.vmap(lox.spool(f))(jnp.arange(3))
    _, inner = lox.spool(jax.vmap(f))(jnp.arange(3))

    for logs, lead in (outer, 1), (inner, 0):
        (block,) = to_blocks(to_numpy(logs.rows()), 0)
        assert (block.forms["x"].lead, block.forms["x"].batch) == (lead, 1)
        assert block.values["x"].shape == (4, 3)
        np.testing.assert_array_equal(block.values["x"][:, 2], [2, 3, 4, 5])
        np.testing.assert_array_equal(block.valid["x"], [[False, False, True]] * 4)
        assert block.steps["step"].shape == (4, 3)


def test_a_step_that_some_examples_lack_has_a_mask():
    def f(x):
        with_step = lambda: lox.log({"x": x}, step=x) and None  # noqa: E731
        jax.lax.cond(x > 1, with_step, lambda: lox.log({"x": x}) and None)

    (block,) = made(jax.vmap(f), jnp.arange(4))

    np.testing.assert_array_equal(block.masks["step"], [[False, False, True, True]])


def test_nodes_of_other_classes_become_dictionaries_and_tuples():
    @jax.tree_util.register_pytree_node_class
    class Node:
        def __init__(self, x):
            self.x = x

        def tree_flatten(self):
            return [self.x], None

        @classmethod
        def tree_unflatten(cls, _, children):
            return cls(*children)

    tree = {"b": Pair(jnp.int32(1), jnp.int32(2)), "a": [None, Node(jnp.int32(3))]}
    rows = to_numpy(lox.logdict({"x": tree}).rows())

    for _ in range(2):
        (block,) = to_blocks(rows, 0, {"x": ((1, "rbg"),)})
        assert list(block.values["x"]) == ["a", "b"]
        assert block.values["x"] == {"a": [None, (3,)], "b": {"first": 1, "second": 2}}
        assert block.forms["x"].keys == ((1, "rbg"),)


@pytest.mark.parametrize("n", [1, 3])
def test_blocks_of_the_same_logs_can_be_joined(n):
    first, second = (made(scanned(lambda i: lox.log({"x": i}), n))[0] for _ in range(2))

    assert first.layout == second.layout
    assert first.nbytes == 4 * n
