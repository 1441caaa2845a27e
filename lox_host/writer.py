"""What a back end is: four methods that take runs and batches of rows. No JAX."""

from typing import Protocol

from lox_host.rows import Batch
from lox_host.runs.run import Run


class Writer(Protocol):
    """A back end. lox calls all of its methods on the same thread."""

    def open(self, run: Run) -> None:
        """Start a run. If this raises, `logger.init` raises the same error."""
        ...

    def write(self, batch: Batch) -> None:
        """Take what was logged by any of the open runs.

        If this raises, the batch is lost, and lox warns the user. Later batches are tried.
        """
        ...

    def flush(self) -> None:
        """Make everything written so far survive the end of the process.

        If this raises, lox calls it again later, and it should try the same rows again.
        """
        ...

    def close(self, run: Run) -> None:
        """End a run: nothing more is written for it."""
        ...
