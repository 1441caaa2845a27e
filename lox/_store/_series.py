"""The rows of one key, from all the frames of a session that have some."""

import dataclasses
import itertools as it
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from lox._writer import Form, leaves, mapped

from ._dtypes import named
from ._layout import ROW, RUN, Layout, filled, numbers
from ._read import Reader, warn


@dataclasses.dataclass(frozen=True)
class Series:
    """Rows of one key. Each array has an axis of rows in front.

    Attributes:
        run: The id of the run of each row.
        row: The number of each row in the session.
        steps: The steps by name.
        masks: For steps that only some rows or examples have, which.
        valid: Which examples logged. None: all of them.
        value: The value, a tree of arrays.
        form: What else is known of the key.
    """

    run: np.ndarray
    row: np.ndarray
    steps: dict[str, np.ndarray]
    masks: dict[str, np.ndarray]
    valid: np.ndarray | None
    value: Any
    form: Form

    def __len__(self) -> int:
        return len(self.run)

    def map(self, fun: Callable[[np.ndarray], np.ndarray]) -> "Series":
        """Apply `fun` to every array."""
        return dataclasses.replace(self, **mapped(fun, self.arrays()))

    def arrays(self) -> dict[str, Any]:
        """All but the form."""
        fields = dataclasses.fields(self)
        return {field.name: getattr(self, field.name) for field in fields[:-1]}

    def by_run(self) -> dict[int, "Series"]:
        """The rows of each run, in the order of logging."""
        order = np.lexsort((self.row, self.run))
        sorted_ = self.map(lambda x: x[order])
        runs, starts = np.unique(sorted_.run, return_index=True)
        places = it.starmap(slice, it.pairwise([*starts, len(self)]))
        return {
            run: sorted_.map(lambda x, at=at: x[at])
            for run, at in zip(runs.tolist(), places, strict=True)
        }


def series(reader: Reader, key: str, run: int | None = None) -> Series:
    """The rows of a key, of one run or of all.

    Those that are damaged are left out, with a warning.
    """
    parts, lost = [], 0
    for number, layout in reader.now.layouts.items():
        if key not in layout.keys:
            continue
        parts.append(_empty(layout, key))
        for frame in reader.now.frames[number]:
            if run is not None and not frame.runs[0] <= run <= frame.runs[1]:
                continue
            part = _part(layout, key, lambda i, frame=frame: reader.column(frame, i))
            parts += [] if part is None else [part]
            lost += frame.rows if part is None else 0
    if lost:
        warn(reader.now.folder, f"A part of {key!r}, {lost} rows,")
    return _joined(key, parts)


def _part(layout: Layout, key: str, column: Callable[[int], Any]) -> Series | None:
    """The rows of a key in one frame. None if they are damaged."""
    own = layout.keys[key]
    valid = [] if own.valid is None else [own.valid]
    others = [*layout.steps.values(), *layout.masks.values(), *valid, *numbers(own.tree)]
    if any(column(i) is None for i in (RUN, ROW, *others)):
        return None
    return Series(
        run=column(RUN),
        row=column(ROW),
        steps={name: column(i) for name, i in layout.steps.items()},
        masks={name: column(i) for name, i in layout.masks.items()},
        valid=None if own.valid is None else column(own.valid),
        value=filled(own.tree, column),
        form=own.form,
    )


def _empty(layout: Layout, key: str) -> Any:
    columns = layout.columns
    zeros = [np.zeros((0, *column.shape), named(column.dtype)) for column in columns]
    return _part(layout, key, zeros.__getitem__)


def _joined(key: str, parts: Sequence[Series]) -> Series:
    """The rows of several parts in one."""
    _check(key, parts)
    steps = {name: step for part in parts for name, step in part.steps.items()}
    masked = [
        name for name in steps if any(name in p.masks or name not in p.steps for p in parts)
    ]
    valid = any(part.valid is not None for part in parts)
    whole = [_completed(part, steps, masked, valid) for part in parts]
    arrays = [iter([x for _, x in leaves(part.arrays())]) for part in whole]
    tags = dict.fromkeys(tag for part in parts for tag in part.form.tags)
    time = any(part.form.time for part in parts)
    joined = whole[0].map(lambda _: np.concatenate([next(each) for each in arrays]))
    form = dataclasses.replace(parts[0].form, tags=tuple(tags), time=time)
    return dataclasses.replace(joined, form=form)


def _completed(
    part: Series, steps: dict[str, np.ndarray], masked: list[str], valid: bool
) -> Series:
    """The part with all `steps`, masked where it lacks them, and with `valid`."""
    leaf = next(x for _, x in leaves(part.value))
    front = leaf.shape[: 1 + part.form.batch]

    def step(name: str) -> np.ndarray:
        like = steps[name]
        missing = np.zeros((len(part), *like.shape[1:]), like.dtype)
        return part.steps.get(name, missing)

    def mask(name: str) -> np.ndarray:
        return part.masks.get(name, np.full(front, name in part.steps))

    return dataclasses.replace(
        part,
        steps={name: step(name) for name in steps},
        masks={name: mask(name) for name in masked},
        valid=np.full(front, True) if valid and part.valid is None else part.valid,
    )


def _check(key: str, parts: Sequence[Series]) -> None:
    """Rows of one key may have other steps, but not another form."""
    forms = list(dict.fromkeys(_described(part) for part in parts))
    if len(forms) > 1:
        raise ValueError(
            f"The rows of {key!r} do not have one form: some are {forms[0]} and some are "
            f"{forms[1]}, which no array can hold. Load the other keys with `argnames`, "
            "and log values of different forms under different keys."
        )
    for name in {name for part in parts for name in part.steps}:
        steps = {_kind(part.steps[name]) for part in parts if name in part.steps}
        if len(steps) > 1:
            raise ValueError(
                f"The step {name!r} of {key!r} does not have one form: it is "
                f"{' and '.join(sorted(steps))}. Load the other keys with `argnames`."
            )


def _described(part: Series) -> str:
    value = mapped(_kind, part.value)  # pyright: ignore[reportArgumentType]
    batch = f" in batches of {part.form.batch} axes" if part.form.batch else ""
    return f"{value}{batch}".replace("'", "")


def _kind(array: np.ndarray) -> str:
    return f"{array.dtype}[{','.join(map(str, array.shape[1:]))}]"
