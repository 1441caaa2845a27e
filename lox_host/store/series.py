"""The rows of one key, from all the frames of a session that have some."""

import dataclasses
import itertools as it
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from lox_host.rows import Form
from lox_host.store.dtypes import named
from lox_host.store.frames import Frame
from lox_host.store.layout import ROW, RUN, Layout, filled, numbers
from lox_host.store.reader import Reader, Snapshot, warn
from lox_host.tree import leaves, map_arrays


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
        return dataclasses.replace(self, **map_arrays(fun, self.arrays()))

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


def series(reader: Reader, key: str, runs: Sequence[int]) -> dict[int, Series]:
    """The rows of a key, of each of the runs that has some.

    Those that are damaged are left out, with a warning.
    """
    parts: dict[int, list[Series]] = {}
    low, high, lost = min(runs), max(runs), 0
    for number, layout in reader.now.layouts.items():
        frames = reader.now.frames[number] if key in layout.keys else []
        near = [frame for frame in frames if frame.runs[0] <= high and low <= frame.runs[1]]
        found = [(frame, _of_frame(reader, frame, key, runs)) for frame in near]
        lost += sum(frame.rows for frame, part in found if part is None)
        whole = [part for _, part in found if part is not None]
        for run, own in _concatenated(whole).by_run().items() if whole else ():
            parts.setdefault(run, []).append(own)
    if lost:
        warn(reader.now.folder, f"A part of {key!r}, {lost} rows,")
    return {run: _joined(key, own) for run, own in parts.items()}


def no_rows(now: Snapshot, key: str) -> Series:
    """A key of a loop without iterations."""
    layouts = (layout for layout in now.layouts.values() if key in layout.keys)
    return _joined(key, [_empty(layout, key) for layout in layouts])


def aligned(parts: Sequence[Series]) -> list[Series]:
    """The parts with the same steps and tags, masked where they lack them."""
    steps = {name: step for part in parts for name, step in part.steps.items()}
    masked = [
        name for name in steps if any(name in p.masks or name not in p.steps for p in parts)
    ]
    valid = any(part.valid is not None for part in parts)
    tags = tuple(dict.fromkeys(tag for part in parts for tag in part.form.tags))
    time = any(part.form.time for part in parts)
    whole = (_completed(part, steps, masked, valid) for part in parts)
    return [
        dataclasses.replace(part, form=dataclasses.replace(part.form, tags=tags, time=time))
        for part in whole
    ]


def _of_frame(reader: Reader, frame: Frame, key: str, runs: Sequence[int]) -> Series | None:
    """The rows of a key and of some runs in one frame. None if they are damaged."""
    layout, ids = reader.now.layouts[frame.group], reader.column(frame, RUN)
    if ids is None:
        return None
    which = np.isin(ids, runs)
    if not which.any():
        return _empty(layout, key)
    part = _part(layout, key, lambda i: reader.column(frame, i))
    return part if part is None or which.all() else part.map(lambda x: x[which])


def _part(layout: Layout, key: str, column: Callable[[int], Any]) -> Series | None:
    """The rows of a key from the columns of one frame. None if they are damaged."""
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
    """The rows of one run, from the parts of several layouts, in the order of logging."""
    if len(parts) == 1:
        return parts[0]
    _check(key, parts)
    joined = _concatenated(aligned(parts))
    order = np.argsort(joined.row, kind="stable")
    return joined.map(lambda x: x[order])


def _concatenated(parts: Sequence[Series]) -> Series:
    """The rows of parts with the same arrays. NumPy promotes their dtypes."""
    if len(parts) == 1:
        return parts[0]
    arrays = [iter([x for _, x in leaves(part.arrays())]) for part in parts]
    return parts[0].map(lambda _: np.concatenate([next(each) for each in arrays]))


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
    """Rows of one key may have other steps and dtypes, but not another form."""
    _check_form(
        f"The rows of {key!r}",
        {_described(part, _kind): (_described(part, _shape), part.value) for part in parts},
    )
    for name in {name: None for part in parts for name in part.steps}:
        steps = [part.steps[name] for part in parts if name in part.steps]
        forms = {_kind(step): (_shape(step), step) for step in steps}
        _check_form(f"The rows of the step {name!r} of {key!r}", forms)


def _check_form(what: str, forms: dict[str, tuple[str, Any]]) -> None:
    """Check that one array can hold all forms, each with its shape and an example."""
    if _fit(forms.values()):
        return
    pairs = it.combinations(forms, 2)
    one, other = next(pair for pair in pairs if not _fit(forms[name] for name in pair))
    raise ValueError(
        f"{what} do not have one form: some are {one} and some are {other}, which no array "
        "can hold. Load the other keys with `argnames`, and log values of different forms "
        "under different keys."
    )


def _fit(forms: Iterable[tuple[str, Any]]) -> bool:
    """Whether the shapes are the same, and the dtypes can be promoted."""
    shapes, trees = zip(*forms, strict=True)
    if len(set(shapes)) > 1:
        return False
    arrays = ([x for _, x in leaves(tree)] for tree in trees)
    try:
        for same in zip(*arrays, strict=True):
            np.result_type(*same)
    except TypeError:
        return False
    return True


def _described(part: Series, kind: Callable[[np.ndarray], str]) -> str:
    value = map_arrays(kind, part.value)
    batch = f" in batches of {part.form.batch} axes" if part.form.batch else ""
    impls = ", ".join(impl for _, impl in part.form.keys)
    return f"{value}{batch}{impls and f' as a PRNG key, {impls}'}".replace("'", "")


def _kind(array: np.ndarray) -> str:
    return f"{array.dtype}{_shape(array)}"


def _shape(array: np.ndarray) -> str:
    return f"[{','.join(map(str, array.shape[1:]))}]"
