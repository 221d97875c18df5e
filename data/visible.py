"""Text that we did not write, made safe to print: what a terminal would act on is shown instead.

Promises: control characters (C0 but line break and tab, DEL, C1), marks that turn text round or hide in it
(bidirectional overrides and isolates, zero-width characters, line and paragraph separators), tags and lone surrogates
come out as their escapes, `\\x1b`, `\\u202e`; all else stays as it is; nothing is lost.
"""

from __future__ import annotations

import re

_ACTS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028\u2029\u202a-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)


def visible(text: str) -> str:
    """With line breaks and tabs as they are; a zero-width joiner stays too, since emoji and scripts need it."""
    return _ACTS.sub(lambda found: found[0].encode("unicode_escape").decode(), text)
