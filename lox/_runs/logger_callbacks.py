"""The callbacks of loggers, which take the packets of a program on threads of JAX.

A packet is queued at once, and decoded later, together with others of the same layout:

    program -> Packet -> WriteRows.__call__ -> HostLogger.take        puts it into a queue
    writer thread     -> WriteRows.blocks(packets)                    decodes many at once
                      -> Writer.write(blocks)
"""

import dataclasses
import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np

from lox._core.analysis import records_in
from lox._core.record import listed, log_effect, log_p
from lox._jax import equations
from lox._jax.extend import JaxprEqn
from lox._jax.types import Params, Program
from lox._rows.rows import Rows
from lox._runs.to_blocks import Impls, flatten_examples, flatten_logs, impls_of, to_blocks
from lox._stream.packet import Packet, stacked
from lox_host.host_logger import HostLogger
from lox_host.rows import Block


@dataclasses.dataclass(frozen=True)
class WriteRows:
    """Passes packets to a logger, and decodes them on its writer thread.

    Attributes:
        logger: The logger, which knows the runs.
        prefix: Put before each key.
        impls: By key, which leaves hold data of typed PRNG keys.
        expected: How many rows each key will have. Infinity: unknown.
        is_sparse: Whether a condition leaves out rows, so that their number is unknown.
    """

    logger: HostLogger
    prefix: str = ""
    impls: tuple[tuple[str, Impls], ...] = ()
    expected: tuple[tuple[str, float], ...] = ()
    is_sparse: bool = False

    @property
    def everywhere(self) -> bool:
        return self.logger.everywhere

    def check_processes(self, called: Collection[int], keys: Sequence[str]) -> None:
        """Raise if a process would get records that it does not write."""
        silent = sorted(set(called) - {0})
        if silent and self.logger.first_process_only:
            raise ValueError(
                f"{', '.join(self.logger.first_process_only)} writes in the first process "
                f"only, but process {silent[0]} would get records of {listed(keys)}: the "
                "program logs them on devices of several processes, in a `shard_map`, or "
                "does not run on the first process. Give the logger `all_processes=True`, "
                "use `logger.spool`, or log values that are the same on all devices "
                "outside the `shard_map`."
            )

    def configured(self, jaxpr: Program, interval: int | None) -> "WriteRows":
        """Return the callback for a program that sends every `interval`-th row."""
        impls = {
            key: impls_of(value)
            for record in records_in(jaxpr)
            for key, value in zip(record.keys, record.values, strict=True)
        }
        expected = {
            key: number if interval is None else _thinned(number, interval)
            for key, number in _count_rows(jaxpr).items()
        }
        if self.is_sparse:
            expected = dict.fromkeys(expected, math.inf)
        return dataclasses.replace(
            self, impls=tuple(impls.items()), expected=tuple(expected.items())
        )

    def of(self, logs: Mapping[str, Rows]) -> "WriteRows":
        """Return the callback for logs that are sent all at once."""
        impls = {key: impls_of(rows.value) for key, rows in logs.items()}
        return dataclasses.replace(self, impls=tuple(impls.items()))

    def __call__(self, packet: Packet) -> None:
        layout = packet.layout
        self.logger.take(self, layout, packet, layout.nbytes, stoppable=layout.stoppable)

    def wait_for_room(self) -> None:
        self.logger.has_room()

    def blocks(
        self, packets: Sequence[Packet], numbers: np.ndarray, times: np.ndarray
    ) -> list[Block]:
        """Decode packets of one layout into blocks of rows.

        Args:
            packets: The packets.
            numbers: Their numbers in the order of arrival.
            times: When they arrived, in seconds since 1970.
        """
        found: list[Block] = []
        for delivery in stacked(packets):
            logs, run, valid = delivery.logs, delivery.run, delivery.valid
            # (packets,) -> (packets, *examples), as `run` is.
            packet = np.arange(len(packets)).reshape(-1, *(1 for _ in delivery.batch))
            of_runs = {"run": run, "packet": packet + np.zeros_like(run)}
            shared = self._shared_examples(run)
            if shared is not None:
                of_runs["example"] = shared
            of_runs = flatten_examples(of_runs, run.ndim, valid)
            rows = flatten_logs(logs, run.ndim, valid)
            found += to_blocks(
                {self.prefix + key: of_key for key, of_key in rows.items()},
                of_runs["run"],
                {self.prefix + key: impls for key, impls in self.impls},
                {self.prefix + key: number for key, number in self.expected},
                numbers[of_runs["packet"]],
                times[of_runs["packet"]],
                of_runs.get("example"),
            )
        return found

    def _shared_examples(self, run: np.ndarray) -> np.ndarray | None:
        """Return the index of each example, if several of a packet have one run.

        (packets, *batch) -> (packets, *batch)
        """
        if run.ndim < 2:
            return None
        # (packets, *batch) -> (packets, examples)
        flat = run.reshape(len(run), -1)
        # Usually all packets are of the same runs.
        some = flat[:1] if (flat == flat[0]).all() else flat
        # Sorted, an id that occurs twice is next to itself.
        ordered = np.sort(some, axis=1)
        is_twice = ordered[:, 1:] == ordered[:, :-1]
        if not is_twice.any():
            return None
        runs = np.unique(ordered[:, 1:][is_twice]).tolist()
        self.logger.warn_of_shared(runs, flat.shape[1])
        index = np.arange(flat.shape[1], dtype=np.int32)
        return np.broadcast_to(index, flat.shape).reshape(run.shape)


@dataclasses.dataclass(frozen=True)
class FinishRuns:
    """Ends runs on the host.

    Attributes:
        logger: The logger, which knows the runs.
        later: Whether to wait until the program has ended, because earlier logs may arrive
            after this call: the order of host calls inside and outside of a nested function
            is not known.
    """

    logger: HostLogger
    later: bool

    # All processes know the run, even those that do not write it.
    everywhere = True

    def __call__(self, packet: Packet) -> None:
        for delivery in packet.deliveries():
            valid = True if delivery.valid is None else delivery.valid
            ids = delivery.run[np.broadcast_to(valid, delivery.run.shape)].tolist()
            if self.later or not packet.layout.stoppable:
                self.logger.finish_later(ids)
            else:
                self.logger.finish(ids)


def _count_rows(program: Program | Params) -> Counter[str]:
    """Count the rows of each key that a program logs. Infinity: that is not known."""
    total: Counter[str] = Counter()
    for jaxpr in equations.jaxprs_in(program):
        for eqn in jaxpr.eqns:
            if log_effect in eqn.effects:
                total.update(_rows_of(eqn))
    return total


def _rows_of(eqn: JaxprEqn) -> Mapping[str, float]:
    name = equations.primitive_name(eqn)
    if eqn.primitive is log_p:
        return Counter(eqn.params["keys"])
    if name == "cond":
        branches = [_count_rows(branch) for branch in eqn.params["branches"]]
        keys = dict.fromkeys(key for rows in branches for key in rows)
        return {key: _common(rows[key] for rows in branches) for key in keys}
    times = {"scan": eqn.params.get("length"), "while": math.inf}.get(name, 1)
    rows = _count_rows(eqn.params)
    return {key: times * number if times else 0 for key, number in rows.items()}


def _common(numbers: Iterable[float]) -> float:
    """Return the number that all branches have in common. Infinity: they differ."""
    distinct = set(numbers)
    return distinct.pop() if len(distinct) == 1 else math.inf


def _thinned(number: float, interval: int) -> float:
    return number if number == math.inf else -(-number // interval)
