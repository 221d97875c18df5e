"""SWE tasks: repository preparation and hygiene, the driver's diff, grading in a fresh sandbox."""

from envs.swe.environment import SWEEnvironment, SweLimits, Verifier, grade_patch
from envs.swe.row import SweRow, read_row
from envs.swe.validate import Validation, measure, validate

__all__ = [
    "SWEEnvironment",
    "SweLimits",
    "SweRow",
    "Validation",
    "Verifier",
    "grade_patch",
    "measure",
    "read_row",
    "validate",
]
