"""Print what `import lox` changes in JAX, as JSON; the arguments are modules to look at.

It looks at every module, class, primitive and registry of JAX before and after the import,
so it also finds what nobody has thought of. It runs as a program of its own, since lox can
be imported only once.
"""

import importlib
import json
import pkgutil
import sys
from collections.abc import Hashable, Iterator
from typing import Any

from jax.extend.core import Primitive


def places(modules: list[Any]) -> Iterator[tuple[Any, Any, Any]]:
    """Yield the owner, name and value of all that can be changed."""
    for module in modules:
        for name, value in list(vars(module).items()):
            yield module, name, value
            yield from inside(value)


def inside(owner: Any) -> Iterator[tuple[Any, Any, Any]]:
    if isinstance(owner, type | Primitive):
        for name, value in list(vars(owner).items()):
            yield owner, name, value
    elif isinstance(owner, dict):
        for key, value in list(owner.items()):
            yield owner, key, value
            if isinstance(value, dict):  # lowerings, by platform
                yield from inside(value)
    elif isinstance(owner, set | list):
        for element in owner:
            yield owner, element, None


def place(owner: Any, name: Any) -> Hashable:
    return id(owner), name if isinstance(name, str) else id(name)


def main() -> None:
    modules = [importlib.import_module(name) for name in sys.argv[1:]]
    before = list(places(modules))  # kept alive, so that no `id` is given twice
    values = {place(owner, name): value for owner, name, value in before}

    from lox._jax.patches import ADDITIONS, PATCHES, install

    changed = [
        (owner, name)
        for owner, name, value in places(modules)
        if values.get(place(owner, name), values) is not value
    ]
    imported = list(places(modules))
    install()
    again = places(modules)
    is_same = all(x[2] is y[2] for x, y in zip(imported, again, strict=True))

    patched = {place(*patch.locate()): patch.name for patch in PATCHES if patch.is_needed}
    registries = [
        pkgutil.resolve_name(name) for added in ADDITIONS for name in added.registries
    ]
    found, unexplained = set(), []
    for owner, name in changed:
        is_new = place(owner, name) not in values
        if place(owner, name) in patched:
            found.add(patched[place(owner, name)])
        elif not (is_new and any(contains(registry, owner) for registry in registries)):
            unexplained.append(f"{getattr(owner, '__name__', type(owner))}: {name}")
    print(json.dumps([sorted(found), unexplained, is_same]))


def contains(registry: Any, owner: Any) -> bool:
    inner = registry.values() if isinstance(registry, dict) else ()
    return owner is registry or any(owner is value for value in inner)


if __name__ == "__main__":
    main()
