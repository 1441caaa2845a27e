"""`lox.save`: logs that are already there, to a store on disk."""

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
from lox._runs.to_blocks import (
    Impls,
    flatten_examples,
    flatten_logs,
    impls_of,
    to_blocks,
)
from lox._stream.callbacks import awaited, call_soon, callback_thread
from lox._stream.emit import emit
from lox._stream.packet import Packet
from lox._stream.token import last_token
from lox_host.store import Session, begin_session, check_mode
from lox_host.writer import Run


def save(
    logs: Mapping[str, Any], path: str | os.PathLike, mode: str = "a", key: Any = None
) -> None:
    """Save logs to a store, as a session of their own.

    Rows that were not really logged are left out, as by `logs.compact()`. Under `jit` this
    is done while the program runs, and `lox.barrier` waits for it. Under `vmap` each
    example is a run; without a key, its index is its key.

    Args:
        logs: The logs.
        path: The folder of the store. It is made if it is not there.
        mode: `"a"` adds to what is there, `"w"` removes what lox wrote there before, `"x"`
            raises if there is a store.
        key: The PRNG key of the run that the logs belong to.

    Example:
        >>> lox.save(lox.logdict({"loss": 0.5}, step={"loss": 3}), "results")
        >>> lox.load("results")
        {'loss': 0.5}
    """
    rows = loggable(logs).rows()
    plain = {name: without_keys(key_rows) for name, key_rows in rows.items()}
    impls = tuple((name, impls_of(key_rows.value)) for name, key_rows in rows.items())
    check_mode(mode)
    folder = os.path.abspath(os.path.expanduser(path))
    to_store = SaveOnHost(folder, mode, tuple(rows), impls)
    delivery = Delivery(logs=logdict.of(plain), run=key_words(key))
    if all(map(_is_known, jax.tree.leaves(delivery))):
        to_store.save(jax.tree.map(np.asarray, delivery))
    else:
        callback_thread.start()
        awaited(lambda: emit([delivery], to_store, last_token()), to_store)()


def _is_known(x: Any) -> bool:
    """Return whether this process can have the values now."""
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
        """Save the logs of each example that logged, a run each, as one session."""
        batch, valid, process = delivery.batch, delivery.valid, jax.process_index()
        # Without a PRNG key, the index of an example is its key.
        index = np.moveaxis(np.indices(batch, np.int64), 0, -1)
        words = delivery.run if delivery.run.shape[-1] else index
        keys = flatten_examples({"key": words}, len(batch), valid)["key"]
        rows = flatten_logs(delivery.logs, len(batch), valid)
        job = sharding.agree_on("lox/job", secrets.token_hex(4))
        session = Session(begin_session(self.path, self.mode, process, job))
        for i, data in enumerate(keys):
            key = tuple(data.tolist())
            name = "-".join(map(str, key)) or "saved"
            run = Run(i, name, key, {}, time.time(), job, process, job)
            session.open(run, self.keys)
        session.append(to_blocks(rows, np.arange(len(keys)), dict(self.impls)))
        session.end()


def key_words(key: Any) -> np.ndarray | jax.Array:
    """Return the data of a PRNG key, typed or not. None has none."""
    data = () if key is None else key_data(key)
    data = data if isinstance(data, jax.Array) else np.asarray(data)
    return data.reshape(-1).astype(np.uint32)
