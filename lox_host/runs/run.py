"""One run, as writers and readers know it."""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from lox_host.runs.run_id import Key, run_identity, run_seed


@dataclasses.dataclass(frozen=True)
class Run:
    """One experiment: one seed, or one member of a sweep.

    Attributes:
        id: Its number on the device. No other run of this process has it.
        name: Its name. Runs that a logger has at the same time have different names. It
            can contain any characters: see `file_name`.
        key: The data of the PRNG key that it was started with.
        config: Its configuration: plain numbers, strings, lists and dictionaries.
        start: When it was started, in seconds since 1970.
        launch: The same for all runs that were started by one call.
        process: The number of the process among those of `jax.distributed`.
        job: The same for all runs of these processes.
        group: The name that the user gave to runs that belong together. Empty: none.
        tags: Words that the user gave to find the run by.
        index: Its position among the runs that were started by one call.
        resumed: Whether it continues the run with the same key and configuration of an
            earlier session.
    """

    id: int
    name: str
    key: Key
    config: Mapping[str, Any]
    start: float
    launch: str
    process: int = 0
    job: str = ""
    group: str = ""
    tags: tuple[str, ...] = ()
    index: int = 0
    resumed: bool = False

    @property
    def seed(self) -> int:
        """The number that its key was made from, or the data of the key as one number."""
        return run_seed(self.key)

    @property
    def identity(self) -> str:
        """The same text for the same run in every session: its key and configuration."""
        return run_identity(self.key, self.config)

    @property
    def title(self) -> str:
        """The name, and the process if it is not the first."""
        return f"{self.name}-process-{self.process}" if self.process else self.name

    @property
    def file_name(self) -> str:
        """The title as the name of a file or a folder, which leads nowhere else."""
        # The dots keep `..` and hidden files away.
        return re.sub(r"[^\w.=,+-]", "_", self.title).lstrip(".")[:200] or "run"
