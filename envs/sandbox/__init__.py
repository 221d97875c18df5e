"""One sandbox contract, two real backends: Docker and embedded (Linux namespaces)."""
