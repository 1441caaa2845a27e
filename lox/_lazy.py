"""Public names that are imported when they are first used.

Most programs log and collect, and need no store, no writer and no plot. What these need
takes as long to import as the rest of lox.
"""

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any


def lazy_names(
    package: str, modules: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the `__getattr__` and the `__dir__` of a package with such names.

    Args:
        package: The name of the package.
        modules: By public name the module that holds it. A name that is its own module,
            such as `"lox.wandb"`, stands for the module.
    """
    namespace = vars(sys.modules[package])

    def get(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = importlib.import_module(modules[name])
        is_module = modules[name] == f"{package}.{name}"
        namespace[name] = module if is_module else getattr(module, name)
        return namespace[name]

    def names() -> list[str]:
        return sorted({*namespace, *modules})

    return get, names
