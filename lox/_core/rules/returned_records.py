"""Branches of `cond` and `switch` that return what they log.

`lox.log` returns its record. So the branches of

    jax.lax.cond(done, lambda: lox.log({"return": r}), lambda: None)

return different things, which JAX refuses. If each branch returns only a record or None,
the program cannot need the result. Then lox lets JAX trace the branches again, without the
records that they return, and `cond` returns None.

For this, lox wraps `jax.lax.cond` and `jax.lax.switch`. Code that imported these functions
by name before lox gets an error that says what to write instead.
"""

import functools as ft
from collections.abc import Callable, Iterable
from typing import Any

import jax
from jax.typing import ArrayLike

from lox._jax import patches
from lox._jax.types import PyTree, PyTreeDef
from lox._logdict.logdict import is_record, logdict


class _DifferentRecordsError(TypeError):
    """Branches return different records, or some a record and others nothing."""


@patches.implements("branches that return logs")
def _check_branches(check: Callable, *args: Any) -> None:
    """Say what to write if branches of a `cond` or `switch` return different records."""
    try:
        check(*args)
    except TypeError as error:
        # After the names and the functions of two branches: the forms of their outputs.
        trees = [getattr(form, "tree", form) for form in args[5:7]]
        kinds = [_is_logs(tree) for tree in trees]
        if not any(kinds):
            raise
        nothing = jax.tree.structure(None)
        is_all = all(
            is_logs or tree == nothing for is_logs, tree in zip(kinds, trees, strict=True)
        )
        raise (_DifferentRecordsError if is_all else TypeError)(
            f"{error}\n\nA branch returns the record that `lox.log` returns, and another "
            "branch returns something else. To log and return nothing, write "
            "`lambda: lox.log(...) and None`, or a `def` without `return`."
        ) from None


def _is_logs(tree: PyTreeDef) -> bool:
    # The type of the outermost container, and what it is made with. A leaf has neither.
    return (tree.node_data() or [None])[0] is logdict


@patches.implements("cond")
def _cond(cond: Callable, *args: PyTree, **kwargs: PyTree) -> PyTree:
    try:
        return cond(*args, **kwargs)
    except _DifferentRecordsError as error:
        # `cond(pred, true_fun, false_fun, *operands)`, any of these by keyword. What is not
        # callable at the place of a branch is an operand.
        silent = _Silent(error)
        pred, *rest = args
        branches = [silent(x) if callable(x) else x for x in rest[:2]]
        named = {
            name: silent(x) if name in ("true_fun", "false_fun") else x
            for name, x in kwargs.items()
        }
        return cond(pred, *branches, *rest[2:], **named)


@patches.implements("switch")
def _switch(
    switch: Callable,
    index: ArrayLike,
    branches: Iterable[Callable],
    *args: PyTree,
    **kwargs: PyTree,
) -> PyTree:
    branches = list(branches)  # It may be an iterator, and is needed twice.
    try:
        return switch(index, branches, *args, **kwargs)
    except _DifferentRecordsError as error:
        return switch(index, list(map(_Silent(error), branches)), *args, **kwargs)


class _Silent:
    """Wraps branches so that they return None in place of a record.

    Attributes:
        error: The error to raise if a branch returns other logs, which cannot be dropped.
    """

    def __init__(self, error: _DifferentRecordsError):
        self.error = error

    def __call__(self, branch: Callable) -> Callable:
        @ft.wraps(branch)
        def silent(*operands: PyTree) -> None:
            out = branch(*operands)
            if out is not None and not is_record(out):
                raise TypeError(*self.error.args) from None

        return silent
