"""Who acts: policies (engines), renderers, tool-call parsers, the episode loop and the fleet."""
