"""Run a command of the command line, and turn errors into messages and exit codes."""

import importlib
import os
import sys
import warnings
from collections.abc import Sequence

from lox_host.cli.completion import answer_shell, is_asked_by_shell
from lox_host.cli.errors import CLIError
from lox_host.cli.parser import COMMANDS, parser_of_lox
from lox_host.display.text import clean

# The convention of shells: 128 plus the number of the signal.
INTERRUPTED, CLOSED = 130, 141


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command.

    Returns:
        The exit code: 0, 1 if the command failed, 2 if its arguments are wrong.
    """
    args = list(sys.argv[1:] if argv is None else argv)
    for stream in (sys.stdout, sys.stderr):
        # A key may have Greek letters while the output is ASCII. Escape them.
        getattr(stream, "reconfigure", lambda **_: None)(errors="backslashreplace")
    try:
        # Print warnings in one line, without the place in our code.
        with warnings.catch_warnings():
            warnings.showwarning = _print_warning
            code = _dispatch(args)
        sys.stdout.flush()
    except BrokenPipeError:
        _discard_output()
        return CLOSED
    except KeyboardInterrupt:
        return INTERRUPTED
    except (CLIError, ImportError, LookupError, OSError, ValueError) as error:
        print(f"lox: {_clean(error)}", file=sys.stderr)
        return 1
    return code


def _dispatch(args: list[str]) -> int:
    """Run the command that the arguments name, and return the exit code."""
    parser = parser_of_lox(args[0] if args and args[0] in COMMANDS else None)
    if is_asked_by_shell():
        answer_shell(parser)
    if not args:
        parser.print_help()
        return 0
    if not args[0].startswith("-") and args[0] not in COMMANDS:
        from lox_host.reading.names import list_names, suggest

        known = f"There are {list_names(COMMANDS)}."
        question = suggest(args[0], COMMANDS)
        print(f"lox: There is no command {args[0]!r}.{question} {known}", file=sys.stderr)
        return 2
    options = vars(parser.parse_args(args))
    command = options.pop("command")
    # Each command is a function in the module of its name, imported only now.
    module = importlib.import_module(f"lox_host.cli.{command}")
    getattr(module, command)(**options)
    return 0


def _print_warning(message: Warning | str, *_: object, **__: object) -> None:
    print(f"lox: {_clean(message)}", file=sys.stderr)


def _clean(message: object) -> str:
    """Remove control characters from a text, which may quote names from a store."""
    return "\n".join(clean(line) for line in str(message).split("\n"))


def _discard_output() -> None:
    """Discard all further output, as the program that reads it has ended."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())
