"""Untrusted text in a terminal: what would move the cursor, set a title or reverse the line is shown as text."""

import re

_CONTROL = re.compile(
    "[\x00-\x08\x0a-\x1f\x7f-\x9f"  # control characters except tab: C0, DEL, C1 (ECMA-48)
    "\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"  # directions and separators (Unicode, "Bidirectional Algorithm")
    "\ud800-\udfff]"  # no characters at all
)


def as_text(text: str) -> str:
    r"""One line for a terminal: `\x1b[2J` where there was an escape."""
    return _CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def as_text_lines(text: str) -> str:
    """The same for several lines."""
    return "\n".join(map(as_text, text.split("\n")))
