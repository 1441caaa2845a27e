"""What runs of a session logged, as a writer was given it. No JAX."""

import dataclasses
from collections.abc import Collection, Iterable, Iterator
from typing import Any

import numpy as np

from lox_host.rows import Block
from lox_host.store.frames import Frame
from lox_host.store.layout import ROW, RUN, filled
from lox_host.store.reader import Reader, Snapshot, warn
from lox_host.tree import map_arrays
from lox_host.writer import Run


def run_of(fields: dict[str, Any]) -> Run:
    """The run that the journal of a session tells of, which may be older than a field."""
    names = [field.name for field in dataclasses.fields(Run)]
    own = {**fields, "key": tuple(fields["key"])}
    return Run(**{name: own[name] for name in names if name in own})


def recorded(
    now: Snapshot, frames: Iterable[Frame], ids: Collection[int]
) -> Iterator[Block]:
    """What some runs have in these frames, one after the other.

    What is damaged is left out, with a warning.
    """
    low, high = min(ids, default=0), max(ids, default=-1)
    for frame in frames:
        if frame.runs[0] > high or low > frame.runs[1]:
            continue
        # No more than one frame is held at a time.
        with Reader(now) as reader:
            block = _block(reader, frame)
        own = block and taken(block, np.isin(block.runs, list(ids)))
        if own:
            yield own


def taken(block: Block, which: np.ndarray) -> Block:
    """Some rows of a block."""
    if which.all():
        return block
    names = ("runs", "steps", "values", "valid", "masks", "order")
    arrays = {name: map_arrays(lambda x: x[which], getattr(block, name)) for name in names}
    return dataclasses.replace(block, **arrays)


def _block(reader: Reader, frame: Frame) -> Block | None:
    """The rows of a frame. None if they are damaged."""
    layout = reader.now.layouts[frame.group]
    columns = [reader.column(frame, i) for i in range(len(layout.columns))]
    if any(column is None for column in columns):
        warn(reader.now.folder, f"A frame of {frame.rows} rows")
        return None
    get: Any = columns.__getitem__
    keys = layout.keys.items()
    return Block(
        runs=get(RUN),
        steps={name: get(i) for name, i in layout.steps.items()},
        values={key: filled(own.tree, get) for key, own in keys},
        forms={key: own.form for key, own in keys},
        valid={key: get(own.valid) for key, own in keys if own.valid is not None},
        masks={name: get(i) for name, i in layout.masks.items()},
        order=get(ROW),
    )
