"""Fixtures of the command's tests."""

from tests.sao.command import runs  # noqa: F401 - pytest finds fixtures by name
