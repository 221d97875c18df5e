"""Errors of the evaluation that the user can mend; `sao` shows them as one paragraph with exit code 2."""

from __future__ import annotations


class EvalError(ValueError):
    """Input of an evaluation (predictions, rows, result folders, an extra that is absent) cannot be used."""
