"""`python -m sao`: the same as the `sao` command."""

import sys

from sao.start import main

if __name__ == "__main__":
    sys.exit(main())
