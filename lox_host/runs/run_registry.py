"""The runs of a logger: those that are open, and those that are finished.

A run has three names. The user has a PRNG key. The device has a 32-bit number, which
travels through the program as `state.run`. Back ends have a `Run`, whose name people read:

    logger.init(key)      the data of the key     state.run       Run
                          (0, 7)             <->  1583029    <->  id=1583029, name="seed7"

The same key and configuration give the same run until it is finished. After that they give
a new run with a new id, see `run_id.py`.
"""

import dataclasses
import hashlib
import itertools as it
import secrets
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from lox_host.runs.run import Run
from lox_host.runs.run_id import Key, candidate_ids
from lox_host.runs.run_names import default_name, format_name, free_name

# Takes a name and a proposed value, and returns the value on which all processes agree.
Agree = Callable[[str, str], str]


@dataclasses.dataclass(frozen=True)
class WantedRun:
    """A run as `logger.init` asks for it.

    Attributes:
        key: The data of the PRNG key.
        config: The configuration of the run, without that of the logger.
        name: The name of the run, or a template. None: the default.
        group: See `Run`.
        tags: See `Run`.
        index: The position among the runs of the same call. None: it is the only one.
        resume: Whether to continue a run of an earlier session.
    """

    key: Key
    config: Mapping[str, Any]
    name: str | None = None
    group: str = ""
    tags: tuple[str, ...] = ()
    index: int | None = None
    resume: bool = False


class Launch(NamedTuple):
    """The fields of `Run` that all runs begun by one call share."""

    launch: str
    process: int
    job: str


class RunRegistry:
    """The runs of one logger.

    Args:
        name: The name of the logger's class. Together with a counter it identifies the
            logger in all processes, as these create the same loggers in the same order.

    Attributes:
        runs: The runs that are not finished, by id.
    """

    def __init__(self, name: str):
        self._name = f"{name}-{next(_loggers_made[name])}"
        self.runs: dict[int, Run] = {}
        # The ids of open runs by identity, the identities by id, and the ids by name.
        self._ids: dict[str, int] = {}
        self._identities: dict[int, str] = {}
        self._names: dict[str, int] = {}
        # Kept after a run has ended, to say what is wrong with a state that is used again.
        self._names_of_finished: dict[int, str] = {}
        # How often the same set of runs has been begun by one call.
        self._times_begun: Counter[str] = Counter()

    def id_of(self, identity: str) -> int | None:
        """Return the id of the open run with this identity, or None."""
        return self._ids.get(identity)

    def agree_on_launch(
        self, identities: Sequence[str], process: int, agree: Agree
    ) -> Launch:
        """Return the launch of the runs that are begun now, the same in all processes."""
        # All processes ask under the same name, and get what the first one proposed. The
        # number of times tells a second `init` with the same keys from the first.
        job = agree("lox/job", secrets.token_hex(4))
        digest = hashlib.sha256("".join(identities).encode()).hexdigest()
        self._times_begun[digest] += 1
        call = f"lox/{self._name}/{digest}/{self._times_begun[digest]}"
        return Launch(agree(call, secrets.token_hex(4)), process, job)

    def new_run(
        self, identity: str, wanted: WantedRun, names_from: Mapping[str, Any], of: Launch
    ) -> Run:
        """Return a run with an unused id. It is not in the registry yet.

        Args:
            identity: The identity of its key and configuration.
            wanted: The run, with its complete configuration.
            names_from: The configuration that its name may refer to.
            of: The launch that begins it.
        """
        # With 31 bits, ids of a thousand runs rarely clash. If they do, all processes skip
        # the same one.
        ids = candidate_ids(of.launch, identity)
        id = next(id for id in ids if id not in self.runs and not self.is_finished(id))
        index = 0 if wanted.index is None else wanted.index
        name = format_name(wanted.name or "", names_from, wanted.key, index)
        # A name may come out empty. Such a run could not be listed or asked for.
        if not name.strip():
            name = default_name(wanted.key, wanted.index)
        return Run(
            id,
            free_name(name, self._names),
            wanted.key,
            wanted.config,
            time.time(),
            *of,
            group=wanted.group,
            tags=wanted.tags,
            index=index,
            resumed=wanted.resume,
        )

    def add(self, run: Run, identity: str) -> None:
        self.runs[run.id] = run
        self._ids[identity] = self._names[run.name] = run.id
        self._identities[run.id] = identity

    def finish(self, run: Run) -> None:
        self._names_of_finished[run.id] = run.name
        del self.runs[run.id], self._names[run.name]
        del self._ids[self._identities.pop(run.id)]

    def is_finished(self, id: int) -> bool:
        return id in self._names_of_finished

    def forget(self) -> None:
        """Forget all runs, as if they had never existed."""
        self.runs, self._ids, self._identities, self._names = {}, {}, {}, {}

    def unknown(self, id: int) -> ValueError:
        """Return the error for an id that has no run, or whose run is finished."""
        if self.is_finished(id):
            return ValueError(
                f"The run {self._names_of_finished[id]!r} is finished, so nothing "
                "more can be logged to it. Call `logger.finish` last, or `logger.init` for "
                "another run."
            )
        return ValueError(
            f"This logger has no run with the id {id}. The state comes from another logger "
            "or from a process that has ended, such as with a checkpoint: call "
            "`logger.init(key)` in this process."
        )


_loggers_made: defaultdict[str, it.count] = defaultdict(it.count)
