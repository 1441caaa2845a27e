"""Where to look for runs if nobody says where. The parser of the command line needs it."""

DEFAULT = ".lox"
