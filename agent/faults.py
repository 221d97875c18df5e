"""When the machine, not the model, is what fails. Of its own, so that naming it costs no other import."""

from __future__ import annotations


class FaultStorm(RuntimeError):
    """Too many infrastructure faults in a row; the text holds the last ones."""
