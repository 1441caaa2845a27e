"""Find the stores that match an address with wildcards, such as `s3://bucket/exp*`."""

import fnmatch
import re

from lox_host.remote.bucket import Bucket
from lox_host.remote.remote_paths import MARKER
from lox_host.store import absolute

_WILDCARD = re.compile(r"[*?\[]")


def expand(url: str) -> list[str]:
    """Return the addresses of the stores that match, in order.

    Each `*` matches any part of one name, as in a shell.

    Raises:
        FileNotFoundError: If no store matches.
    """
    url = absolute(url)
    if not _WILDCARD.search(url):
        return [url]
    scheme, rest = url.split("://", 1)
    bucket, *names = rest.split("/")
    root = f"{scheme}://{bucket}"
    if scheme == "file":
        bucket, *names = names
        root = f"file:///{bucket}"
    # List one level at a time: the folders that match so far, each with a slash behind it.
    found = [""]
    for name in names:
        if _WILDCARD.search(name):
            inner = Bucket(root)
            found = [
                f"{outer}{folder}/"
                for outer in found
                for folder in inner.folders(outer.rstrip("/"))
                if fnmatch.fnmatchcase(folder, name)
            ]
        else:
            found = [f"{outer}{name}/" for outer in found]
    whole = Bucket(root)
    stores = [path.rstrip("/") for path in found if whole.exists(f"{path}{MARKER}")]
    if not stores:
        raise FileNotFoundError(f"There is no store in {url!r}.")
    return [f"{root}/{store}" for store in stores]
