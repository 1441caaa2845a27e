"""`lox push`: upload what killed processes have left on this machine."""

from collections.abc import Sequence

from lox_host.display.text import clean, count
from lox_host.remote import push_others, spooled_urls


def push(urls: Sequence[str]) -> None:
    """Upload the remaining sessions of some stores, or of all stores."""
    is_idle = True
    for url in urls or spooled_urls():
        done = push_others(url)
        if done.sessions:
            is_idle = False
            rows, sessions = count(done.rows, "row"), count(done.sessions, "session")
            print(f"{clean(done.url)}: {rows} of {sessions} uploaded")
        if done.busy:
            is_idle = False
            running = count(done.busy, "session")
            print(f"{clean(done.url)}: {running} left to running processes")
    if is_idle:
        print("Nothing is left to upload.")
