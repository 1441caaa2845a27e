"""Send logs with concrete values straight to the writer, without a program.

In a program, primitives carry records, which are packed for the host. In a Python loop,
where nothing is traced, `logger.log` has the values themselves, and only has to put them
into a packet. The first call with some keys, dtypes and shapes works out how, and keeps the
result as a `SendPlan` for later calls of the same form:

    logger.log(run, {"loss": 0.5, "acc": acc}, step=i)

    signature   ("loss", "acc"), ("step",), (float32 [], float32 [], int32 [])
    plan        which callback takes it, the layout of its packets, the order of arrays

All packets of a plan have one layout, so the writer can decode thousands of them at once.
"""

import dataclasses
from collections import OrderedDict
from collections.abc import Hashable, Mapping, Sequence

import jax
import numpy as np
from jax.core import Tracer
from jax.typing import ArrayLike

from lox._core.log import loggable, narrowed
from lox._core.record import Delivery
from lox._jax import sharding, tracing
from lox._jax.types import PyTree, PyTreeDef
from lox._logdict.logdict import logdict
from lox._rows.rows import without_keys
from lox._runs.logger_callbacks import WriteRows
from lox._stream.packet import Layout, Packet
from lox_host.host_logger import HostLogger

# How many plans are kept per logger. Some programs log under ever new keys.
_MOST = 1000


@dataclasses.dataclass(frozen=True)
class SendPlan:
    """How to send logs of one signature.

    Attributes:
        source: The callback that takes the packets, and decodes them.
        layout: The layout of the packets.
        order: For each array of a packet, which of the given arrays it is.
    """

    source: WriteRows
    layout: Layout
    order: Sequence[int]


class DirectSender:
    """Sends logs with concrete values to a logger on the host."""

    def __init__(self, logger: HostLogger):
        self._logger = logger
        self._plans: OrderedDict[Hashable, SendPlan] = OrderedDict()

    def send(
        self, run: ArrayLike, logs: Mapping[str, PyTree], steps: Mapping[str, ArrayLike]
    ) -> bool:
        """Send logs, or return False if that takes a program."""
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
        # The run is not part of the signature: it is the last array of every packet.
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
        self,
        logs: Mapping[str, PyTree],
        steps: Mapping[str, ArrayLike],
        arrays: list[np.ndarray],
    ) -> SendPlan:
        """Work out how to send logs like these, or raise if they are not logs."""
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
        # Flattening has put the arrays into another order. Find each by its identity.
        numbers = {id(array): i for i, array in enumerate(arrays)}
        # Nothing is packed: the arrays are on the host already.
        one_by_one = [[i] for i in range(len(leaves))]
        layout = Layout.of(form, leaves, one_by_one)
        return SendPlan(
            WriteRows(self._logger).of(rows), layout, [numbers[id(x)] for x in leaves]
        )


def _leaves(logs: logdict) -> tuple[list[np.ndarray], PyTreeDef]:
    leaves, form = jax.tree.flatten(logs)
    return _arrays(leaves), form


def _arrays(values: Sequence[PyTree]) -> list[np.ndarray]:
    """Return copies of all values as arrays; none if any is not concrete and plain."""
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
        elif (narrow := narrowed(np.array(value))) is not None:
            arrays.append(narrow)
        else:
            return []
    return arrays


def _is_plain(value: object) -> bool:
    """Return whether this process has the value now, in a dtype that NumPy has."""
    if isinstance(value, jax.Array):
        is_here = not isinstance(value, Tracer) and sharding.is_addressable(value)
        return is_here and value.dtype in _PLAIN
    return isinstance(value, np.ndarray | np.generic) and value.dtype in _PLAIN


# The dtypes of Python's numbers in JAX, with and without 64 bits.
_WIDE = {bool: np.bool_, int: np.int64, float: np.float64, complex: np.complex128}
_SHORT = {bool: np.bool_, int: np.int32, float: np.float32, complex: np.complex64}
# NumPy's own dtypes. Others, such as typed PRNG keys and int4, take the way of a program.
_PLAIN = {np.dtype(code) for code in "?bhilqBHILQefdFD"}
