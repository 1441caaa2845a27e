"""What a back end is: four methods that take runs and batches of rows. No JAX."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Protocol

from lox_host.rows import Batch


@dataclasses.dataclass(frozen=True)
class Run:
    """One experiment: one seed.

    Attributes:
        id: Its number on the device. Nothing else has it in this process.
        name: Short, and safe as the name of a file. Runs of other keys have other names.
        key: The data of the PRNG key that it was started with.
        config: What the logger was given as `config`.
        start: When it was started, in seconds since 1970.
        group: The same for all runs that were started by one call.
        process: The number of the process among those of `jax.distributed`.
        job: The same for all runs of these processes.
    """

    id: int
    name: str
    key: tuple[int, ...]
    config: Mapping[str, Any]
    start: float
    group: str
    process: int = 0
    job: str = ""


class Writer(Protocol):
    """A back end. All of its methods are called on one and the same thread."""

    def open(self, run: Run) -> None:
        """Begin a run. What this raises, `logger.init` raises."""
        ...

    def write(self, batch: Batch) -> None:
        """Take what was logged by any of the open runs.

        If this raises, the batch is lost, which the user is told. Later ones are tried.
        """
        ...

    def flush(self) -> None:
        """Bring what was written to where it outlives the process.

        If this raises, it is called again later, and should try with the same rows.
        """
        ...

    def close(self, run: Run) -> None:
        """End a run: nothing more is written for it."""
        ...
