"""Fixtures of the environments' tests."""

from tests.envs.image_store import registry  # noqa: F401 - pytest finds fixtures by name
