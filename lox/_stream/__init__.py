"""Delivering records to the host while the program runs."""

# What it changes in JAX is installed when lox has been imported.
from lox._stream import print_order as _print_order  # noqa: F401
