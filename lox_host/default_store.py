"""The folder in which the command line looks for runs, unless you name another one."""

DEFAULT = ".lox"
