"""The options that several transformations take."""

import warnings
from collections.abc import Iterable
from typing import Any

from jax.extend.core import ClosedJaxpr

from ._handlers import Collect
from ._interpret import records_in
from ._log import names_in


def selection(given: str | Iterable[str] | None, what: str) -> frozenset[str] | None:
    return None if given is None else frozenset(names_in(given, what))


def check_prefix(prefix: Any) -> None:
    if not isinstance(prefix, str):
        raise TypeError(f"`prefix` must be a string, not {prefix!r}.")


def check_positive(**numbers: int | None) -> None:
    for name, number in numbers.items():
        if number is not None and number < 1:
            raise ValueError(f"`{name}` must be at least 1, not {number}.")


def warn_of_no_match(transformation: str, handler: Collect, jaxpr: ClosedJaxpr) -> None:
    if handler.keys is None and handler.tags is None:
        return
    records = list(records_in(jaxpr))
    keys = {key for record in records for key in record.keys}
    tags = {tag for record in records for tag in record.tags}
    for what, wanted, there in (
        ("argnames", handler.keys, keys),
        ("tags", handler.tags, tags),
    ):
        if wanted is not None and not wanted <= there:
            warnings.warn(
                f"`{what}` {sorted(wanted - there)} of `{transformation}` match nothing "
                f"that is logged; there are {sorted(there)}.",
                stacklevel=4,
            )
