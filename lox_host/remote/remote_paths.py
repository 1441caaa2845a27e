"""The paths of objects in a store, and of the local folders that belong to it.

s3://bucket/exp1/
    lox.json                                            marks it as a store
    manifests/20260131-235959-....jsonl.gz              what is in a session, in lines
    rows/session=20260131-235959-.../process=0/000000.parquet
    runs/session=20260131-235959-.../process=0/000000.parquet

$LOX_SPOOL  (~/.local/state/lox/spool)    sessions that wait to be uploaded
$LOX_CACHE  (~/.cache/lox)                downloaded objects; you may delete them

The paths `session=.../process=...` follow Hive partitioning, so that DuckDB, polars and
others read them as columns.
"""

import os
import pathlib

from lox_host.store import URL_FILE, folder_for

MARKER = "lox.json"
MANIFESTS = "manifests/"


def manifest_path(session: str) -> str:
    return f"{MANIFESTS}{session}.jsonl.gz"


def session_of(manifest: str) -> str:
    """Return the name of a manifest's session."""
    return manifest.rsplit("/", 1)[-1].removesuffix(".jsonl.gz")


def rows_path(session: str, name: str = "") -> str:
    return _hive_path("rows", session, name)


def runs_path(session: str, name: str = "") -> str:
    return _hive_path("runs", session, name)


def object_url(store: str, session: str, name: str) -> str:
    """Return the address of a segment."""
    return f"{store}/{rows_path(session, name)}"


def _hive_path(table: str, session: str, name: str) -> str:
    process = session.split("-")[-2]
    return f"{table}/session={session}/process={process}/{name}"


def spool_root() -> pathlib.Path:
    """Return the folder with all sessions that wait to be uploaded."""
    return _root("LOX_SPOOL", "XDG_STATE_HOME", ".local/state", "lox/spool")


def cache_root() -> pathlib.Path:
    """Return the folder with all downloaded objects."""
    return _root("LOX_CACHE", "XDG_CACHE_HOME", ".cache", "lox")


def spool_folder(url: str) -> pathlib.Path:
    """Return the folder with sessions to upload to a store. Create it if needed."""
    return _made(folder_for(url, spool_root()), url)


def mirror_folder(url: str) -> pathlib.Path:
    """Return the folder with downloaded objects of a store. Create it if needed."""
    return _made(folder_for(url, cache_root()), url)


def _root(variable: str, shared: str, home: str, inner: str) -> pathlib.Path:
    # The variable of lox names the folder itself, the other one that of all programs.
    if given := os.environ.get(variable):
        return pathlib.Path(given).expanduser().absolute()
    base = os.environ.get(shared) or pathlib.Path.home() / home
    return pathlib.Path(base) / inner


def _made(folder: pathlib.Path, url: str) -> pathlib.Path:
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / URL_FILE).exists():
        (folder / URL_FILE).write_text(f"{url}\n")
    return folder
