"""The straight way to the writer, for logs that are on the host or can be brought there.

A program has to take records through its primitives, and packs them for the host. Where no
program is being traced, in a Python loop, `logger.log` has the values themselves. All that
is left to do is to put arrays into a packet. What is the same for all calls with the same
keys, dtypes and shapes is worked out for the first one, and kept as a `Plan`:

    logger.log(run, {"loss": 0.5, "acc": acc}, step=i)

    signature   ("loss", "acc"), ("step",), (float32 [], float32 [], int32 [])
    plan        which callback takes it, the layout of its packets, the order of arrays

The packets of a plan have one layout, so that the writer decodes thousands of them at once.
"""

import dataclasses
from collections import OrderedDict
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.core import Tracer

from lox._core.log import loggable
from lox._core.record import Delivery
from lox._jax import sharding, tracing
from lox._logdict.logdict import logdict
from lox._rows.rows import without_keys
from lox._runs.logger_callbacks import WriteRows
from lox._stream.packet import Layout, Packet
from lox_host.host_logger import HostLogger

# How many plans are kept for a logger: some log under ever new keys.
_MOST = 1000


@dataclasses.dataclass(frozen=True)
class Plan:
    """How to send logs of one signature.

    Attributes:
        source: What takes the packets, and decodes them.
        layout: Their layout.
        order: By their place in a packet, the numbers of the arrays.
    """

    source: WriteRows
    layout: Layout
    order: Sequence[int]


class StraightWay:
    """Sends logs that are concrete to a logger on the host."""

    def __init__(self, logger: HostLogger):
        self._logger = logger
        self._plans: OrderedDict[Hashable, Plan] = OrderedDict()

    def send(self, run: Any, logs: Mapping[str, Any], steps: Mapping[str, Any]) -> bool:
        """Send logs, or return False if only a program can."""
        if tracing.staged_program() is not None or isinstance(run, Tracer):
            return False
        if isinstance(logs, logdict):
            arrays, form = ([], None) if steps else _leaves(logs)
            names: Hashable = form
        elif isinstance(logs, Mapping):
            arrays = _arrays([*logs.values(), *steps.values()])
            names = tuple(logs), tuple(steps)
        else:
            return False
        if not arrays:
            return False
        signature = names, tuple([(x.dtype, x.shape) for x in arrays])
        plan = self._plans.get(signature)
        arrays.append(np.asarray(run))
        if plan is None:
            plan = self._plan(logs, steps, arrays)
            if len(self._plans) >= _MOST:
                self._plans.popitem(last=False)
            self._plans[signature] = plan
        packet = Packet([arrays[i] for i in plan.order], plan.layout)
        plan.source(packet)
        return True

    def _plan(
        self, logs: Mapping[str, Any], steps: Mapping[str, Any], arrays: list[np.ndarray]
    ) -> Plan:
        """Work out how logs are sent; raise if they are no logs."""
        if isinstance(logs, logdict):
            given = jax.tree.unflatten(jax.tree.structure(logs), arrays[:-1])
        else:
            loggable(logs, steps)
            values = dict(zip(logs, arrays, strict=False))
            same = zip(steps, arrays[len(logs) : -1], strict=True)
            given = logdict(values, **{k: dict.fromkeys(values, x) for k, x in same})
        rows = given.rows()
        plain = {key: without_keys(of_key) for key, of_key in rows.items()}
        delivery = Delivery(logs=logdict.of(plain), run=arrays[-1])
        leaves, form = jax.tree.flatten((delivery,))
        numbers = {id(array): i for i, array in enumerate(arrays)}
        each = [[i] for i in range(len(leaves))]
        layout = Layout.of(form, leaves, each)
        return Plan(
            WriteRows(self._logger).of(rows), layout, [numbers[id(x)] for x in leaves]
        )


def _leaves(logs: logdict) -> tuple[list[np.ndarray], Any]:
    leaves, form = jax.tree.flatten(logs)
    return _arrays(leaves), form


def _arrays(values: Sequence[Any]) -> list[np.ndarray]:
    """Return copies of values as arrays; none if one of them is not concrete and plain."""
    wide = jax.config.jax_enable_x64  # pyright: ignore[reportAttributeAccessIssue]
    numbers = _WIDE if wide else _SHORT
    arrays: list[np.ndarray] = []
    for value in values:
        dtype = numbers.get(type(value))
        if dtype is not None:
            try:
                arrays.append(np.array(value, dtype))
            except OverflowError:
                return []
        elif not _is_plain(value):
            return []
        elif isinstance(value, jax.Array):
            arrays.append(np.array(value))
        else:
            arrays.append(np.array(value, jax.dtypes.canonicalize_dtype(value.dtype)))
    return arrays


def _is_plain(value: Any) -> bool:
    """Whether this process has the value now, and NumPy all that there is to it."""
    if isinstance(value, jax.Array):
        is_here = not isinstance(value, Tracer) and sharding.is_addressable(value)
        return is_here and value.dtype in _PLAIN
    return isinstance(value, np.ndarray | np.generic) and value.dtype in _PLAIN


# What Python's numbers are in JAX, with and without 64 bits.
_WIDE = {bool: np.bool_, int: np.int64, float: np.float64, complex: np.complex128}
_SHORT = {bool: np.bool_, int: np.int32, float: np.float32, complex: np.complex64}
# Dtypes of NumPy's own: typed PRNG keys and numbers of few bits need more care.
_PLAIN = {np.dtype(code) for code in "?bhilqBHILQefdFD"}
