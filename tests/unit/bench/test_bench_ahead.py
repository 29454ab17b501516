"""What the judge of queued work and of stalled launches counts."""

from __future__ import annotations

from bench.promises import ahead
from simulator.sim import Interval, Kind

MS = 1_000_000
MINE, OTHER = 7, 8


def piece(pid: int, submit: int, start: int, end: int) -> Interval:
    return Interval(
        start * MS, end * MS, submit * MS, pid, 0, 1, 1, Kind.KERNEL, 1, 1, (end - start) * MS
    )


def test_time_on_the_card_before_a_kernel_begins_is_counted_from_its_launch() -> None:
    spans = [
        piece(MINE, 3, 8, 9),
        piece(MINE, 0, 1, 2),
        piece(OTHER, 4, 5, 6),
        piece(MINE, 4, 4, 5),
    ]
    assert ahead.ahead_us(spans, MINE, 3 * MS) == [0.0, 5000.0]


def test_the_longest_hole_is_between_pieces_that_begin_in_that_time() -> None:
    spans = [
        piece(MINE, 0, 0, 1),
        piece(OTHER, 0, 4, 5),
        piece(MINE, 0, 6, 7),
        piece(MINE, 0, 90, 91),
    ]
    assert ahead.longest_hole_ms(spans, 0, 10 * MS) == 3.0
    assert ahead.longest_hole_ms(spans, 5 * MS, 10 * MS) == 0.0, "of one piece nothing is known"


def test_each_case_has_a_name_of_its_own() -> None:
    assert len({case.name for case in ahead.CASES}) == len(ahead.CASES)
