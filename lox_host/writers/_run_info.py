"""What back ends are told of a run: its title and its configuration."""

from collections.abc import Mapping
from typing import Any

from lox_host.writer import Run


def run_title(run: Run, name: str | None = None) -> str:
    """Return a name for all runs, the seed, and the process if it is not the first."""
    process = f"process-{run.process}" if run.process else None
    return "-".join(part for part in (name, run.name, process) if part)


def plain_config(config: Any) -> Any:
    """Return the configuration with Python's numbers and lists instead of arrays."""
    if isinstance(config, Mapping):
        return {str(name): plain_config(value) for name, value in config.items()}
    if isinstance(config, list | tuple):
        return [plain_config(value) for value in config]
    return config.tolist() if hasattr(config, "tolist") else config


def flat_config(config: Any, name: str = "") -> dict[str, Any]:
    """Return the configuration with one name for each entry, `outer/inner`."""
    if not isinstance(config, Mapping):
        return {name: config}
    entries: dict[str, Any] = {}
    for part, value in plain_config(config).items():
        entries.update(flat_config(value, f"{name}/{part}" if name else part))
    return entries
