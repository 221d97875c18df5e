"""SmolLM2: <|im_start|>role … <|im_end|> and a template that knows neither tools nor thoughts.

Tools are listed in the system message, calls are Hermes JSON, results come in a user message as in Qwen's format: the
template would print any role's name, but the model has seen system, user and assistant only. The template puts its own
system message ("You are a helpful AI assistant named SmolLM …") where a conversation has none.
"""

from __future__ import annotations

from agent.renderers.qwen import QwenRenderer


class SmolLM2Renderer(QwenRenderer):
    family = "smollm2"
