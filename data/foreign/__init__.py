"""Trajectory files of other agents, as they are; plain or gzip:

mini-swe-agent   v1 and v2 (`messages`), chat and Responses form, also its bare message lists
SWE-agent        `history`, with and without tool calls
OpenHands        `output.jsonl`, a run a line; events of the old server and of the SDK
ATIF v1          harbor's trajectory format (`schema_version`, `steps`)

Promises: texts are the file's, unchanged: what was said, thought, called and answered; what the file lacks, and what of
it is not carried (pictures, encrypted thoughts), is listed (`lacks`), never made up; a task of a public benchmark is
named as such. A format that is not read is refused by its name. Raises ForeignError, which says what in which file is
missing.
"""

from data.foreign.read import read_foreign, read_runs
from data.foreign.run import ALWAYS_LACKS, ForeignCall, ForeignError, ForeignMessage, ForeignRun

__all__ = [
    "ALWAYS_LACKS",
    "ForeignCall",
    "ForeignError",
    "ForeignMessage",
    "ForeignRun",
    "read_foreign",
    "read_runs",
]
