"""Hypothesis without deadlines: the machine may be busy, a slow example is no failure."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("data", deadline=None)
settings.load_profile("data")
