"""Measures cost and benefit of the window, for the choice of its default: on demand, no promise.

The window is how much offline work may be on the card ahead of online. All widths are measured
alternately and repeatedly, so that a change of the machine hits all of them; each figure is over
all rounds.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from bench.harness.figures import Figure
from bench.harness.patterns import PATTERNS
from bench.promises import harvest
from bench.sweep import runs
from bench.sweep.points import Point
from simulator.judge import evaluate as ev

WIDTHS_US = (200, 250, 275, 300, 400, 600)
PATTERN = "10 % of 1 s"  # one request of 20 finds offline on the card: p99 is one of them


def line(width: int, points: Sequence[runs.Result], outcomes: Sequence[harvest.Outcome]) -> Figure:
    """One width: card_free p99, and everything else beside it."""
    frees = [us for point in points for us in point.free_us]
    detail = {
        "card_free_us_p50": statistics.median(frees),
        "card_free_us_p99": ev.percentile(frees, 99),
        "harvest_ratio": statistics.median(point.harvest for point in points),
        "harvest_16_tenants": statistics.median(point.harvest_many for point in points),
        "online_p99_ratio": statistics.median(outcome.p99_ratio for outcome in outcomes),
        "share_error_points": statistics.median(point.share.total for point in points),
        "share_error_points_1s": statistics.median(point.share.worst_1s for point in points),
    }
    note = "(" + ", ".join(f"{name} {value:.3f}" for name, value in detail.items()) + ")"
    return Figure(
        f"window_{width}_us",
        detail["card_free_us_p99"],
        "us",
        None,
        "<=",
        len(frees),
        note,
        detail=detail,
    )


def figures(quick: bool) -> Iterator[Figure]:
    """One line per width."""
    rounds, count, seconds = (1, 8, 6.0) if quick else (3, 20, 12.0)
    points: dict[int, list[runs.Result]] = {width: [] for width in WIDTHS_US}
    outcomes: dict[int, list[harvest.Outcome]] = {width: [] for width in WIDTHS_US}
    for _ in range(rounds):
        for width in WIDTHS_US:
            points[width].append(runs.measure(Point(), count, window_us=width))
            outcomes[width].append(harvest.measure(PATTERNS[PATTERN], seconds, window_us=width))
    for width in WIDTHS_US:
        yield line(width, points[width], outcomes[width])
