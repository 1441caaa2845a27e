"""Find stores: a store itself, all stores below a folder, or all that match a glob.

For example, `results` is a store, `multirun` means all stores below it, such as those of a
Hydra sweep, and `multirun/*/results` means all stores that match.
"""

import glob
import os
import re
from collections.abc import Iterable, Iterator

from lox_host.store import (
    Path,
    absolute,
    find_stores as expand_address,
    is_store,
    is_url,
)

# Folders without runs that may have many folders inside.
_SKIPPED = {"__pycache__", "node_modules", "site-packages", "venv"}
# The most folders to search for a hint in an error message.
HINT_FOLDERS = 2000


def find_stores(paths: Path | Iterable[Path]) -> list[str]:
    """Return the stores that paths mean, each once, in the order of the paths.

    A path without any store is returned as it is. Opening it raises a good error.
    """
    given = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    found: dict[str, str] = {}
    for path in given:
        # Opening an address tells whether it is a store.
        if is_url(path):
            text = os.fspath(path)
            urls = stores_at(text) if "*" in text else [text]
            found |= {absolute(url): url for url in urls or [text]}
            continue
        text = os.path.expanduser(os.fspath(path))
        for store in stores_at(text) or [text]:
            found.setdefault(os.path.realpath(store), store)
    return list(found.values())


def stores_at(path: str, most: int | None = None) -> list[str]:
    """Return the stores that one path means, which may be none."""
    if is_url(path):
        return expand_address(path) if "*" in path else [path] * is_store(path)
    if os.path.exists(path):
        return stores_below(path, most)
    matches = sorted(glob.glob(path, recursive=True), key=_natural)
    return [store for match in matches for store in stores_below(match, most)]


def stores_below(folder: str, most: int | None = None) -> list[str]:
    """Return the folder if it is a store, or all stores in it.

    Args:
        folder: Where to look.
        most: How many folders to look at. None: all.
    """
    found = []
    for number, place in enumerate(_walk(folder)):
        if most is not None and number >= most:
            break
        if is_store(place):
            found.append(os.path.normpath(place))
    return sorted(found, key=_natural)


def _walk(folder: str) -> Iterator[str]:
    """Yield a folder and all folders below it, except those inside a store or a link."""
    for place, inner, files in os.walk(folder):
        yield place
        if "lox.json" in files:
            inner.clear()
            continue
        # The default store is `.lox`. Other names with a dot belong to tools.
        inner[:] = [
            name
            for name in inner
            if name not in _SKIPPED and (name == ".lox" or not name.startswith("."))
        ]


def _natural(path: str) -> list[tuple[int, str]]:
    """Return a sort key that puts the tenth job of a sweep after the second."""
    parts = re.findall(r"\d+|\D+", path)
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in parts]
