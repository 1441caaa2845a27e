"""`python -m lox ...`, the command line. The script `lox` starts quicker: without JAX."""

import sys

from lox_host.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
