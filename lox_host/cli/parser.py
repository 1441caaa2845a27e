"""What can be typed: commands and their options."""

import argparse
from typing import TypeAlias

from lox_host.cli.complete import SHELLS, complete_key, complete_run
from lox_host.cli.select_runs import DEFAULT

RUN = (
    "a run as `lox ls` prints it: STORE/NAME, or enough of the name to tell it from "
    "others; STORE/NAME@1 for an earlier session; STORE/SESSION for all runs of a session; "
    "STORE for all its runs, each in its newest session (default: .lox)"
)
FORMATS = (
    *("csv", "json", "parquet", "tensorboard"),
    *("wandb", "mlflow", "trackio", "neptune"),
)

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def parser_of_lox() -> argparse.ArgumentParser:
    """Return what understands the command line."""
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
    for add in (
        *(_add_ls, _add_show, _add_tail, _add_plot, _add_export),
        *(_add_doctor, _add_completion),
    ):
        add(commands)
    return parser


def _add_ls(commands: Commands) -> None:
    ls = _command(commands, "ls", "list runs, their rows and last values")
    _add_where(ls, "?", "a store, or a session in one (default: .lox)", metavar="DIR")
    _add_keys(ls, "show the last value of this key; may be repeated")
    ls.add_argument("-c", "--config", action="store_true", help="show how runs were set up")
    _add_json(ls)


def _add_show(commands: Commands) -> None:
    show = _command(commands, "show", "show the keys of a run, their values and curves")
    _add_where(show, "*", RUN)
    _add_keys(show, "only this key; may be repeated")
    _add_json(show)


def _add_tail(commands: Commands) -> None:
    what = "print the last rows of a run, and those that come until it ends"
    tail = _command(commands, "tail", what)
    _add_where(tail, "?", RUN)
    tail.add_argument(
        "-n",
        "--rows",
        dest="number",
        metavar="N",
        type=_natural,
        default=10,
        help="how many rows to begin with (default: 10)",
    )
    _add_keys(tail, "only this key; may be repeated")
    tail.add_argument(
        "--no-follow", dest="follow", action="store_false", help="do not wait for more"
    )
    _add_json(tail)


def _add_plot(commands: Commands) -> None:
    plot = _command(commands, "plot", "draw curves of runs into a picture")
    _add_where(plot, "*", RUN)
    _add_keys(plot, "a panel for this key; may be repeated (default: all numbers)")
    plot.add_argument(
        "-o",
        "--out",
        metavar="FILE",
        default="plot.png",
        help="the picture: .png, .pdf or .svg (default: plot.png)",
    )
    plot.add_argument("-x", metavar="STEP", help="the step to plot against, or `row`")
    plot.add_argument(
        "--band",
        choices=["std", "range", "none"],
        default="std",
        help="what is drawn around the mean of several runs; `none` draws all of them "
        "(default: std)",
    )
    plot.add_argument(
        "--smooth",
        metavar="N",
        type=_positive,
        default=1,
        help="draw the mean of N rows in the place of each",
    )


def _add_export(commands: Commands) -> None:
    what = "write runs in another format, or send them to a tracker"
    export = _command(commands, "export", what)
    _add_where(export, "*", RUN)
    export.add_argument(
        "--to", choices=FORMATS, required=True, help="the format, or the tracker"
    )
    export.add_argument(
        "-o", "--out", metavar="DIR", help="the folder (default: the name of the format)"
    )
    export.add_argument(
        "--project", metavar="NAME", help="the project in the tracker (default: lox)"
    )


def _add_doctor(commands: Commands) -> None:
    what = "say what is damaged in a store, and save the rest"
    doctor = _command(commands, "doctor", what)
    _add_where(doctor, "?", "a store (default: .lox)", metavar="DIR")
    doctor.add_argument(
        "--repair",
        dest="to",
        metavar="DIR",
        help="write all that can be read to a new store, and leave this one as it is",
    )


def _add_completion(commands: Commands) -> None:
    what = "print what makes a shell complete commands, runs and keys"
    completion = _command(commands, "completion", what)
    completion.add_argument("shell", choices=SHELLS)


def _command(commands: Commands, name: str, what: str) -> argparse.ArgumentParser:
    description = f"{what[0].upper()}{what[1:]}."
    return commands.add_parser(name, help=what, description=description)


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
    parser.add_argument("--json", dest="as_json", action="store_true", help="for programs")


def _natural(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of rows")
    return int(text)


def _positive(text: str) -> int:
    if not _natural(text):
        raise argparse.ArgumentTypeError("there is no mean of 0 rows")
    return int(text)


class _Version(argparse.Action):
    """Print the version, which takes a while to find out."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from importlib.metadata import version

        print(f"lox {version('jax-lox')}")
        parser.exit()
