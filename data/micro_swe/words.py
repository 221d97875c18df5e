"""The fixed vocabulary of micro-SWE: short, lowercase, single words, disjoint by role.

Few words in regular places keep the tokenizer of the demo policy small. No word is a Python keyword or a hint word of
`kinds`, and no package or module shadows the standard library (a test asserts all three).
"""

from __future__ import annotations


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


SCALARS = _words("""
    price tax rate count size width height depth age limit cost fee bonus weight speed level points stock load base
    goal mark pace units days hours seats pages coins votes bids shift scale quota area gain loss debt rent wage
""")
LISTS = _words("rows items picks cards lots")
TEXTS = _words("name label city motto")
LOCALS = _words("result answer outcome draft")
FUNCTIONS = _words("""
    figure quote settle gauge blend merge probe derive apply check weigh judge assess scan adjust compute handle
    resolve tally report
""")
HELPERS = _words("pack bind chain stack")
MODULES = _words("cart order invoice ledger store plan track board route ticket menu desk")
PACKAGES = _words("shop farm bank game fleet clinic hotel school")
ROLES = {
    "scalar": SCALARS,
    "s": LISTS,
    "t": TEXTS,
    "r": LOCALS,
    "f": FUNCTIONS,
    "h": HELPERS,
    "module": MODULES,
    "package": PACKAGES,
}
