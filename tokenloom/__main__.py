"""`python -m tokenloom`: the command line."""

import sys

from tokenloom.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
