"""Tables that fit into a terminal: columns leave by rank, and only free texts are cut. Pure.

A number or a name that is cut looks like another one (NVIDIA H200 becomes NVIDIA H20), so a column
that has no room leaves as a whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gres.printable import printable

GAP = "  "  # one blank in a table where two leave no room for all columns
ELLIPSIS = "…"


@dataclass(frozen=True)
class Column:
    """One column of a table.

    Columns of `rank` 0 always stay; of the others the highest rank leaves first, and of one rank
    the one on the right. `left`: words, not numbers. `least`: a free text such as a job's name,
    which may be cut to this many places.
    """

    name: str
    rank: int = 0
    left: bool = False
    least: int | None = None


def table(
    columns: Sequence[Column], rows: Sequence[Sequence[str]], room: int | None = None
) -> list[str]:
    """Header and rows, in at most `room` places as far as the columns of rank 0 allow it."""
    shown = [[column.name for column in columns]]
    shown += [[printable(text) for text in row] for row in rows]
    widths = [max(map(cells, texts)) for texts in zip(*shown, strict=True)]
    fitted, gap = fit(columns, widths, room), GAP
    if len(fitted) < len(columns):
        fitted, gap = fit(columns, widths, room, 1), " "
    return [
        gap.join(
            padded(cut(line[at], width), width, columns[at].left) for at, width in fitted.items()
        ).rstrip()
        for line in shown
    ]


def fit(
    columns: Sequence[Column], widths: Sequence[int], room: int | None, gap: int = len(GAP)
) -> dict[int, int]:
    """The columns that stay, and the width of each. `widths` are those of the uncut texts."""
    if room is None:
        return dict(enumerate(widths))
    kept = {
        at: width if column.least is None else min(width, max(column.least, len(column.name)))
        for at, (column, width) in enumerate(zip(columns, widths, strict=True))
    }
    while _total(kept, gap) > room and any(columns[at].rank for at in kept):
        del kept[max(kept, key=lambda at: (columns[at].rank, at))]
    for at in kept:  # what is left over goes to the texts that were cut
        kept[at] += min(widths[at] - kept[at], max(0, room - _total(kept, gap)))
    return kept


def _total(kept: dict[int, int], gap: int) -> int:
    return sum(kept.values()) + gap * (len(kept) - 1)


def cells(text: str) -> int:
    """Places of a text on a terminal: some characters take two, some none."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len  # rarely needed, and not free to import

    return cell_len(text)


def cut(text: str, width: int) -> str:
    """The text in at most `width` places; one that was cut ends with an ellipsis."""
    if cells(text) <= width:
        return text
    text = text[:width]  # a character may have no width, but no text needs more of them
    while cells(text) > width - 1:
        text = text[:-1]
    return text + ELLIPSIS


def padded(text: str, width: int, left: bool) -> str:
    """The text with blanks behind it (words) or in front of it (numbers)."""
    blanks = " " * (width - cells(text))
    return text + blanks if left else blanks + text
