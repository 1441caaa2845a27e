"""`lox.save`: write logs to a store on disk."""

import dataclasses
import os
import secrets
import time
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from jax.core import Tracer

from lox._core.log import loggable
from lox._core.record import Delivery
from lox._jax import sharding
from lox._logdict.logdict import logdict
from lox._rows.rows import key_data, without_keys
from lox._runs.prng_key_words import key_words
from lox._runs.to_blocks import (
    Impls,
    flatten_examples,
    flatten_logs,
    impls_of,
    to_blocks,
)
from lox._stream.callbacks import awaited, call_soon, start_callbacks
from lox._stream.emit import emit
from lox._stream.host_call_order import last_token
from lox._stream.packet import Packet
from lox_host.runs.run import Run
from lox_host.runs.run_id import run_key
from lox_host.runs.run_names import default_name
from lox_host.store import absolute, check_mode, save_runs


def save(
    logs: Mapping[str, Any], path: str | os.PathLike, mode: str = "a", key: Any = None
) -> None:
    """Save logs to a store: add them to a run, or replace the run.

    Masked rows are left out, as by `logs.compact()`. Under `jit`, logs are saved while the
    program runs, and `lox.barrier` waits for it. Under `vmap`, each example is a run;
    without a key, its index is its key.

    Args:
        logs: The logs.
        path: The folder of the store. It is created if it does not exist.
        mode: `"a"` adds the rows to the run, `"w"` replaces the run, `"x"` raises if there
            is a store. Runs of other keys stay as they are.
        key: The PRNG key of the run that the logs belong to, or a number.

    Raises:
        RuntimeError: If a logger is still writing the run.

    Example:
        >>> lox.save(lox.logdict({"loss": 0.5}, step={"loss": 3}), "results")
        >>> lox.load("results")
        {'loss': 0.5}
        >>> lox.save(lox.logdict({"loss": 0.25}, step={"loss": 4}), "results")
        >>> lox.load("results")["loss"].tolist()
        [0.5, 0.25]
    """
    rows = loggable(logs).rows()
    plain = {name: without_keys(key_rows) for name, key_rows in rows.items()}
    impls = tuple((name, impls_of(key_rows.value)) for name, key_rows in rows.items())
    check_mode(mode)
    # A host call has plain arrays only, so typed PRNG keys travel as data with `impls`.
    to_store = SaveOnHost(absolute(path), mode, tuple(rows), impls)
    delivery = Delivery(logs=logdict.of(plain), run=words_of(key))
    # Outside of programs there is nothing to wait for: save at once.
    if all(map(_is_known, jax.tree.leaves(delivery))):
        to_store.save(jax.tree.map(np.asarray, delivery))
    else:
        start_callbacks()
        awaited(lambda: emit([delivery], to_store, last_token()), to_store)()


def _is_known(x: Any) -> bool:
    """Return whether this process can read the values now."""
    return not isinstance(x, Tracer) and sharding.is_addressable(x)


@dataclasses.dataclass(frozen=True)
class SaveOnHost:
    """Save the logs that arrive on the host.

    Attributes:
        path: The folder of the store.
        mode: As for `save`.
        keys: All keys, in their order.
        impls: By key, which leaves of the value hold data of typed PRNG keys.
    """

    path: str
    mode: str
    keys: tuple[str, ...]
    impls: tuple[tuple[str, Impls], ...]

    def __call__(self, packet: Packet) -> None:
        call_soon(self, self._save_all, packet)

    def __str__(self) -> str:
        return "`lox.save`"

    def _save_all(self, packet: Packet) -> None:
        for delivery in packet.deliveries():
            self.save(delivery)

    def save(self, delivery: Delivery) -> None:
        """Save the logs of each example that logged, as one run per example."""
        batch, valid, process = delivery.batch, delivery.valid, jax.process_index()
        # Without a PRNG key, the index of an example is its key.
        # (*batch, axes of the batch)
        index = np.moveaxis(np.indices(batch, np.int64), 0, -1)
        has_keys = bool(delivery.run.shape[-1])
        words = delivery.run if has_keys else index
        keys = flatten_examples({"key": words}, len(batch), valid)["key"]
        rows = flatten_logs(delivery.logs, len(batch), valid)
        job = sharding.agree_on("lox/job", secrets.token_hex(4))
        runs, now = [], time.time()
        for i, data in enumerate(keys):
            key = run_key(data.tolist())
            index = i if batch else None
            name = default_name(key, index) if has_keys else _name_of_index(data)
            runs.append(Run(i, name, key, {}, now, job, process, job, index=i))
        times = np.full(len(keys), now)
        blocks = to_blocks(rows, np.arange(len(keys)), dict(self.impls), time=times)
        save_runs(self.path, self.mode, runs, self.keys, blocks)


def _name_of_index(index: np.ndarray) -> str:
    """Return the name of a run without a key: its index in a batch."""
    return f"run{'-'.join(map(str, index.tolist()))}" if len(index) else "saved"


def words_of(key: Any) -> np.ndarray | jax.Array:
    """Return the words of a PRNG key, of its data, or of a number. For None, no words."""
    if isinstance(key, str):
        raise TypeError(
            f"`key` is the string {key!r}. Give the PRNG key of the run, or a number; "
            "`lox.runs(path)` lists the runs of a store with their names and keys."
        )
    words = None if key is None else key_words(key)
    if words is not None:
        return words
    data = () if key is None else key_data(key)
    data = data if isinstance(data, jax.Array) else np.asarray(data)
    return data.reshape(-1).astype(np.uint32)
