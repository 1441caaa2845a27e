"""Delivering records to the host while the program runs."""

# What it changes in JAX is installed when lox has been imported.
from lox._stream import (  # noqa: F401
    print_order as _print_order,
    program_start as _program_start,
)

# What a user registers for the exit after `import lox` comes before the exit of lox.
from lox_host import process_exit as _process_exit  # noqa: F401
