"""Slurm's bracket lists: `n[1-2,7]`, `gpu[001-128]`, `/dev/nvidia[0-7]`, `a1,b[2-3]`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import product

MAX_NAMES = 65536  # names of one list: a typing error must not exhaust memory

_RANGE = re.compile(r"([0-9]+)(?:-([0-9]+))?")
_LAST_NUMBER = re.compile(r"(.*?)([0-9]{1,9})([^0-9]*)", re.DOTALL)


class HostlistError(ValueError):
    """A list that cannot be expanded; the text is a sentence."""


def _split(text: str) -> list[str]:
    """Split at commas outside brackets; unbalanced brackets are refused."""
    parts, depth, start = [], 0, 0
    for at, char in enumerate(text):
        depth += (char == "[") - (char == "]")
        if depth not in (0, 1):
            raise HostlistError(f"'{text}' has brackets that do not match")
        if char == "," and depth == 0:
            parts.append(text[start:at])
            start = at + 1
    if depth:
        raise HostlistError(f"'{text}' has brackets that do not match")
    return [*parts, text[start:]]


def _numbers(body: str, text: str) -> list[str]:
    """Expand the inside of one pair of brackets; leading zeros give the width, as in Slurm."""
    numbers: list[str] = []
    for item in body.split(","):
        match = _RANGE.fullmatch(item)
        if match is None:
            raise HostlistError(f"'{item}' in '{text}' is not a number or a range such as 1-4")
        low, high = match[1], match[2] or match[1]
        if len(high) > 9 or int(high) < int(low):
            raise HostlistError(f"the range '{item}' in '{text}' runs backwards or is too large")
        if int(high) - int(low) + len(numbers) >= MAX_NAMES:
            raise HostlistError(f"'{text}' names more than {MAX_NAMES} items")
        numbers += [str(number).zfill(len(low)) for number in range(int(low), int(high) + 1)]
    return numbers


def expand(text: str) -> list[str]:
    """Names of a bracket list, in order. Raises HostlistError with a sentence."""
    names: list[str] = []
    for part in _split(text):
        if not part:
            raise HostlistError(f"'{text}' has an empty name")
        pieces = re.split(r"\[([^\]]*)\]", part)
        choices = [_numbers(piece, text) if at % 2 else [piece] for at, piece in enumerate(pieces)]
        total = len(names)
        for choice in choices:
            total = max(total, 1) * len(choice)
        if total > MAX_NAMES:
            raise HostlistError(f"'{text}' names more than {MAX_NAMES} items")
        names += ["".join(chosen) for chosen in product(*choices)]
    return names


def fold(names: Iterable[str]) -> str:
    """A bracket list of these names, in order; names that differ only in the last number share
    brackets.
    """
    runs: list[
        tuple[str, str, list[tuple[str, str]]]
    ] = []  # before and after the number, and its ranges
    for name in names:
        found = _LAST_NUMBER.fullmatch(name)
        before, number, after = (found[1], found[2], found[3]) if found else (name, "", "")
        if number and runs and runs[-1][:2] == (before, after) and runs[-1][2]:
            ranges = runs[-1][2]
            low, high = ranges[-1]
            if number == str(int(high) + 1).zfill(len(low)):
                ranges[-1] = (low, number)
            else:
                ranges.append((number, number))
        else:
            runs.append((before, after, [(number, number)] if number else []))
    return ",".join(map(_folded, runs))


def _folded(run: tuple[str, str, list[tuple[str, str]]]) -> str:
    before, after, ranges = run
    inside = ",".join(low if low == high else f"{low}-{high}" for low, high in ranges)
    return (
        f"{before}[{inside}]{after}"
        if "," in inside or "-" in inside
        else f"{before}{inside}{after}"
    )


def core_list(text: str) -> str:
    """Check a list of core numbers such as 0-15,32-47. Raises HostlistError with a sentence."""
    parts = [re.fullmatch(r"([0-9]{1,5})(?:-([0-9]{1,5}))?", part) for part in text.split(",")]
    if not all(part and int(part[1]) <= int(part[2] or part[1]) for part in parts):
        raise HostlistError(
            f"'{text[:80]}' is not a list of core numbers; write for example \"0-15,32-47\""
        )
    return text
