"""Packages that come with an extra."""

import importlib
from typing import Any


def imported(module: str, who: str, extra: str) -> Any:
    """The module, or an error that says who needs it and which extra has it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"{who} needs `pip install jax-lox[{extra}]`.", name=error.name
        ) from error
