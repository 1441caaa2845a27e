"""What a batch of blocks looks like row by row."""

import numpy as np

from lox.loggers import Batch
from support.blocks import block, in_packet

X = np.arange(3.0)


def rows(*blocks):
    """The rows of blocks that came one after the other."""
    batch = Batch([in_packet(i, block) for i, block in enumerate(blocks)])
    return [(row.run, row.steps, row.values) for row in batch.rows()]


def test_rows_of_one_step_are_one_row():
    loss = block({"loss": X}, steps={"step": [0, 1, 2]})
    norm = block({"norm": X[1:]}, steps={"step": [1, 2]})
    assert rows(loss, norm) == [
        (0, {"step": 0}, {"loss": 0.0}),
        (0, {"step": 1}, {"loss": 1.0, "norm": 1.0}),
        (0, {"step": 2}, {"loss": 2.0, "norm": 2.0}),
    ]


def test_a_key_that_is_there_already_begins_another_row():
    a = block({"loss": X[:1]}, steps={"step": [7]})
    assert rows(a, a) == 2 * [(0, {"step": 7}, {"loss": 0.0})]


def test_rows_without_steps_stay_apart():
    assert rows(block({"a": X[:1]}), block({"b": X[:1]})) == [
        (0, {}, {"a": 0.0}),
        (0, {}, {"b": 0.0}),
    ]


def test_runs_and_steps_of_other_names_stay_apart():
    a = block({"a": X[:2]}, runs=[3, 4], steps={"step": [1, 1]})
    b = block({"b": X[:2]}, runs=[3, 4], steps={"episode": [1, 1]})
    assert [run for run, _, _ in rows(a, b)] == [3, 4, 3, 4]


def test_trees_keep_their_structure():
    tree = {"w": X, "rest": (X, [X], None)}
    (_, _, values), *_ = rows(block({"p": tree}, runs=[0, 0, 0]))
    assert values == {"p": {"w": 0.0, "rest": (0.0, [0.0], None)}}


def test_examples_that_did_not_log_are_masked():
    valid = np.array([[True, True], [True, False], [False, False]])
    values = {"x": np.arange(12).reshape(3, 2, 2)}
    every = rows(block(values, steps={"step": X}, valid={"x": valid}))
    assert [values["x"].tolist() for _, _, values in every[:2]] == [
        [[0, 1], [2, 3]],
        [[4, 5], [None, None]],
    ]
    assert not np.ma.isMaskedArray(every[0][2]["x"])
    assert every[2] == (0, {"step": 2.0}, {})
