"""One sandbox contract, two real backends: Docker and embedded (Linux namespaces)."""

from envs.sandbox.backends import make_backend

__all__ = ["make_backend"]
