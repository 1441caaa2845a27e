"""Which runs a logger has, and which it had.

A run goes by three names. The user has a PRNG key; the device has a number of 32 bits that
travels through the program as `state.run`; back ends have a `Run`, whose name people read:

    logger.init(key)      the data of the key     state.run       Run
                          (0, 7)             <->  1583029    <->  id=1583029, name="0-7"

The same key is the same run until it is finished; after that it is another one, with a new
id. An id comes from the key and the *group*, a random text that all processes of a program
agree on for each call of `init`. So all of them have the same ids without asking for each,
and no id is that of a run of a process that is dead, which a checkpoint may hold.
"""

import hashlib
import itertools as it
import secrets
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lox_host.run_key import Key, run_name
from lox_host.writer import Run

# Of a name and a value, the value that all processes agree on.
Agree = Callable[[str, str], str]


class RunRegistry:
    """The runs of one logger.

    Args:
        name: The name of the logger's class. Processes that make the same loggers in the
            same order tell them apart by it and a number.

    Attributes:
        runs: The runs that are not finished, by id.
    """

    def __init__(self, name: str):
        self._name = f"{name}-{next(_loggers_made[name])}"
        self.runs: dict[int, Run] = {}
        self._ids: dict[Key, int] = {}
        self._names_of_finished: dict[int, str] = {}
        # How often runs with the same keys have been begun together.
        self._times_begun: Counter[str] = Counter()

    def id_of(self, key: Key) -> int | None:
        return self._ids.get(key)

    def agree_on_group(self, keys: Sequence[Key], agree: Agree) -> tuple[str, str]:
        """Return the group of the runs that are begun now, and the job of the processes."""
        job = agree("lox/job", secrets.token_hex(4))
        digest = hashlib.sha256(repr(keys).encode()).hexdigest()
        self._times_begun[digest] += 1
        call = f"lox/{self._name}/{digest}/{self._times_begun[digest]}"
        return agree(call, secrets.token_hex(4)), job

    def new_run(
        self, key: Key, config: Mapping[str, Any], group: str, process: int, job: str
    ) -> Run:
        """Return a run with an id that no other has. It is not in the registry yet."""
        ids = (_hash(f"{group}{key}{i}") for i in it.count())
        id = next(id for id in ids if id not in self.runs and not self.is_finished(id))
        return Run(id, run_name(key), key, config, time.time(), group, process, job)

    def add(self, run: Run) -> None:
        self.runs[run.id] = run
        self._ids[run.key] = run.id

    def finish(self, run: Run) -> None:
        self._names_of_finished[run.id] = run.name
        del self.runs[run.id], self._ids[run.key]

    def is_finished(self, id: int) -> bool:
        return id in self._names_of_finished

    def forget(self) -> None:
        """Forget all runs, as if they had never existed."""
        self.runs, self._ids = {}, {}

    def unknown(self, id: int) -> ValueError:
        """Return the error for an id without a run, or whose run is finished."""
        if self.is_finished(id):
            return ValueError(
                f"The run {self._names_of_finished[id]!r} is finished: nothing can be "
                "logged to it any more. Call `logger.finish` last, or `logger.init` for "
                "another run."
            )
        return ValueError(
            f"This logger has no run with the id {id}. The state comes from another logger "
            "or from a process that has ended, such as with a checkpoint: call "
            "`logger.init(key)` in this process, which goes on with the run of that key."
        )


def _hash(text: str) -> int:
    """Return a number of 31 bits for a text, the same in all processes."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4]) % 2**31


_loggers_made: defaultdict[str, it.count] = defaultdict(it.count)
