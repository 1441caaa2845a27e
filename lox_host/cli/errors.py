"""Errors of the command line."""


class CLIError(Exception):
    """An error that the user can fix. The command line prints only its text."""
