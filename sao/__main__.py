"""`python -m sao`: the same as the `sao` command."""

from sao.cli import main

if __name__ == "__main__":
    main()
