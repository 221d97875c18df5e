"""Where actions run: sandboxes, tools, environments. Imports neither torch nor transformers."""
