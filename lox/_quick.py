"""Whether this process is lox's command line, which starts without JAX.

Everywhere else `import lox` loads all of it. Names that came on demand might come while JAX
traces, and JAX compiles anew what it compiled before lox told it what to remember.
"""

import os
import sys

# What is in the script that an installation makes.
ENTRY = b"lox.__main__"


def _is_command() -> bool:
    """Whether this is `lox ...` or `python -m lox ...`, and no program that uses lox."""
    program, *args = getattr(sys, "argv", None) or [""]
    if program == "-m":
        # Python is about to run a module, which stands before the arguments.
        own = sys.orig_argv[: len(sys.orig_argv) - len(args)]
        return own[-1] in ("lox", "-mlox")
    return os.path.basename(program) == "lox" and _calls_us(program)


def _calls_us(script: str) -> bool:
    try:
        with open(script, "rb") as file:
            return ENTRY in file.read(4096)
    except OSError:
        return False


# Asked at the first import: Python changes its arguments afterwards.
IS_COMMAND = _is_command()
