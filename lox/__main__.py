"""The command line: `lox ...`, and `python -m lox ...`."""

import sys

from lox._cli._main import main

if __name__ == "__main__":
    sys.exit(main())
