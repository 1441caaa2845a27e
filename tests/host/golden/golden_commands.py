"""Run commands on the golden store and write down all that they print, write and draw.

`output/` was recorded by this script with the code that wrote the store. To record a change
that is meant, run it again, and let the diff be read:

    PYTHONPATH=.:tests python tests/host/golden/golden_commands.py tests/host/golden/output
"""

import contextlib
import fcntl
import io
import json
import os
import pathlib
import pty
import shlex
import shutil
import struct
import sys
import tempfile
import termios
import threading
import time
import warnings
from collections.abc import Iterator
from typing import Any
from unittest import mock

from support.completion import complete

HERE = pathlib.Path(__file__).parent
KILLED = 1_000_000_030.0  # when the sessions that were killed were last written to
WIDTHS = (80, 120)

SEED = "store/1797259609-2579123966"
OTHER = "store/928981903-3453687069"
SEEDS = "store/20010909-014705"

# What prints a table or rows: into a pipe, and on terminals of both widths.
SHOWN = {
    "ls": [
        "ls store",
        "ls store -c",
        "ls store -k loss -k net -k mixed",
        f"ls {SEEDS}",
        "ls store --json",
        "ls torn",
        "ls store -k los",
        "ls nowhere",
        "ls . --sort loss",
        "ls store --sort=-loss --limit 2",
        "ls store --where 'lr > 0.05 and loss < 0.1'",
        "ls store --where 'lr > 0.05 and not loss < 0.1' --columns lr,rows,mixed",
        "ls store --group-by lr -k loss",
        "ls store --group-by lr,net.width --json",
        "ls store --where 'width > 1'",
        "ls store --where 'depth > 1'",
    ],
    "compare": [
        f"compare {OTHER} {SEED}",
        f"compare {SEEDS} -d -k loss -k mixed",
        "compare store/#1 store/#4 --json",
        "compare store/5",
    ],
    "query": [
        "query 'SELECT run, lr, loss FROM runs ORDER BY run' store",
        f"query 'SELECT run, step, loss FROM rows WHERE step > 4 ORDER BY ALL' {SEEDS}",
        f"query 'SELECT run, sum(mixed) AS total FROM rows GROUP BY run' {SEED} --json",
        "query 'SELECT los FROM runs' store",
    ],
    "show": [
        f"show {SEED}",
        f"show {SEED}@1 -k net -k eval",
        f"show {SEEDS}",
        "show store",
        "show store/killed",
        "show torn",
        "show store/5",
        f"show {SEED} --json",
        f"show {SEEDS} --json",
        "show store/dtypes-1 --json",
        "show store/dtypes-3",
    ],
    "tail": [
        f"tail {SEED} --no-follow",
        f"tail {SEEDS} --no-follow -n 5 -k loss -k member",
        "tail store --no-follow -n 3",
        "tail store/killed --no-follow -n 2",
        "tail torn --no-follow",
        f"tail {SEED} --no-follow -n 4 --json",
        "tail store/dtypes-0 --no-follow -n 1 --json",
        "tail store/5 --no-follow",
        f"tail {SEED} --no-follow -n 0",
        f"tail {SEED} --no-follow -k los",
    ],
}
# What writes files or a picture.
WRITTEN = {
    "plot": [
        f"plot {SEED} -o plot.png",
        "plot store -o plot.png -k loss -k eval -k mixed",
        f"plot {SEEDS} {OTHER} -o plot.png -k loss -k member --smooth 3",
        f"plot {SEEDS} -o plot.png -k loss -k net/rest --band none",
        f"plot {SEEDS} -o plot.png -k loss --band range -x row",
        f"plot {SEEDS} -o plot.png -x epoch",
        f"plot {SEEDS} -o plot.png -k member -x lane",
        f"plot {SEEDS} -o plot.png -k half --band ci",
        f"plot {SEEDS} -o plot.png -k half --band iqm --log y",
        "plot store -o plot.png -k loss --by lr --where 'rows > 6' --log xy",
        f"plot {SEEDS} -o plot.png -k score",
        "plot store/dtypes-0 store/killed -o plot.png",
        f"plot {SEED} -o plot.png -k final -k los",
        f"plot {SEED} -o plot.png -x nothing",
        "plot store/5 -o plot.png",
        "plot torn -o plot.png",
    ],
    "export": [
        f"export {SEED} {OTHER} store/dtypes-1 store/5 --to {format} -o files"
        for format in ("csv", "json", "parquet", "tensorboard")
    ]
    + [
        "export torn store/killed --to json -o files",
        f"export {SEEDS} --to csv --project p",
    ],
    "usage": [
        *("", "--help", "sow", "tail -n -1", "plot --smooth 0", "export"),
        *(f"{name} --help" for name in ("ls", "show", "compare", "query", "tail")),
        *(f"{name} --help" for name in ("plot", "export")),
        "completion --help",
    ],
}

# What stands on the line when somebody asks how it can go on.
TYPED = [
    *("lox ", "lox s", "lox --v", "lox show sto", "lox ls ", "lox show store/"),
    f"lox show {SEED[:-3]}",
    f"lox tail {SEED} -k ",
    "lox plot store/killed -k ",
    "lox plot store/nothing -k ",
    *("lox export store --to ", "lox tail --no", "lox plot --band ", "lox completion "),
]
COMMANDS = [*SHOWN, *WRITTEN, "completion"]


def record(command: str) -> str:
    """Run all of the commands of one name, and return what there is to say of them."""
    if command == "completion":
        with _prepared():
            return "\n".join(f"$ {line}<TAB>\n{complete(line)}" for line in TYPED)
    with _prepared() as folder:
        parts: list[str] = []
        for line in SHOWN.get(command, []):
            parts.append(_piped(line, folder))
            if "--json" not in line:
                parts += [_on_terminal(line, folder, width) for width in WIDTHS]
        parts += [_piped(line, folder) for line in WRITTEN.get(command, [])]
    return "\n".join(parts)


@contextlib.contextmanager
def _prepared() -> Iterator[pathlib.Path]:
    """A folder with the stores, at a known time, in a known time zone."""
    before = os.getcwd()
    clock = {"TZ": "UTC", "TERM": "xterm-256color", "COLUMNS": "80", "LINES": "40"}
    quiet = {"NO_COLOR": "", "COLORTERM": "", "FORCE_COLOR": "", "PYTHON_COLORS": "0"}
    with tempfile.TemporaryDirectory() as name, mock.patch.dict(os.environ, clock | quiet):
        folder = pathlib.Path(name)
        for store in ("store", "torn"):
            shutil.copytree(HERE / store, folder / store)
        for journal in folder.glob("*/*/journal"):
            os.utime(journal, (KILLED, KILLED))
        time.tzset()
        os.chdir(folder)
        try:
            yield folder
        finally:
            os.chdir(before)
    time.tzset()


def _piped(line: str, folder: pathlib.Path) -> str:
    """What a command prints where there is no terminal, and what it leaves behind."""
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8") for _ in range(2))
    stores = set(folder.iterdir())
    with mock.patch.multiple(sys, stdout=out, stderr=err):
        code, picture = _called(line)
    texts = [stream.buffer.getvalue().decode() for stream in (out, err)]
    parts = [f"$ lox {line}\n", texts[0]]
    if texts[1]:
        parts.append(f"-- standard error\n{texts[1]}")
    if code:
        parts.append(f"-- code {code}\n")
    parts += picture
    for new in sorted(set(folder.iterdir()) - stores):
        parts += _files(new)
        shutil.rmtree(new) if new.is_dir() else new.unlink()
    return "".join(parts)


def _on_terminal(line: str, folder: pathlib.Path, width: int) -> str:
    """What a command prints on a terminal of some width, its colours included."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, width, 0, 0))
    data: list[bytes] = []

    def read() -> None:
        with contextlib.suppress(OSError):  # the other end is closed
            while some := os.read(ours, 4096):
                data.append(some)

    thread = threading.Thread(target=read)
    thread.start()
    with (
        open(theirs, "w", encoding="utf-8") as out,
        open(os.dup(theirs), "w", encoding="utf-8") as err,
        mock.patch.multiple(sys, stdout=out, stderr=err),
        mock.patch.dict(os.environ, {"COLUMNS": str(width)}),
    ):
        code, _ = _called(line)
    thread.join()
    os.close(ours)
    text = b"".join(data).decode().replace("\r\n", "\n").replace("\x1b", "␛")
    end = f"-- code {code}\n" if code else ""
    return f"$ lox {line}  # {width} columns\n{text}{end}"


def _called(line: str) -> tuple[Any, list[str]]:
    """The code that a command ends with, and what it has drawn."""
    from lox_host.cli.main import main

    now = KILLED + (30 if "torn" in line else 100)
    pictures: list[str] = []
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.object(time, "time", return_value=now))
        # As in a process of its own; in tests, warnings are errors.
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("default")
        if line.startswith("plot"):
            from matplotlib.figure import Figure

            def draw(figure: Any, out: str, **options: Any) -> None:
                pictures.append(f"-- {out} {options}\n{_described(figure)}")

            stack.enter_context(mock.patch.object(Figure, "savefig", draw))
        try:
            code = main(shlex.split(line))
        except SystemExit as end:
            code = end.code
    sys.stdout.flush()
    sys.stderr.flush()
    return code, pictures


def _described(figure: Any) -> str:
    """Labels and points of a figure."""
    import matplotlib.pyplot as plt

    lines = [f"size {figure.get_size_inches().tolist()}"]
    for ax in figure.axes:
        lines.append(f"panel {ax.get_ylabel()!r} against {ax.get_xlabel()!r}")
        lines.append(f"  title {ax.get_title(loc='right')!r}")
        for line in ax.lines:
            label = line.get_label()
            named = "" if label.startswith("_") else f" {label!r}"
            look = f"alpha {line.get_alpha()} width {line.get_linewidth()}"
            lines.append(f"  line{named} {line.get_color()} {look} {line.get_marker()}")
            points = zip(line.get_xdata(), line.get_ydata(), strict=True)
            lines.append("    " + " ".join(f"{x:.9g}:{y:.9g}" for x, y in points))
        for band in ax.collections:
            lines.append("  band")
            for path in band.get_paths():
                corners = path.vertices.tolist()
                lines.append("    " + " ".join(f"{x:.9g}:{y:.9g}" for x, y in corners))
        legend = ax.get_legend()
        if legend is not None:
            lines.append(f"  legend {[text.get_text() for text in legend.get_texts()]}")
    plt.close(figure)
    return "\n".join(lines) + "\n"


def _files(path: pathlib.Path) -> Iterator[str]:
    """All files in a folder, and what is in them."""
    for file in sorted(path.rglob("*")):
        name = file.relative_to(path.parent)
        if file.suffix == ".parquet":
            yield f"-- {name}\n{_table(file)}"
        elif "tfevents" in file.name:
            yield f"-- {name.parent}\n{_events(file)}"
        elif file.is_file():
            yield f"-- {name}\n{file.read_text()}\n"


def _table(file: pathlib.Path) -> str:
    """The columns of a table: names, types, values."""
    import polars as pl

    table = pl.read_parquet(file)
    return "".join(
        f"{name} {table[name].dtype} {table[name].to_list()}\n" for name in table.columns
    )


def _events(file: pathlib.Path) -> str:
    """All events of TensorBoard, in the order in which they were written."""
    from google.protobuf.json_format import MessageToDict
    from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

    lines = []
    for data in RawEventFileLoader(str(file)).Load():
        event = Event.FromString(data)
        lines.append(f"step {event.step} at {event.wall_time:.0f}")
        for value in event.summary.value:
            plugin, settings = value.metadata.plugin_data, ""
            if plugin.plugin_name == "hparams":
                # As bytes, a map has its entries in any order.
                message = HParamsPluginData.FromString(plugin.content)
                settings = json.dumps(MessageToDict(message), sort_keys=True)
                plugin.ClearField("content")
            lines.append(f"  {' '.join(f'{value} {settings}'.split())}")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    output = pathlib.Path(sys.argv[1]).resolve()
    output.mkdir(exist_ok=True)
    for command in COMMANDS:
        (output / f"{command}.txt").write_text(record(command))
