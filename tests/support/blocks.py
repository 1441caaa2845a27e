"""Runs and blocks of rows, as writers are given them."""

import dataclasses

import numpy as np

from lox.loggers import Batch, Block, Form, Run
from lox_host.rows import PACKET_STRIDE


def run(id=0, name=None, **config):
    return Run(id, name or f"run-{id}", (0, id), config, 0.0, "group")


def block(values, *, runs=None, steps=None, valid=None, expected=None, keys=()):
    """A block of as many rows as the first array has, by default all of run 0."""
    rows = len(next(iter((steps or values).values()))) if runs is None else len(runs)
    return Block(
        np.zeros(rows, np.int32) if runs is None else np.asarray(runs, np.int32),
        {name: np.asarray(step) for name, step in (steps or {}).items()},
        values,
        {key: Form(keys=tuple(keys)) for key in values},
        valid or {},
        expected=expected,
    )


def in_packet(number, block):
    """The block, as if it had arrived with a later packet."""
    return dataclasses.replace(block, order=block.order + number * PACKET_STRIDE)


def written(writer, *blocks, runs=None):
    """Have a writer write blocks, one batch each, and close all runs."""
    runs = [run()] if runs is None else runs
    for each in runs:
        writer.open(each)
    for each in blocks:
        writer.write(Batch([each]))
        writer.flush()
    for each in runs:
        writer.close(each)
