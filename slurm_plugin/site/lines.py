"""Splits lines of Slurm's configuration files as Slurm's parser (parse_config.c) does. Pure.

Comments go first. Then a backslash at the end joins the next line, and other backslashes vanish. So
a backslash before a comment continues the line, and `\\#` is a plain `#`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_COMMENT = re.compile(r"(?<!\\)(?:\\\\)*(#)")
_CONTINUED = re.compile(r"(?<!\\)(\\\\)*(\\)\s*\Z", re.ASCII)
_ESCAPE = re.compile(r"\\(.?)", re.DOTALL)
_PAIR = re.compile(
    r'\s*([A-Za-z0-9_.]+)\s*([-*+/]?)=\s*(?:"([^"]*)"(?=\s|\Z)|(\S+)(?=\s|\Z))',
    re.ASCII,
)
BLANKS = " \t\n\r\f\v"  # C's isspace(); strip() alone would also take Unicode's blanks


@dataclass(frozen=True)
class LogicalLine:
    """A line with its continuations; `number` is that of its first physical line, from 1."""

    number: int
    text: str


@dataclass(frozen=True)
class Pair:
    """KEY=VALUE as it is written, without the quotes; `operator` is empty or one of - * + /."""

    key: str
    value: str
    operator: str = ""


def _without_comment(line: str) -> str:
    found = _COMMENT.search(line)
    return line[: found.start(1)] if found else line


def logical_lines(text: str) -> Iterator[LogicalLine]:
    """Lines without comments and escapes, with their newline; empty ones are left out."""
    parts: list[str] = []
    first = 1
    # Only a newline ends a line for Slurm; splitlines() would also split at \x0b, U+2028 and
    # others.
    physical = text.split("\n")
    for number, raw in enumerate(physical, 1):
        whole = raw if number == len(physical) else f"{raw}\n"
        line = _without_comment(whole.partition("\0")[0])
        found = _CONTINUED.search(line)
        parts.append(line[: found.start(2)] if found else line)
        if found and number < len(physical):
            continue
        joined = _ESCAPE.sub(r"\1", "".join(parts))
        if joined.strip(BLANKS):
            yield LogicalLine(first, joined)
        parts, first = [], number + 1


def next_pair(text: str) -> tuple[Pair, str] | None:
    """The first KEY=VALUE of a line and the rest; None if the line begins otherwise."""
    found = _PAIR.match(text)
    if found is None:
        return None
    value = found[4] if found[3] is None else found[3]
    return Pair(found[1], value, found[2]), text[found.end() :]


def pairs(text: str) -> tuple[list[Pair], str]:
    """All pairs at the beginning of a text, and the stripped rest."""
    found: list[Pair] = []
    while (step := next_pair(text)) is not None:
        found.append(step[0])
        text = step[1]
    return found, text.strip(BLANKS)
