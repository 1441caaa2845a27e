"""The commands of the command line and their options."""

import argparse
from collections.abc import Callable
from typing import NamedTuple

from lox_host.cli.completion import SHELLS, complete_key, complete_run
from lox_host.default_store import DEFAULT

RUN = (
    "a run as `lox ls` prints it: STORE/NAME, or the beginning of the name if it is "
    "unique; STORE/NAME@1 for an earlier session; STORE/SESSION for all runs of a session; "
    "STORE for all its runs, each in its newest session (default: .lox)"
)
PATHS = "a store, a folder with stores in it, or a run or session of one (default: .lox)"
FORMATS = (
    *("csv", "json", "parquet", "tensorboard", "delta", "iceberg", "lance"),
    *("wandb", "mlflow", "trackio", "neptune"),
)


class Command(NamedTuple):
    """A command of the command line.

    Attributes:
        help: What it does, for `lox --help`.
        add_options: Adds its arguments and options to its parser.
    """

    help: str
    add_options: Callable[[argparse.ArgumentParser], None]


def parser_of_lox(command: str | None = None) -> argparse.ArgumentParser:
    """Return the parser of the command line.

    Args:
        command: Know only this command, which is quicker. None: know all of them.
    """
    parser = argparse.ArgumentParser(
        "lox", description="Look at runs that `lox.loggers.SaveLogger` or `lox.save` saved."
    )
    parser.add_argument(
        "--version",
        action=_Version,
        nargs=0,
        default=argparse.SUPPRESS,
        help="print the version",
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, (help, add_options) in COMMANDS.items():
        if command in (None, name):
            description = f"{help[0].upper()}{help[1:]}."
            add_options(commands.add_parser(name, help=help, description=description))
    return parser


def _add_ls(ls: argparse.ArgumentParser) -> None:
    _add_where(ls, "*", PATHS, metavar="PATH")
    _add_keys(ls, "show the last value of this key; may be repeated")
    _add_condition(ls)
    ls.add_argument(
        "--sort",
        metavar="NAME",
        help="sort by a config entry, a last value, or a field such as `start`",
    )
    ls.add_argument("-r", "--reverse", action="store_true", help="sort in descending order")
    ls.add_argument(
        "--columns",
        metavar="NAMES",
        type=_names,
        default=[],
        help="show these columns: config entries, keys and fields, separated by commas",
    )
    ls.add_argument(
        "--group-by",
        metavar="NAMES",
        type=_names,
        default=[],
        help="show one line per value of these, with means over runs",
    )
    ls.add_argument(
        "-n",
        "--limit",
        metavar="N",
        type=_natural,
        help="show N runs (default: 50 on a terminal, all elsewhere)",
    )
    ls.add_argument("-c", "--config", action="store_true", help="show the whole config")
    _add_json(ls)


def _add_show(show: argparse.ArgumentParser) -> None:
    _add_where(show, "*", RUN)
    _add_keys(show, "only this key; may be repeated")
    _add_condition(show)
    _add_json(show)


def _add_compare(compare: argparse.ArgumentParser) -> None:
    _add_where(compare, "*", RUN)
    _add_keys(compare, "only the last value of this key; may be repeated")
    compare.add_argument(
        "-d", "--differing", action="store_true", help="show only what differs"
    )
    _add_json(compare)


def _add_query(query: argparse.ArgumentParser) -> None:
    query.add_argument(
        "sql",
        metavar="SQL",
        help="a query over the tables `runs` and `rows`, such as 'SELECT run, "
        "min(loss) FROM rows GROUP BY run'",
    )
    _add_where(query, "*", RUN)
    _add_condition(query)
    _add_json(query)


def _add_tail(tail: argparse.ArgumentParser) -> None:
    _add_where(tail, "?", RUN)
    tail.add_argument(
        "-n",
        "--rows",
        dest="number",
        metavar="N",
        type=_natural,
        default=10,
        help="how many rows to start with (default: 10)",
    )
    _add_keys(tail, "only this key; may be repeated")
    tail.add_argument(
        "--no-follow", dest="follow", action="store_false", help="do not wait for new rows"
    )
    _add_json(tail)


def _add_plot(plot: argparse.ArgumentParser) -> None:
    _add_where(plot, "*", RUN)
    _add_keys(plot, "draw a panel for this key; may be repeated (default: all numbers)")
    plot.add_argument(
        "-o",
        "--out",
        metavar="FILE",
        default="plot.png",
        help="the image file: .png, .pdf or .svg (default: plot.png)",
    )
    plot.add_argument(
        "-x", "--x", metavar="STEP", help="the step to plot against, `time` or `row`"
    )
    plot.add_argument(
        "--by",
        metavar="NAME",
        help="draw one curve per value of this config entry, such as `lr`",
    )
    _add_condition(plot)
    plot.add_argument(
        "--band",
        choices=["std", "range", "80%", "ci", "iqm", "none"],
        default="std",
        metavar="BAND",
        help="what to draw around the mean of several runs: `std`, `range`, `80%%` "
        "(without the highest and the lowest tenth), `ci` (95%% confidence), `iqm` (the "
        "interquartile mean with 95%% confidence), or `none` to draw every run "
        "(default: std)",
    )
    plot.add_argument(
        "--log",
        choices=["x", "y", "xy"],
        default="",
        help="make these axes logarithmic",
    )
    plot.add_argument(
        "--smooth",
        metavar="N",
        type=_positive,
        default=1,
        help="draw a moving average over N rows",
    )


def _add_view(view: argparse.ArgumentParser) -> None:
    help = "a store, or a folder with stores in it (default: .lox)"
    _add_where(view, "*", help, metavar="DIR")
    view.add_argument(
        "--port",
        metavar="N",
        type=_port,
        default=8642,
        help="the port to serve on; 0 for any free port (default: 8642)",
    )
    view.add_argument(
        "--host",
        metavar="ADDRESS",
        default="127.0.0.1",
        help="the address to serve on; other machines need the token in the printed URL "
        "(default: 127.0.0.1, this machine only)",
    )
    view.add_argument(
        "--no-browser",
        dest="browser",
        action="store_false",
        help="only print the URL",
    )
    view.add_argument(
        "--export",
        metavar="FILE.html",
        help="write one file that needs no server and no network",
    )


def _add_export(export: argparse.ArgumentParser) -> None:
    _add_where(export, "*", RUN)
    export.add_argument(
        "--to", choices=FORMATS, required=True, help="the format or the tracker"
    )
    export.add_argument(
        "-o", "--out", metavar="DIR", help="the folder (default: the name of the format)"
    )
    export.add_argument(
        "--project", metavar="NAME", help="the project in the tracker (default: lox)"
    )


def _add_doctor(doctor: argparse.ArgumentParser) -> None:
    _add_where(doctor, "?", "a store (default: .lox)", metavar="DIR")
    doctor.add_argument(
        "--repair",
        dest="to",
        metavar="DIR",
        help="write everything that can be read to a new store; this one stays as it is",
    )


def _add_push(push: argparse.ArgumentParser) -> None:
    push.add_argument(
        "urls",
        metavar="URL",
        nargs="*",
        help="a store, such as s3://bucket/exp1 (default: all that have something left)",
    )


def _add_compact(compact: argparse.ArgumentParser) -> None:
    compact.add_argument("urls", metavar="URL", nargs="+", help="such as s3://bucket/exp1")


def _add_completion(completion: argparse.ArgumentParser) -> None:
    completion.add_argument("shell", choices=SHELLS)


def _add_where(
    parser: argparse.ArgumentParser, nargs: str, help: str, metavar: str = "RUN"
) -> None:
    default = [DEFAULT] if nargs == "*" else DEFAULT
    where = parser.add_argument(
        "where", metavar=metavar, nargs=nargs, default=default, help=help
    )
    where.completer = complete_run  # pyright: ignore[reportAttributeAccessIssue]


def _add_keys(parser: argparse.ArgumentParser, help: str) -> None:
    keys = parser.add_argument(
        "-k", "--key", dest="keys", metavar="KEY", action="append", default=[], help=help
    )
    keys.completer = complete_key  # pyright: ignore[reportAttributeAccessIssue]


def _add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--json", dest="as_json", action="store_true", help="print JSON, for scripts"
    )


def _add_condition(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--where",
        dest="condition",
        metavar="CONDITION",
        help="only runs for which this is true, such as 'lr > 1e-3 and seed < 4'",
    )


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _natural(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number")
    return int(text)


def _positive(text: str) -> int:
    if not _natural(text):
        raise argparse.ArgumentTypeError("must be at least 1")
    return int(text)


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a port: use a number up to 65535"
        )
    return int(text)


class _Version(argparse.Action):
    """Print the version, which takes a while to find out."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from importlib.metadata import version

        print(f"lox {version('jax-lox')}")
        parser.exit()


# Each command is a function in the module of its name.
COMMANDS = {
    "ls": Command("list runs with their configs and last values", _add_ls),
    "show": Command("show the keys of a run, their values and curves", _add_show),
    "compare": Command("show configs and last values of runs side by side", _add_compare),
    "query": Command("run SQL queries over runs, with DuckDB", _add_query),
    "tail": Command("print the last rows of a run, and new ones until it ends", _add_tail),
    "plot": Command("draw curves and histograms of runs in an image file", _add_plot),
    "view": Command("show runs in a browser, live", _add_view),
    "export": Command(
        "write runs in another format, or send them to a tracker", _add_export
    ),
    "doctor": Command(
        "report what is damaged in a store, and recover the rest", _add_doctor
    ),
    "push": Command("upload what killed processes left on this machine", _add_push),
    "compact": Command("join the small objects of stores on object storage", _add_compact),
    "completion": Command("print a completion script for a shell", _add_completion),
}
