"""Sizes and durations as users and Slurm write them.

Slurm's suffixes are kept in any case: K, M, G, T, P (and KiB, MiB, ...) count 1024^n; KB, MB, GB,
... count 1000^n. All is exact integer arithmetic; the caller chooses the rounding.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from gres.config.sentences import shown

MIB = 1024 * 1024
MAX_BYTES = 2**53  # bytes: above it Lua's doubles are not exact; 8 PiB is above any card

_LETTERS = "kmgtp"
_SIZE = re.compile(r"([0-9]+)([A-Za-z]*)")
_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ns|us|ms|s|min|h|d)")
_DURATION_NS = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9, "min": 60 * 10**9, "h": 3600 * 10**9}
_DURATION_NS["d"] = 24 * _DURATION_NS["h"]
_LONGEST_NS = 36500 * _DURATION_NS["d"]  # 100 years: what is far longer is no date to the C library


class UnitError(ValueError):
    """An unreadable size or duration; the text is a sentence for its author."""


class TooLargeError(UnitError):
    """A size that no card has."""


def suffix_factor(suffix: str) -> int | None:
    """Bytes per unit of a Slurm suffix ("" -> 1, "GiB" -> 1024^3, "GB" ->
    1000^3), None if unknown.
    """
    low = suffix.lower()
    if low == "":
        return 1
    power = _LETTERS.find(low[0]) + 1
    if power == 0:
        return None
    base = {"": 1024, "ib": 1024, "b": 1000}.get(low[1:])
    return None if base is None else int(base**power)


def parse_size(text: str) -> int:
    """Bytes of "24G", "24GiB", "24576M", "25GB" or "1048576".

    Raises UnitError with a sentence when the text is no whole number with a known suffix, or too
    large.
    """
    match = _SIZE.fullmatch(text)
    factor = suffix_factor(match[2]) if match else None
    if match is None or factor is None:
        raise UnitError(
            f"'{text}' is not a size; write a whole number with a unit, for example 24G or 24576M"
        )
    # The digits are counted first: a number of 5000 digits must not cost time.
    digits = match[1].lstrip("0") or "0"
    if len(digits) > 16 or int(digits) * factor > MAX_BYTES:
        raise TooLargeError(f"'{text}' is larger than any card")
    return int(digits) * factor


def parse_mib(value: object, *, up: bool = False) -> int:
    """MiB of a configured size; a bare number counts MiB. Rounds down, or up where `up` is set."""
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise UnitError(
            f"'{shown(value)}' is not a size; write for example 80GiB, or a whole number of MiB"
        )
    text = str(value).strip()
    size = parse_size(text + "M" if text.isdigit() else text)
    return -(-size // MIB) if up else size // MIB


@dataclass(frozen=True, order=True)
class Duration:
    """A length of time, kept in whole nanoseconds."""

    ns: int

    @property
    def us(self) -> int:
        """Whole microseconds, rounded up, so that a positive duration never becomes zero."""
        return -(-self.ns // 10**3)

    @property
    def ms(self) -> int:
        """Whole milliseconds, rounded up, so that a positive duration never becomes zero."""
        return -(-self.ns // 10**6)

    @property
    def seconds(self) -> float:
        """Seconds as a float, for timeouts."""
        return self.ns / 10**9

    def __str__(self) -> str:
        for unit in ("h", "min", "s", "ms", "us"):
            if self.ns and self.ns % _DURATION_NS[unit] == 0:
                return f"{self.ns // _DURATION_NS[unit]}{unit}"
        return f"{self.ns}ns"


def parse_duration(value: object) -> Duration:
    """Duration of "100ms", "500us", "2s", "1.5s". A bare number is refused: its unit would be a
    guess.
    """
    if isinstance(value, Duration):
        return value
    # Other types are shortened: YAML's aliases of aliases could make their text endless.
    text = value if isinstance(value, str) else shown(value)
    match = _DURATION.fullmatch(text.strip().replace(" ", ""))
    if match is None or len(match[1]) > 15:
        raise UnitError(
            f"'{shown(value)}' is not a duration; write a number with ns, us, ms, s, min, h or d,"
            " for example 100ms"
        )
    found = Duration(int(Fraction(match[1]) * _DURATION_NS[match[2]]))
    if found.ns > _LONGEST_NS:
        raise UnitError(f"'{shown(value)}' is longer than 100 years; write less, for example 30d")
    return found


def format_mib(mib: int) -> str:
    """The shortest exact Slurm count of MiB: 24576 -> "24G", 12289 -> "12289M"."""
    return f"{mib // 1024}G" if mib and mib % 1024 == 0 else f"{mib}M"
