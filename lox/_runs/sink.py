"""What takes the records of a program for a logger, on threads of JAX."""

import dataclasses
import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from lox._core.analysis import records_in
from lox._core.record import Record, listed, log_effect, log_p
from lox._jax import equations
from lox._rows.rows import Rows
from lox._runs.to_blocks import Impls, blocks, by_lane, impls_of
from lox._stream.packet import Contents, Parcel, stacked
from lox_host.rows import Block
from lox_host.run_registry import BaseDesk


@dataclasses.dataclass(frozen=True)
class Sink:
    """Sends what arrives to a desk.

    Attributes:
        desk: Where the runs are known.
        prefix: Put before each key.
        impls: By key, which leaves hold data of typed PRNG keys.
        expected: By key, how many rows there will be. Infinity: nobody knows.
    """

    desk: BaseDesk
    prefix: str = ""
    impls: tuple[tuple[str, Impls], ...] = ()
    expected: tuple[tuple[str, float], ...] = ()

    @property
    def everywhere(self) -> bool:
        return self.desk.everywhere

    def check_processes(self, called: Collection[int], keys: Sequence[str]) -> None:
        """Raise if a process would be called that does not write what it gets."""
        unheard = sorted(set(called) - {0})
        if unheard and self.desk.first_only:
            raise ValueError(
                f"{', '.join(self.desk.first_only)} writes in the first process only, but "
                f"process {unheard[0]} would get records of {listed(keys)}: the program "
                "logs them on devices of several processes, in a `shard_map`, or does not "
                "run on the first process. Give the logger `all_processes=True`, use "
                "`logger.spool`, or log what is the same on all devices outside of the "
                "`shard_map`."
            )

    def told(self, jaxpr: Any, interval: int | None) -> "Sink":
        values = [
            (key, value)
            for record in records_in(jaxpr, on_their_way=False)
            for key, value in zip(record.keys, record.values, strict=True)
        ]
        rows = _rows_in(jaxpr)
        expected = {key: _thinned(number, interval) for key, number in rows.items()}
        impls = {key: impls_of(value) for key, value in values}
        return dataclasses.replace(
            self, impls=tuple(impls.items()), expected=tuple(expected.items())
        )

    def of(self, logs: Mapping[str, Rows]) -> "Sink":
        """What takes these logs, all of them at once."""
        impls = {key: impls_of(rows.value) for key, rows in logs.items()}
        return dataclasses.replace(self, impls=tuple(impls.items()))

    def __call__(self, parcel: Parcel) -> None:
        contents = parcel.contents
        site = Site(self, contents)
        self.desk.take(site, parcel, contents.nbytes, stoppable=contents.stoppable)


@dataclasses.dataclass(frozen=True)
class Site:
    """Where parcels with the same contents come from."""

    sink: Sink
    contents: Contents

    def blocks(self, parcels: Sequence[Parcel], order: np.ndarray) -> list[Block]:
        records = stacked(parcels)
        return [block for record in records for block in self._blocks(record, order)]

    def _blocks(self, record: Record, order: np.ndarray) -> list[Block]:
        (logs, run), sink = record.values, self.sink
        order = order.reshape(-1, *(1 for _ in record.batch)) + np.zeros_like(run)
        rows = by_lane(logs.rows(), run.ndim, record.valid)
        lanes = by_lane({"run": run, "order": order}, run.ndim, record.valid)
        rows = {sink.prefix + key: own for key, own in rows.items()}
        impls = {sink.prefix + key: own for key, own in sink.impls}
        number = max((n for key, n in sink.expected if key in logs), default=math.inf)
        expected = None if number == math.inf else int(number)
        return blocks(rows, lanes["run"], impls, expected, lanes["order"])


def _rows_in(program: Any) -> Counter[str]:
    """How many rows of each key a program logs. Infinity: nobody knows."""
    total: Counter[str] = Counter()
    for jaxpr in equations.jaxprs_in(program):
        for eqn in jaxpr.eqns:
            if log_effect in eqn.effects:
                total.update(_rows_of(eqn))
    return total


def _rows_of(eqn: Any) -> Mapping[str, float]:
    name = equations.name_of(eqn)
    if eqn.primitive is log_p:
        return Counter(eqn.params["keys"])
    if name == "cond":
        each = [_rows_in(branch) for branch in eqn.params["branches"]]
        return {key: _common(rows[key] for rows in each) for key in _keys(each)}
    times = {"scan": eqn.params.get("length"), "while": math.inf}.get(name, 1)
    rows = _rows_in(eqn.params)
    return {key: times * number if times else 0 for key, number in rows.items()}


def _common(numbers: Iterable[float]) -> float:
    """The number that they all are. Which branch is taken, nobody knows."""
    each = set(numbers)
    return each.pop() if len(each) == 1 else math.inf


def _keys(each: Iterable[Mapping[str, float]]) -> list[str]:
    return list(dict.fromkeys(key for rows in each for key in rows))


def _thinned(number: float, interval: int | None) -> float:
    return number if interval is None or number == math.inf else -(-number // interval)
