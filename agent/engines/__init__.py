"""Engines: things that implement `agent.policy.Policy`. Import the one you need; torch loads with `embedded` only."""
