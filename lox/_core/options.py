"""What `spool` and `tap` share: how they check options, and trace a function."""

import pathlib
import sys
import warnings
from collections.abc import Callable, Iterable, Sequence

import jax
import numpy as np

from lox._core.analysis import check, lets_buffer_everywhere, records_in
from lox._core.collect import Collect
from lox._core.interpreter import Interpreter
from lox._core.log import names_in
from lox._core.record import Record
from lox._core.staging import Traced
from lox._jax.types import PyTree


def selection(given: str | Iterable[str] | None, what: str) -> frozenset[str] | None:
    """Return the keys or tags to select as a set. None: all."""
    return None if given is None else frozenset(names_in(given, what))


def check_prefix(prefix: object) -> None:
    if not isinstance(prefix, str):
        raise TypeError(f"`prefix` must be a string, not {prefix!r}.")


def check_positive(**numbers: object) -> None:
    for name, number in numbers.items():
        if number is None:
            continue
        if isinstance(number, bool) or not isinstance(number, int | np.integer):
            raise TypeError(f"`{name}` must be a whole number, not {number!r}.")
        if number < 1:
            raise ValueError(f"`{name}` must be at least 1, not {number}.")


def listening(
    transformation: str, handler: Collect, fun: Callable, *args: PyTree, **kwargs: PyTree
) -> tuple[Traced, Collect]:
    """Trace a function for a transformation, and prepare the handler for its records."""
    traced = Interpreter(handler).trace(fun, *args, **kwargs)
    check(traced.jaxpr.jaxpr)
    records = list(records_in(traced.jaxpr))
    _warn_of_no_match(transformation, handler, records)
    return traced, handler.prepared(records, whole=lets_buffer_everywhere(traced.jaxpr))


def _warn_of_no_match(
    transformation: str, handler: Collect, records: Sequence[Record]
) -> None:
    keys = {key for record in records for key in record.keys}
    tags = {tag for record in records for tag in record.tags}
    for what, wanted, logged in (
        ("argnames", handler.keys, keys),
        ("tags", handler.tags, tags),
        ("reduce", {key for key, _ in handler.reduce if key is not None}, keys),
    ):
        if wanted is not None and not wanted <= logged:
            warnings.warn(
                f"`{what}` {sorted(wanted - logged)} of `{transformation}` match nothing "
                f"that is logged. Logged were {sorted(logged)}.",
                stacklevel=frames_of_lox() + 1,
            )


def frames_of_lox() -> int:
    """Count the frames of lox and JAX above the user's line, so that a warning names it."""
    folders = {pathlib.Path(__file__).parents[1], pathlib.Path(jax.__file__).parent}
    frame, number = sys._getframe(1), 0
    while frame is not None:
        if folders.isdisjoint(pathlib.Path(frame.f_code.co_filename).parents):
            break
        frame, number = frame.f_back, number + 1
    return number
