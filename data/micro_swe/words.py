"""The fixed vocabulary of micro-SWE: short, lowercase, single words, disjoint by role.

Few words in regular places keep the tokenizer of the demo policy small. No word is a Python keyword or a hint word of
`kinds`, and no package or module shadows the standard library (a test asserts all three).
"""

from __future__ import annotations

SCALARS: tuple[str, ...] = tuple(
    "price tax rate count size width height depth age limit cost fee bonus weight speed level points stock load base "
    "goal mark pace units days hours seats pages coins votes bids shift scale quota area gain loss debt rent wage".split()
)
LISTS: tuple[str, ...] = ("rows", "items", "picks", "cards", "lots")
TEXTS: tuple[str, ...] = ("name", "label", "city", "motto")
LOCALS: tuple[str, ...] = ("result", "answer", "outcome", "draft")
FUNCTIONS: tuple[str, ...] = tuple(
    "figure quote settle gauge blend merge probe derive apply check weigh judge assess scan adjust compute handle "
    "resolve inspect report".split()
)
HELPERS: tuple[str, ...] = ("pack", "bind", "chain", "stack")
MODULES: tuple[str, ...] = tuple("cart order invoice ledger store plan track board route ticket menu desk".split())
PACKAGES: tuple[str, ...] = ("shop", "farm", "bank", "game", "fleet", "clinic", "hotel", "school")
