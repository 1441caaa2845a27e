"""Ways in which a store can be damaged, by accident or on purpose."""

import json
import os
import pathlib
import random
import shutil
import zlib
from collections.abc import Callable

Mutation = Callable[[pathlib.Path, random.Random], None]

HOSTILE = [
    *(10**18, -1, 2**31, 0, 1.5, 1e300, float("inf"), float("nan"), True, None, "", []),
    *({}, [[]], {"a": 1}, "/dev/zero", "../../outside", "0000.arrows/../x", "\x1b[31m"),
    *("object", "float32", "V99", "__doc__", [10**18], [-1], [0] * 40, "a\nb", "\0"),
]


def _files(store: pathlib.Path) -> list[pathlib.Path]:
    return sorted(path for path in store.rglob("*") if path.is_file())


def _sessions(store: pathlib.Path) -> list[pathlib.Path]:
    return sorted(path for path in store.iterdir() if path.is_dir())


def _change_bytes(change: Callable[[bytes, random.Random], bytes]) -> Mutation:
    def mutate(store: pathlib.Path, chance: random.Random) -> None:
        path = chance.choice([path for path in _files(store) if path.stat().st_size])
        path.write_bytes(change(path.read_bytes(), chance))

    return mutate


def _change_lines(change: Callable[[list[bytes], random.Random], list[bytes]]) -> Mutation:
    def mutate(store: pathlib.Path, chance: random.Random) -> None:
        journals = [path for path in _files(store) if path.name == "journal"]
        path = chance.choice(journals)
        lines = path.read_bytes().splitlines(keepends=True)
        path.write_bytes(b"".join(change(lines, chance)))

    return mutate


def _flip(data: bytes, chance: random.Random) -> bytes:
    at = chance.randrange(len(data))
    return data[:at] + bytes([data[at] ^ 1 << chance.randrange(8)]) + data[at + 1 :]


def _zero(data: bytes, chance: random.Random) -> bytes:
    start = chance.randrange(len(data))
    end = min(len(data), start + chance.choice([1, 8, 512]))
    return data[:start] + bytes(end - start) + data[end:]


def _without_line(lines: list[bytes], chance: random.Random) -> list[bytes]:
    at = chance.randrange(len(lines))
    return lines[:at] + lines[at + 1 :]


def _with_line_twice(lines: list[bytes], chance: random.Random) -> list[bytes]:
    at, place = chance.randrange(len(lines)), chance.randrange(len(lines) + 1)
    return [*lines[:place], lines[at], *lines[place:]]


def _with_lines_swapped(lines: list[bytes], chance: random.Random) -> list[bytes]:
    one, other = chance.randrange(len(lines)), chance.randrange(len(lines))
    lines[one], lines[other] = lines[other], lines[one]
    return lines


def _with_hostile_field(lines: list[bytes], chance: random.Random) -> list[bytes]:
    at = chance.randrange(len(lines))
    entry = json.loads(lines[at][9:])
    # A random way down into the entry.
    node, place = {"": entry}, ""
    while isinstance(node[place], dict | list) and node[place] and chance.random() < 0.85:
        node = node[place]
        place = chance.choice(list(node) if isinstance(node, dict) else range(len(node)))
    node[place] = chance.choice(HOSTILE)
    text = json.dumps(entry).encode()
    return [*lines[:at], b"%08x %s\n" % (zlib.crc32(text), text), *lines[at + 1 :]]


def _delete_file(store: pathlib.Path, chance: random.Random) -> None:
    chance.choice(_files(store)).unlink()


def _delete_session(store: pathlib.Path, chance: random.Random) -> None:
    shutil.rmtree(chance.choice(_sessions(store)))


def _copy_session(store: pathlib.Path, chance: random.Random) -> None:
    name = f"2030010{chance.randrange(1, 9)}-000000-000000000-0-00000000"
    shutil.copytree(chance.choice(_sessions(store)), store / name)


def _rename_session(store: pathlib.Path, chance: random.Random) -> None:
    chance.choice(_sessions(store)).rename(store / "20010101-000000-000000000-0-00000000")


def _replace_file(store: pathlib.Path, chance: random.Random) -> None:
    path = chance.choice(_files(store))
    path.unlink()
    outside = store.parent / "outside"
    outside.write_bytes(bytes(10**6))
    make = chance.choice([
        lambda: path.symlink_to("/dev/zero"),
        lambda: path.symlink_to(outside),
        lambda: os.mkfifo(path),
        path.mkdir,
    ])  # fmt: skip
    make()


def _append(data: bytes, chance: random.Random) -> bytes:
    return data + chance.choice([b"\0" * 100, b"half a line", data[-50:], data])


# By name. Whoever reads a store that was damaged by accident gets what was written, or a
# part of it and a warning, or an error. Those on purpose can say whatever they like, but do
# nothing else.
ACCIDENTS: dict[str, Mutation] = {
    "flip": _change_bytes(_flip),
    "cut": _change_bytes(lambda data, chance: data[: chance.randrange(len(data))]),
    "zero": _change_bytes(_zero),
    "append": _change_bytes(_append),
    "line missing": _change_lines(_without_line),
    "line twice": _change_lines(_with_line_twice),
    "lines swapped": _change_lines(_with_lines_swapped),
    "file missing": _delete_file,
    "session missing": _delete_session,
    "session twice": _copy_session,
    "session renamed": _rename_session,
    "file replaced": _replace_file,
}
ATTACKS: dict[str, Mutation] = {"hostile field": _change_lines(_with_hostile_field)}
