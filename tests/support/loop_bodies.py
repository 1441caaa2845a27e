"""What the loops of a compiled program do to large arrays, read from its text."""

import re
from collections.abc import Callable, Iterator
from typing import Any

import jax

# What leaves an array where it is, or writes a part of it.
IN_PLACE = {
    "parameter", "get-tuple-element", "tuple", "bitcast", "while", "conditional", "call",
    "fusion", "dynamic-update-slice",
}  # fmt: skip


def whole_array_operations(fun: Callable, size: int, *args: Any) -> list[str]:
    """Return what the loops of a jitted function do to whole arrays with an axis of `size`.

    Fusions are looked into: one that only writes a part of an array is no such thing.
    """
    text = jax.jit(fun).lower(*args).compile().as_text()
    assert text is not None
    computations = _computations(text)
    inside: set[str] = set()
    waiting = [
        name
        for lines in computations.values()
        for line in lines
        for name in re.findall(r"body=%([\w.\-]+)", line)
    ]
    while waiting:
        name = waiting.pop()
        if name not in inside:
            inside.add(name)
            waiting += _called(computations[name])
    return [
        line
        for name in sorted(inside)
        for line in computations[name]
        if _is_of_size(line, size) and _operation(line) not in IN_PLACE
    ]


def _computations(text: str) -> dict[str, list[str]]:
    """Return the lines of each computation."""
    found: dict[str, list[str]] = {}
    name = ""
    for line in text.splitlines():
        opening = re.match(r"(?:ENTRY )?%([\w.\-]+) \(.*\{$", line)
        if opening:
            name = opening[1]
            found[name] = []
        elif " = " in line and name:
            found[name].append(line.strip())
    return found


def _called(lines: list[str]) -> Iterator[str]:
    for line in lines:
        yield from re.findall(r"(?:body|calls|to_apply|condition)=%([\w.\-]+)", line)
        for names in re.findall(r"branch_computations=\{([^}]*)\}", line):
            yield from re.findall(r"%([\w.\-]+)", names)
        yield from re.findall(r"(?:true|false)_computation=%([\w.\-]+)", line)


def _is_of_size(line: str, size: int) -> bool:
    """Return whether the result of a line is an array with such an axis."""
    result = line.split(" = ", 1)[1]
    shape = re.match(r"\w+\[([\d,]*)\]", result)
    return shape is not None and str(size) in shape[1].split(",")


def _operation(line: str) -> str:
    found = re.match(r"\S+ ([\w\-]+)\(", line.split(" = ", 1)[1])
    return found[1] if found else line
