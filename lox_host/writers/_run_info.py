"""What back ends call a run."""

from lox_host.runs.run import Run


def run_title(run: Run, name: str | None = None) -> str:
    """Return a name for all runs, the seed, and the process if it is not the first."""
    process = f"process-{run.process}" if run.process else None
    return "-".join(part for part in (name, run.name, process) if part)
