"""How long a test waits before it says that something will never come.

Where the expiry of a limit fails a test, the limit is this one: far above what the slowest machine with many others at
work takes, so that only what hangs meets it. A limit that is the thing under test (a command's own time-out) is not."""

PATIENCE_S = 300.0
