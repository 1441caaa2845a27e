"""The default: a record that no transformation collects is printed."""

import sys

import jax
import numpy as np

from lox._core.log import print_with
from lox._core.record import Record
from lox._logdict.logdict import logdict
from lox._stream.emit import emit
from lox._stream.host_call_order import last_token
from lox._stream.packet import Packet
from lox_host.display.values import short


@print_with
def _print(record: Record) -> None:
    """Add a host call to the program that prints the record."""
    emit([record], print_packet, last_token())


def print_packet(packet: Packet) -> None:
    for record in packet.records():
        print_record(record)


def print_record(record: Record) -> None:
    """Print a record in one line, followed by its steps."""
    values = dict(zip(record.keys, record.values, strict=True))
    _print_line(*_of_those_who_logged(values, record.steps, record.valid))


def print_logs(logs: logdict) -> None:
    """Print logs in one line, followed by the steps of their first key."""
    key, *_ = logs
    steps = {name: step[key] for name, step in logs.steps.items() if key in step}
    if "example" in steps:
        steps["example"] = steps.pop("example")  # comes last
    rows = logs.rows()[key]
    valid = None if rows.time else rows.valid
    _print_line(*_of_those_who_logged(logs.data, steps, valid))


def _of_those_who_logged(
    values: dict, steps: dict, valid: np.ndarray | None
) -> tuple[dict, dict]:
    """Return the values and steps of the examples that logged, and their indices."""
    if valid is None:
        return values, steps
    values, steps = jax.tree.map(lambda x: x[valid], (values, steps))
    examples = np.argwhere(valid)
    name = "example" if "example" not in steps else "index"  # a step of the user's stays
    return values, {**steps, name: examples[:, 0] if examples.shape[1] == 1 else examples}


def _print_line(values: dict, steps: dict) -> None:
    parts = ["{" + ", ".join(f"{key!r}: {short(x)}" for key, x in values.items()) + "}"]
    parts += [f"{name}={short(step)}" for name, step in steps.items()]
    # A single write, so that lines of other threads do not end up inside this one.
    sys.stdout.write(" ".join(parts) + "\n")
    sys.stdout.flush()
