"""Any OpenAI-compatible endpoint as the model: chat completions over HTTP, in text.

An endpoint gives words, tool calls and its own count of tokens; no ids and no log-probabilities. Its episodes run in
the same loop as a policy's (`agent.episode`), are scored like them, and are never trained on (`data.quoted`).
"""
