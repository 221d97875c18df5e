"""Seeds from seeds: every random choice of a run follows from one number and names that stay.

    draw's seed    = derive_seed(run seed, "draw", draw)          the same for every attempt of the draw
    turn's seed    = derive_seed(episode seed, "turn", turn)
A retried draw keeps its seed: an infrastructure fault must not give the policy another roll of the dice.
"""

from __future__ import annotations

import hashlib


def derive_seed(*parts: int | str) -> int:
    """A number in [0, 2^63) that depends on all parts and their order, equal on every machine."""
    text = "\0".join(f"{type(part).__name__}:{part}" for part in parts)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1
