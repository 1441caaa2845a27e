"""`lox.save`: logs that are already there, to a store on disk."""

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ._blocks import Impls, blocks
from ._export import to_numpy
from ._logdict import logdict
from ._rows import Rows, key_data
from ._store._folder import begun
from ._store._session import Session
from ._writer import Block, Run


def save(
    logs: Mapping[str, Any], path: str | os.PathLike, mode: str = "a", key: Any = None
) -> None:
    """Save logs to a store, as a session of their own.

    Rows that were not really logged are left out, as by `logs.compact()`.

    Args:
        logs: The logs.
        path: The folder of the store. It is made if it is not there.
        mode: `"a"` adds to what is there, `"w"` removes what lox wrote there before, `"x"`
            raises if there is a store.
        key: The PRNG key of the run that the logs belong to.

    Example:
        >>> folder = getfixture("tmp_path")
        >>> lox.save(lox.logdict({"loss": 0.5}, step={"loss": 3}), folder)
        >>> lox.load(folder)
        {'loss': 0.5}
    """
    rows = (logs if isinstance(logs, logdict) else logdict(logs)).rows()
    found = blocks(to_numpy(rows, "save"), 0, impls(rows))
    save_blocks(found, path, mode=mode, key=key_words(key), keys=tuple(rows))


def save_blocks(
    found: Sequence[Block],
    path: str | os.PathLike,
    *,
    mode: str,
    key: tuple[int, ...],
    keys: tuple[str, ...],
) -> None:
    """Save the rows of one run, whose id is 0, as a session.

    Args:
        found: The rows.
        path: The folder of the store.
        mode: As for `save`.
        key: The data of the run's PRNG key.
        keys: All keys of the logs, in their order.
    """
    name = "-".join(f"{word:08x}" for word in key) or "saved"
    run = Run(0, name, key, {}, time.time(), name, jax.process_index())
    session = Session(begun(path, mode, run.process))
    session.open(run, keys)
    session.append(found)
    session.end()


def impls(logs: Mapping[str, Rows]) -> dict[str, Impls]:
    """By key, which leaves of the value are typed PRNG keys, and of which kind."""
    return {key: tuple(_impls(rows.value)) for key, rows in logs.items()}


def key_words(key: Any) -> tuple[int, ...]:
    """The data of a PRNG key, typed or not. None has none."""
    data = () if key is None else np.asarray(key_data(key))
    return tuple(np.reshape(data, -1).tolist())


def _impls(value: Any) -> Iterable[tuple[int, str]]:
    for i, leaf in enumerate(jax.tree.leaves(value)):
        dtype = getattr(leaf, "dtype", None)
        if dtype is not None and jnp.issubdtype(dtype, jax.dtypes.prng_key):
            yield i, str(jax.random.key_impl(leaf))
