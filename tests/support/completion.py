"""What a shell that completes a line is told."""

import contextlib
import io
import os
import sys
from unittest import mock

import argcomplete

from lox_host.cli.completion import answer_shell
from lox_host.cli.parser import parser_of_lox


def complete(line: str) -> str:
    """Return what a shell is told when the line is to be completed, a word a line."""
    asked = {"_ARGCOMPLETE": "1", "COMP_LINE": line, "COMP_POINT": str(len(line))}
    # As in a shell that adds no space, and takes one answer a line.
    asked |= {"_ARGCOMPLETE_IFS": "\n", "_ARGCOMPLETE_SUPPRESS_SPACE": "1"}
    out = io.StringIO()
    with (
        mock.patch.dict(os.environ, asked),
        # It would take a file descriptor that pytest uses.
        mock.patch.object(argcomplete.CompletionFinder, "_init_debug_stream"),
        contextlib.suppress(SystemExit),
    ):
        answer_shell(parser_of_lox(), exit_method=sys.exit, output_stream=out)
    return f"{out.getvalue()}\n"
