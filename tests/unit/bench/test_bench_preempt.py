"""How preemption and hand-back are judged over several patterns of online's load."""

from __future__ import annotations

import pytest

from bench.harness.patterns import PATTERNS
from bench.promises import preempt
from simulator.judge import evaluate as ev
from simulator.judge.gatetrace import Gate
from simulator.sim import Interval, Kind, Piece

US, MS = 1000, 1_000_000
CLOSED, TRACK = 0x1, 0x4


def offline(start: int, end: int) -> Interval:
    return Interval(start, end, 0, 2, 0, 2, 17, Kind.KERNEL, Piece.LAST, 1, 0)


def run(
    *calls_ms: int, close_us: int = 50, free_us: int = 300, back_ms: int = 101
) -> preempt.Episodes:
    """Bursts of 10 ms at these times; offline has the card from back_ms after each of them."""
    bursts = [ev.Burst(call * MS, (call + 10) * MS) for call in calls_ms]
    gates, spans, opened = [Gate(0, preempt.OFFLINE_JOB, 0, TRACK)], [], 0
    for burst in bursts:
        if burst.call > opened:
            gates.append(Gate(burst.call + close_us * US, preempt.OFFLINE_JOB, 0, CLOSED | TRACK))
            spans.append(offline(opened, burst.call + free_us * US))
            opened = burst.end + back_ms * MS
            gates.append(Gate(opened, preempt.OFFLINE_JOB, 0, TRACK))
    end = bursts[-1].end + 500 * MS
    return preempt.Episodes(bursts, bursts, [*spans, offline(opened, end)], gates, 0, end, [], 1.0)


def test_patterns_with_few_bursts_are_pooled() -> None:
    many, few = [1.0] * preempt.LEAST_BURSTS, [5.0] * 3
    groups = preempt.grouped({"many": many, "few": few, "fewer": [9.0], "none": []})
    assert groups == {"many": many, "few + fewer": [5.0, 5.0, 5.0, 9.0]}
    assert preempt.grouped({"many": many}) == {"many": many}


def test_the_worst_pattern_is_the_figure_and_all_are_reported() -> None:
    found = {
        "calm": [float(i) for i in range(100)],
        "wild": [150.0] * 101,
        "few": [500.0],
        "none": [],
    }
    figure = preempt.worst_pattern("gate_close_us_p99", found, 200, "us")
    assert (figure.value, figure.verdict, figure.runs) == (500.0, "short", 202)
    assert (
        "worst p99 at few; p99s: calm 98.0 of 100, wild 150.0 of 101, few 500.0 of 1"
        in figure.spread
    )
    assert "no such burst at none" in figure.spread and "max 500.0 us" in figure.spread
    assert figure.detail["wild p50"] == 150.0 and figure.detail["calm max"] == 99.0


def test_a_short_pattern_is_not_diluted_by_a_long_one() -> None:
    steady = run(*range(300, 300 + 300 * 200, 300))
    slow = run(*range(300, 300 + 300 * 101, 300), close_us=400, free_us=1500, back_ms=103)
    figures = {f.name: f for f in preempt.judged({"steady": steady, "slow": slow})}
    assert figures["gate_close_us_p99"].value == 400 and figures["card_free_us_p99"].value == 1500
    assert figures["handback_ms_p99"].value == pytest.approx(103)
    p99s = [f for name, f in figures.items() if name.endswith("_p99")]
    assert len(p99s) == 3
    assert all(f.verdict == "short" and "worst p99 at slow" in f.spread for f in p99s)


def test_a_request_within_idle_release_is_no_burst_that_offline_had_to_leave() -> None:
    """The second burst comes 60 ms after the first one: its gates are closed, the card is free,
    nothing is due.
    """
    figures = {f.name: f for f in preempt.judged({"Poisson": run(300, 370, 800)})}
    assert figures["gate_close_us_p99"].runs == figures["card_free_us_p99"].runs == 2
    assert figures["card_free_us_p99"].detail == pytest.approx(
        {"Poisson p50": 300, "Poisson p99": 300, "Poisson max": 300}
    )
    assert figures["handback_ms_p99"].runs == 2


def test_a_burst_that_the_end_of_the_run_cut_ends_the_pause_before_it() -> None:
    """Offline does not get the card back: what counts is the pause of 250 ms, not the time to
    the end of the run.
    """
    bursts = [ev.Burst(0, 150 * MS), ev.Burst(400 * MS, 900 * MS), ev.Burst(1200 * MS, 1300 * MS)]
    seen = preempt.Episodes(bursts, bursts[:1], [], [], 0, 800 * MS, [], 0.0)
    assert seen.handbacks_ms == [250.0]
    assert preempt.Episodes(bursts[:1], bursts[:1], [], [], 0, 800 * MS, [], 0.0).handbacks_ms == [
        650.0
    ]


def test_patterns_that_leave_offline_time_are_run() -> None:
    assert set(preempt.SECONDS) <= set(PATTERNS) and set(preempt.QUICK_SECONDS) <= set(
        preempt.SECONDS
    )


def test_a_card_given_back_before_its_time_is_short() -> None:
    figures = {f.name: f for f in preempt.judged({"early": run(300, 800, back_ms=90)})}
    assert figures["handback_ms_p99"].verdict == "ok"
    assert (figures["handback_ms_min"].value, figures["handback_ms_min"].verdict) == (90, "short")
