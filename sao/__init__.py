"""The front door: the `sao` command, configuration, run orchestration, live view, doctor. No mathematics here."""
