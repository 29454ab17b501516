"""Rates over time as a line of blocks, readable in any terminal."""

from __future__ import annotations

from collections.abc import Sequence

BLOCKS = " ▁▂▃▄▅▆▇█"
ASCII = " .:-=+*#@"


def line(values: Sequence[float], encoding: str | None = "utf-8") -> str:
    """One character per value in 0..1; plain ASCII where the terminal cannot show blocks."""
    glyphs = BLOCKS if encoding and encoding.lower().replace("-", "") == "utf8" else ASCII
    top = len(glyphs) - 1
    return "".join(glyphs[round(max(0.0, min(1.0, v)) * top)] for v in values)


def axis(count: int, bucket_s: float) -> str:
    """The seconds under such a line: a label at every whole second that fits."""
    text = [" "] * count
    for second in range(int(count * bucket_s) + 1):
        label = str(second)
        at = round(second / bucket_s)
        if at + len(label) <= count and all(
            c == " " for c in text[max(0, at - 1) : at + len(label)]
        ):
            text[at : at + len(label)] = label
    return "".join(text)
