"""`lox compact`: join the small objects of stores on object storage."""

from collections.abc import Sequence

from lox_host import remote
from lox_host.cli.errors import CLIError
from lox_host.display.text import clean, count
from lox_host.store import is_url


def compact(urls: Sequence[str]) -> None:
    """Join the small objects of all finished sessions in some stores."""
    for url in urls:
        if not is_url(url):
            raise CLIError(
                f"{url!r} is a folder. Its sessions are joined when they end; `lox "
                "compact` is for stores on object storage, such as s3://bucket/exp1."
            )
        done = remote.compact(url)
        objects = f"{count(done.before, 'object')} became {done.after}"
        print(f"{clean(url)}: {objects if done.sessions else 'nothing to join'}")
