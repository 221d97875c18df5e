"""Fixtures of the trainer's tests."""

from tests.trainer.update_support import policy64  # noqa: F401 - pytest finds fixtures by name
