"""What `logger.init` is asked for: some of it is known only when the program runs.

Under `jit` and `vmap`, entries of a configuration may be tracers. Those travel to the host
as operands of the call that starts the runs, and leave a `ConfigSlot` in its place:

    config={"env": "CartPole", "lr": lr}        RunOptions.config  {"env": "CartPole",
                                                                    "lr": ConfigSlot(0)}
                                                operands           [lr]

On the host, with `lr` of three runs, each gets a configuration of its own:

    [{"env": "CartPole", "lr": 0.1}, {"env": "CartPole", "lr": 0.01}, ...]
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from lox._core.log import names_in
from lox._jax import sharding
from lox._jax.types import PyTree
from lox._rows.rows import key_data
from lox._stream.packet import whole_bytes
from lox_host.host_logger import HostLogger, check_config
from lox_host.runs.run_config import Config, plain_config, plain_values
from lox_host.runs.run_id import run_key
from lox_host.runs.run_registry import WantedRun


@dataclasses.dataclass(frozen=True)
class ConfigSlot:
    """The place of a value in a configuration that comes with the host call."""

    number: int


@dataclasses.dataclass(frozen=True, eq=False)
class RunOptions:
    """What the runs of one call of `init` have in common.

    Programs hold it as a parameter, so it is compared by identity.

    Attributes:
        config: The configuration, with slots for what differs.
        name: The name, or a template. None: the default.
        group: See `Run`.
        tags: See `Run`.
        resume: Whether to continue runs of earlier sessions.
    """

    config: Config
    name: str | None
    group: str
    tags: tuple[str, ...]
    resume: bool

    def wanted(
        self, keys: np.ndarray, leaves: Sequence[np.ndarray], *, is_batch: bool
    ) -> list[WantedRun]:
        """Return what is asked for, run by run.

        Args:
            keys: The data of the PRNG keys, one key per row.
            leaves: The values for the slots, with an axis of runs in front.
            is_batch: Whether there is a position in a batch, even for a single run.
        """
        columns = [plain_values(leaf) for leaf in leaves]
        common = self.name, self.group, self.tags
        wanted = []
        for i, words in enumerate(keys.tolist()):
            config = _filled(self.config, columns, i) if columns else self.config
            index = i if is_batch else None
            wanted.append(WantedRun(run_key(words), config, *common, index, self.resume))
        return wanted


def run_options(
    logger: HostLogger,
    config: Mapping[str, Any] | None,
    name: str | None,
    group: str | None,
    tags: str | Iterable[str],
    resume: bool,
) -> tuple[RunOptions, list[jax.Array]]:
    """Return the options of `init`, and the values that are not known yet.

    Raises:
        TypeError: If an option is not what it should be.
        ValueError: If the name refers to something that there is not.
    """
    check_config(config)
    for option, text in {"name": name, "group": group}.items():
        if not isinstance(text, str | None):
            raise TypeError(
                f"`{option}` must be a string, not {type(text).__name__!r}. To include "
                'values that differ between runs, refer to them, such as "lr={lr:g}".'
            )
    if not isinstance(resume, bool):
        raise TypeError(
            f"`resume` must be True or False, not {type(resume).__name__!r}. It is the "
            "same for all runs of a call."
        )
    operands: list[jax.Array] = []
    template = _template(config or {}, operands)
    options = RunOptions(template, name, group or "", names_in(tags, "tags"), resume)
    if name is not None:
        # Any value will do to find out whether the name can be formatted.
        some = [plain_values(np.zeros((1, *x.shape), x.dtype)) for x in operands]
        logger.check_name(name, _filled(template, some, 0))
    return options, operands


def _template(value: PyTree, operands: list[jax.Array]) -> PyTree:
    """Return a configuration with plain values, and slots for those that are operands."""
    if isinstance(value, Mapping):
        return {str(name): _template(inner, operands) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_template(inner, operands) for inner in value]
    if not isinstance(value, jax.Array):
        return plain_config(value)
    value = key_data(value)
    if not isinstance(value, Tracer) and sharding.is_addressable(value):
        return plain_values(np.asarray(value))
    operands.append(jnp.asarray(value, whole_bytes(value.dtype)))
    return ConfigSlot(len(operands) - 1)


def _filled(template: PyTree, columns: Sequence[PyTree], run: int) -> PyTree:
    """Return the configuration of one run."""
    if isinstance(template, ConfigSlot):
        return columns[template.number][run]
    if isinstance(template, dict):
        return {name: _filled(inner, columns, run) for name, inner in template.items()}
    if isinstance(template, list):
        return [_filled(inner, columns, run) for inner in template]
    return template
