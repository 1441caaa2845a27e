"""The command line. What it does not need for a command is not imported for it."""
