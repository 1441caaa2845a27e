"""Get, put, list and delete the objects of a store, with errors that say what to do.

The library obstore talks to the servers. It takes credentials from the environment or from
the machine. Its errors differ from one provider to the next. This file turns them into two:

    FileNotFoundError    the object does not exist, and the store answered
    BucketError          anything else, so it is unknown whether the object exists
"""

import dataclasses
import datetime
import os
import re
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from lox_host.extras import import_extra
from lox_host.store import absolute

# How many requests one call makes at the same time.
PARALLEL = 16
# How many seconds one attempt may take, and all retries of obstore together.
_TIMEOUT, _RETRIES = 30, datetime.timedelta(seconds=10)
_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")


class BucketError(ConnectionError):
    """Object storage cannot be reached, or refuses a request. The text says what to do."""


@dataclasses.dataclass(frozen=True)
class Object:
    """An entry of a listing.

    Attributes:
        path: The path below the address of the bucket.
        size: The size in bytes.
        etag: A text that changes with the content. None: the server has none.
        modified: When the object was stored, in seconds since 1970.
    """

    path: str
    size: int
    etag: str | None
    modified: float


class Bucket:
    """The objects below an address. Call its methods on any thread.

    Attributes:
        url: The address.
    """

    def __init__(self, url: str):
        self.url = absolute(url)
        self._connect()

    def _connect(self) -> None:
        store = import_extra("obstore.store", f"{self.url!r}", "remote")
        if self.url.startswith("file:"):
            self._store: Any = store.LocalStore(
                self.url.removeprefix("file://"), mkdir=True
            )
            return
        options: dict[str, Any] = {"timeout": f"{_TIMEOUT}s", "connect_timeout": "5s"}
        # A server of one's own, such as MinIO, often has no certificate.
        if any(os.environ.get(name, "").startswith("http://") for name in _ENDPOINTS):
            options["allow_http"] = True
        retry = {"max_retries": 3, "retry_timeout": _RETRIES}
        self._store = store.from_url(self.url, client_options=options, retry_config=retry)

    def reconnect(self) -> None:
        """Look for credentials again."""
        self._connect()

    def get(self, path: str) -> tuple[bytes, Object]:
        """Return the bytes of an object and its listing entry.

        Raises:
            FileNotFoundError: If there is no such object.
            BucketError: If it is unknown whether there is one.
        """
        with _errors(self.url):
            result = _obstore().get(self._store, path)
            return bytes(result.bytes()), _object(result.meta)

    def get_all(self, paths: Iterable[str]) -> Iterator[tuple[bytes, Object] | None]:
        """Yield several objects in the given order, with None for missing ones."""

        def get(path: str) -> tuple[bytes, Object] | None:
            try:
                return self.get(path)
            except FileNotFoundError:
                return None

        with ThreadPoolExecutor(PARALLEL) as threads:
            yield from threads.map(get, paths)

    def exists(self, path: str) -> bool:
        try:
            with _errors(self.url):
                _obstore().head(self._store, path)
        except FileNotFoundError:
            return False
        return True

    def put(self, path: str, data: bytes) -> None:
        """Store an object completely or not at all, and replace one of the same path."""
        with _errors(self.url):
            # For a put, "not found" means the bucket itself is missing.
            try:
                _obstore().put(self._store, path, data)
            except FileNotFoundError as error:
                raise BucketError(_explained(self.url, error)) from error

    def objects(self, prefix: str) -> list[Object]:
        """Return all objects below a prefix, which ends at a slash."""
        with _errors(self.url):
            chunks = _obstore().list(self._store, prefix.rstrip("/"), chunk_size=1000)
            return sorted(
                (_object(meta) for chunk in chunks for meta in chunk),
                key=lambda found: found.path,
            )

    def folders(self, prefix: str = "") -> list[str]:
        """Return the names of the folders directly below a prefix."""
        with _errors(self.url):
            found = _obstore().list_with_delimiter(self._store, prefix or None)
            return sorted(path.rsplit("/", 1)[-1] for path in found["common_prefixes"])

    def delete(self, paths: Iterable[str]) -> None:
        """Delete objects. Missing ones are no error."""
        paths = list(paths)
        with _errors(self.url):
            # S3 deletes at most 1000 objects per request.
            for start in range(0, len(paths), 1000):
                try:
                    _obstore().delete(self._store, paths[start : start + 1000])
                except FileNotFoundError:
                    continue


class _errors:
    """Turns errors of obstore into a `BucketError`, except for missing objects."""

    def __init__(self, url: str):
        self._url = url

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None or isinstance(error, BucketError):
            return
        # obstore says "not found" for a missing bucket, too, which is another problem.
        if isinstance(error, FileNotFoundError) and not _is_bucket_missing(str(error)):
            return
        if isinstance(error, Exception):
            raise BucketError(_explained(self._url, error)) from error


def _explained(url: str, error: Exception) -> str:
    """Return a text that says what is wrong and what to do."""
    text, kind = str(error), type(error).__name__
    name = url.split("://", 1)[1].split("/", 1)[0]
    if _is_bucket_missing(text):
        return f"There is no bucket {name!r}. Create it, or correct the address {url!r}."
    if kind in ("PermissionDeniedError", "UnauthenticatedError") or _has(text, 401, 403):
        return (
            f"Access to {url!r} is refused. The credentials are missing, expired, or do "
            "not allow this; lox takes them from the environment, such as "
            "`AWS_ACCESS_KEY_ID`."
        )
    if _has(text, 429, 503) or "SlowDown" in text:
        return f"The server of {url!r} throttles requests."
    if re.search("error sending request|timed out|timeout|dns|connect", text, re.I):
        return f"The server of {url!r} cannot be reached."
    return f"{url!r}: {kind}: {text.splitlines()[0] if text else 'nothing more is known'}."


def _is_bucket_missing(text: str) -> bool:
    missing = "NoSuchBucket", "ContainerNotFound", "The specified bucket does not exist"
    return any(word in text for word in missing)


def _has(text: str, *codes: int) -> bool:
    return any(f"status code: {code}" in text for code in codes)


def _object(meta: Any) -> Object:
    modified = meta["last_modified"].timestamp()
    return Object(meta["path"], meta["size"], meta.get("e_tag"), modified)


def _obstore() -> Any:
    return import_extra("obstore", "A store on object storage", "remote")
