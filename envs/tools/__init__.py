"""Tools the agent calls: schemas and checks (`schema`), observation texts (`text`), running them (`toolset`)."""

from envs.tools.schema import SCHEMAS, CallError, check_call, signature
from envs.tools.toolset import ALL_TOOLS, DEMO_TOOLS, ToolLimits, ToolSet

__all__ = ["ALL_TOOLS", "DEMO_TOOLS", "SCHEMAS", "CallError", "ToolLimits", "ToolSet", "check_call", "signature"]
