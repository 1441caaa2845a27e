"""Where a store is: a folder, or an address of object storage such as `s3://bucket/exp1`.

This file looks at texts only. What is behind an address is for `lox_host.remote` to say,
which is imported when there is one.
"""

import importlib
import os
import pathlib
import re
from types import ModuleType

Path = str | os.PathLike[str]

SCHEMES = ("s3", "s3a", "gs", "az", "abfs", "abfss", "file")
_URL = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]+):/(/?.*)", re.DOTALL)
# Holds the address, in a folder of this machine that belongs to a store elsewhere.
URL_FILE = "url"


def is_url(path: Path) -> bool:
    """Return whether a path is an address of object storage.

    Raises:
        ValueError: If it is an address that lox cannot read.
    """
    match = _URL.fullmatch(os.fspath(path))
    # A letter before the colon is a drive of Windows, which the pattern leaves out.
    if match is None:
        return False
    if match[1].lower() not in SCHEMES:
        known = ", ".join(f"{scheme}://" for scheme in SCHEMES)
        raise ValueError(f"lox does not know the address {os.fspath(path)!r}: use {known}.")
    return True


def absolute(path: Path) -> str:
    """Return where a path is, whatever folder the process is in later."""
    if not is_url(path):
        return os.path.abspath(os.path.expanduser(path))
    scheme, rest = os.fspath(path).split(":", 1)
    # `pathlib.Path` turns `s3://bucket` into `s3:/bucket`.
    front = "///" if scheme.lower() == "file" else "//"
    return f"{scheme.lower()}:{front}{rest.strip('/')}"


def folder_for(url: str, root: pathlib.Path) -> pathlib.Path:
    """Return the folder of this machine that belongs to a store elsewhere."""
    from urllib.parse import quote

    name = quote(url, safe="")
    if len(name) > 200:  # file systems have names of 255 bytes at most
        import hashlib

        name = f"{name[:150]}-{hashlib.sha256(url.encode()).hexdigest()[:16]}"
    return root / name


def url_of(folder: pathlib.Path) -> str | None:
    """Return the address that a folder of this machine belongs to. None: it is its own."""
    if "%3A%2F%2F" not in folder.name:
        return None
    try:
        return (folder / URL_FILE).read_text().strip()
    except OSError:
        return None


def shown(folder: pathlib.Path) -> str:
    """Return what to call a store in messages."""
    return url_of(folder) or str(folder)


def remote() -> ModuleType:
    """Import what reads object storage. The store is below it, so it is not named above."""
    return importlib.import_module("lox_host.remote")
