"""Packages that come with an extra of `jax-lox`."""

import importlib
from types import ModuleType


def import_extra(module: str, who: str, extra: str) -> ModuleType:
    """Import a module, or raise an error that says who needs it and which extra has it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"{who} needs `pip install 'jax-lox[{extra}]'`, or `pip install '.[{extra}]'` "
            "in a clone.",
            name=error.name,
        ) from error
