"""Makes text fit to be shown: in a terminal, a log, a table or a page.

Names, comments and command lines are chosen by users. A newline would forge a line, ESC would
command a terminal, and a bidirectional control would turn the text beside it around.
"""

from __future__ import annotations

# Letters and marks that Python counts as printable, but that show nothing or a blank.
_UNSEEN = frozenset(
    map(
        chr,
        (
            *(0x034F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x180B, 0x180C, 0x180D, 0x180F),
            *(0x2800, 0x3164, 0xFFA0),
            *range(0xFE00, 0xFE10),
            *range(0xE0100, 0xE01F0),
        ),
    )
)
_CUT = "..."


def _escaped(char: str) -> str:
    """`\\x1b`, `\\u202e` or `\\U000e0001`; a byte that is no UTF-8 has the form of a byte."""
    code = ord(char)
    if 0xDC80 <= code <= 0xDCFF:  # Python's form of such a byte
        code -= 0xDC00
    width, letter = (2, "x") if code < 1 << 8 else (4, "u") if code < 1 << 16 else (8, "U")
    return f"\\{letter}{code:0{width}x}"


def printable(text: str, limit: int | None = None) -> str:
    """The text on one line: what a terminal would obey or hide is written as an escape.

    A text that is longer than `limit` characters is cut, and ends with "...".
    """
    if limit is not None and len(text) > limit:
        text = text[:limit]  # an escape is longer than its character, so the rest cannot count
        clean = printable(text)
        return clean[: max(0, limit - len(_CUT))] + _CUT
    if text.isascii() and text.isprintable():
        return text
    clean = "".join(
        char if char.isprintable() and char not in _UNSEEN else _escaped(char) for char in text
    )
    return clean if limit is None or len(clean) <= limit else clean[: limit - len(_CUT)] + _CUT
