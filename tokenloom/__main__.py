"""`python -m tokenloom`: the command line."""

import sys

from tokenloom.cli import main

if __name__ == "__main__":
    sys.exit(main())
