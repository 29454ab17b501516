"""Computes each tenant's part of the card, from the card's own clock.

A program's kernels stamp the card's clock when they start and end (programs/tenant.cu), PyTorch's
steps are stamped with CUDA events, and the simulator has its trace. The work of each piece is
known: its time on the idle card, measured in the same run. A tenant's part of the card over a
window is the work done in it. So a kernel interrupted in the middle counts no more, and our ledger
has no influence.
"""

from __future__ import annotations

import json
import statistics
import struct
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

from simulator.judge import shares as sh

HEAD = struct.Struct("<9Q")
MAGIC = 0x31504D4154534751
S = 1_000_000_000


class Piece(NamedTuple):
    """One kernel, graph node or step: CLOCK_MONOTONIC nanoseconds on the card."""

    t_start: int
    t_end: int
    t_submit: int = 0
    pid: int = 0
    card: int = 0


class StampError(ValueError):
    """A file of stamps cannot be read; the text is a sentence."""


def read_stamps(path: Path) -> list[Piece]:
    """The kernels of a tenant, its card's clock turned into the host's by two readings of both."""
    raw = path.read_bytes()
    if len(raw) < HEAD.size:
        raise StampError(f"{path} has no stamps: the program ended before it wrote them")
    magic, pid, count, host0, card0, host1, card1, _, seen = HEAD.unpack_from(raw)
    if magic != MAGIC or len(raw) != HEAD.size + 16 * count:
        raise StampError(f"{path} is no file of stamps")
    if seen > count:
        raise StampError(f"{path} is full: {seen} kernels, room for {count}; use longer kernels")
    rate = (host1 - host0) / (card1 - card0) if card1 > card0 else 1.0

    def host(t: int) -> int:
        moved: int = host0 + round((t - card0) * rate)
        return moved

    pairs = struct.iter_unpack("<QQ", raw[HEAD.size :])
    return [Piece(host(a), host(b), 0, pid) for a, b in pairs if a and b]


def merged(pieces: Sequence[Piece]) -> list[Piece]:
    """The stretches in which any block of a program made progress: what overlaps is one."""
    found: list[Piece] = []
    for piece in sorted(pieces):
        if found and piece.t_start <= found[-1].t_end:
            found[-1] = found[-1]._replace(t_end=max(found[-1].t_end, piece.t_end))
        else:
            found.append(piece)
    return found


def read_spans(path: Path) -> list[Piece]:
    """The steps of a PyTorch program."""
    told = json.loads(path.read_text())
    return [Piece(a, b, 0, told["pid"]) for a, b in told["spans"]]


def alone(pieces: Sequence[Piece]) -> float:
    """What one piece takes on the idle card: the median, which a stall of the machine does not
    move.
    """
    if len(pieces) < 3:
        raise StampError(f"{len(pieces)} pieces are too few to say what one takes")
    return statistics.median(p.t_end - p.t_start for p in pieces)


class Work:
    """The work of one tenant as a function of time.

    `unit`: the worth of each piece; 0: its own length. The pieces of one tenant follow each other,
    so a lookup costs O(log n).
    """

    def __init__(self, pieces: Sequence[Piece], unit: float = 0.0) -> None:
        ordered = sorted(piece for piece in pieces if piece.t_end > piece.t_start)
        self.starts = [piece.t_start for piece in ordered]
        self.ends = [piece.t_end for piece in ordered]
        self.worth = [unit or p.t_end - p.t_start for p in ordered]
        self._before = [0.0, *accumulate(self.worth)]

    def until(self, t: int) -> float:
        """Work done before t; a piece that runs at t counts by the part of it that is over."""
        at = bisect_right(self.starts, t) - 1
        if at < 0:
            return 0.0
        over = min(t, self.ends[at]) - self.starts[at]
        return self._before[at] + self.worth[at] * over / (self.ends[at] - self.starts[at])

    def within(self, start: int, end: int) -> float:
        """Nanoseconds of work inside the window."""
        return self.until(end) - self.until(start)


@dataclass(frozen=True)
class Judged:
    """How far the tenants were from their shares, in points, and what each did (parts of the solo
    rate).
    """

    points: float
    worst_1s: float
    parts: Mapping[str, float]
    total: float


def judge(
    served: Mapping[str, Work], shares: Mapping[str, float], span: tuple[int, int], policy: str
) -> Judged:
    """Both rules of simulator.judge.shares over the span, and over every window of 1 s in steps of
    50 ms.
    """
    rule = sh.RULES[policy]
    weights = list(shares.values())

    def off(start: int, end: int) -> float:
        done = [round(served[name].within(start, end)) for name in shares]
        return max(abs(p) for p in rule(done, end - start, weights))

    start, end = span
    width = min(S, end - start)
    begins = range(start, end - width + 1, S // 20)
    wall = end - start
    parts = {name: served[name].within(start, end) / wall for name in shares}
    return Judged(
        off(start, end), max(off(t, t + width) for t in begins), parts, sum(parts.values())
    )
