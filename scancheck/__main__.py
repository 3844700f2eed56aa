"""`python -m scancheck`: the same as the command `scancheck`."""

import sys

from scancheck.cli import main

if __name__ == "__main__":
    sys.exit(main())
