"""The evaluator against small traces whose figures can be worked out by hand."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest

from simulator.judge import evaluate as ev

US, MS = 1000, 1_000_000


@dataclass(frozen=True)
class S:
    t_start: int
    t_end: int
    t_submit: int
    pid: int = 1
    card: int = 0


@dataclass(frozen=True)
class G:
    t_ns: int
    flags: int
    job_id: int = 7


def test_bursts_split_only_at_long_pauses() -> None:
    spans = [S(10, 20, 8), S(20, 30, 9), S(500, 510, 490)]
    assert ev.bursts(spans, 100) == [ev.Burst(8, 30), ev.Burst(490, 510)]


def test_card_free_is_the_last_offline_progress_after_the_call() -> None:
    online = [ev.Burst(1000 * US, 9000 * US)]
    offline = [S(500 * US, 1300 * US, 0), S(1300 * US, 1700 * US, 0)]
    assert ev.card_free_us(online, offline) == [700.0]


def test_card_free_without_governing_is_the_whole_burst() -> None:
    online = [ev.Burst(0, 10 * MS)]
    assert ev.card_free_us(online, [S(0, 20 * MS, 0)]) == [10_000.0]


def test_card_free_is_zero_when_offline_did_not_run() -> None:
    assert ev.card_free_us([ev.Burst(100, 200)], [S(0, 50, 0), S(300, 400, 250)]) == [0.0]


def test_gate_close_counts_a_missing_close_as_the_whole_burst() -> None:
    assert ev.gate_close_us([ev.Burst(0, 5 * MS)], []) == [5000.0]


def test_gate_close_skips_bursts_that_found_it_closed() -> None:
    gates = [G(1 * MS, 0x101), G(8 * MS, 0), G(20 * MS + 80 * US, 0x101)]
    online = [ev.Burst(2 * MS, 3 * MS), ev.Burst(20 * MS, 30 * MS)]
    assert ev.gate_close_us(online, gates) == [80.0]


def test_handback_is_measured_at_the_gate() -> None:
    online = [ev.Burst(0, 10 * MS), ev.Burst(300 * MS, 310 * MS)]
    gates = [G(1, 1), G(111 * MS, 4), G(300 * MS, 1), G(411 * MS, 4)]
    assert ev.handback_ms(online, gates, 1000 * MS, 100 * MS) == [101.0, 101.0]


def test_a_card_that_is_never_handed_back_counts_until_the_following_burst() -> None:
    """The first hand-back comes, the second one not before the next burst, the last one never."""
    online = [ev.Burst(0, 10 * MS), ev.Burst(300 * MS, 310 * MS), ev.Burst(700 * MS, 710 * MS)]
    gates = [G(1, 1), G(111 * MS, 4), G(300 * MS, 1)]
    assert ev.handback_ms(online, gates, 900 * MS, 100 * MS) == [101.0, 390.0, 190.0]
    assert ev.handback_ms(online, [], 900 * MS, 100 * MS) == [290.0, 390.0, 190.0]
    assert ev.handback_ms([], gates, 900 * MS, 100 * MS) == []


def test_no_handback_is_due_after_a_pause_within_idle_release() -> None:
    online = [ev.Burst(0, 10 * MS), ev.Burst(70 * MS, 80 * MS), ev.Burst(300 * MS, 310 * MS)]
    gates = [G(1, 1), G(181 * MS, 4), G(300 * MS, 1)]
    assert ev.handback_ms(online, gates, 400 * MS, 100 * MS) == [101.0], (
        "the last pause ends with the run"
    )


def test_a_burst_that_found_the_card_free_anyway_says_nothing_of_how_fast_offline_leaves() -> None:
    """The second request comes within idle release; the third one when the gate is open but
    nothing runs.
    """
    online = [
        ev.Burst(200 * MS, 210 * MS),
        ev.Burst(270 * MS, 280 * MS),
        ev.Burst(400 * MS, 410 * MS),
    ]
    gates = [G(0, 4), G(200 * MS + 50 * US, 1), G(380 * MS, 4), G(400 * MS + 40 * US, 1)]
    offline = [S(0, 200 * MS + 300 * US, 0)]
    met = ev.that_met_offline(online, offline, gates)
    assert met == [online[0], online[2]]
    assert ev.card_free_us(met, offline) == [300.0, 0.0]
    assert ev.gate_close_us(met, gates) == ev.gate_close_us(online, gates) == [50.0, 40.0]


def test_offline_that_runs_behind_a_closed_gate_has_not_left() -> None:
    online = [ev.Burst(200 * MS, 210 * MS)]
    assert ev.that_met_offline(online, [S(0, 205 * MS, 0)], [G(0, 1)]) == online
    assert ev.that_met_offline(online, [S(0, 205 * MS, 0)], []) == online, "no arbiter, no gates"
    assert ev.that_met_offline(online, [], [G(0, 1)]) == []


def test_allowed_takes_release_off_each_gap_behind_a_burst() -> None:
    online = [ev.Burst(1000 * MS, 2000 * MS), ev.Burst(2050 * MS, 3000 * MS)]
    assert ev.allowed_ns(online, 0, 4000 * MS, 100 * MS) == (1000 + 0 + 900) * MS


def test_release_that_passed_before_the_counted_time_is_not_taken_off_again() -> None:
    """Of the 900 ms between the bursts 400 lie before `start`: the release of 100 ms had passed
    long before.
    """
    online = [ev.Burst(0, 100 * MS), ev.Burst(1000 * MS, 1100 * MS)]
    assert ev.allowed_ns(online, 500 * MS, 1100 * MS, 100 * MS) == 500 * MS
    assert ev.allowed_ns(online, 150 * MS, 1100 * MS, 100 * MS) == 800 * MS, "half of it had passed"
    assert ev.allowed_ns(online, 0, 150 * MS, 100 * MS) == 0
    assert ev.free_stretches(online, 150 * MS, 1500 * MS, 100 * MS) == [
        (200 * MS, 1000 * MS),
        (1200 * MS, 1500 * MS),
    ]


@pytest.mark.parametrize("seed", range(20))
def test_allowed_agrees_with_a_check_of_each_moment(seed: int) -> None:
    draw = random.Random(seed)
    edges = sorted(draw.sample(range(1, 300), 8))
    online = [ev.Burst(*pair) for pair in zip(edges[0::2], edges[1::2], strict=True)]
    start, release = draw.randrange(0, 200), draw.randrange(0, 40)
    end = start + draw.randrange(1, 150)

    def allowed(t: int) -> bool:
        before = [b for b in online if b.call <= t]
        return not before or before[-1].end + release <= t

    assert ev.allowed_ns(online, start, end, release) == sum(allowed(t) for t in range(start, end))


def test_harvest_ratio_by_hand() -> None:
    online = [ev.Burst(1000 * MS, 2000 * MS)]
    offline = [S(0, 1000 * MS, 0), S(2100 * MS, 2550 * MS, 0)]
    assert ev.harvest_ratio(online, offline, 0, 3000 * MS, 100 * MS) == pytest.approx(1450 / 1900)


def test_harvest_counts_neither_an_overrun_nor_a_card_given_back_too_early() -> None:
    online = [ev.Burst(1000 * MS, 2000 * MS)]
    offline = [S(900 * MS, 1300 * MS, 0), S(2000 * MS, 2150 * MS, 0)]
    assert ev.harvest_ratio(online, offline, 0, 3000 * MS, 100 * MS) == pytest.approx(150 / 1900)
    assert ev.harvest_by_gap([*online, ev.Burst(3000 * MS, 3100 * MS)], offline, 100 * MS) == [
        pytest.approx(50 / 900)
    ]


@pytest.mark.parametrize("seed", range(20))
def test_work_inside_stretches_agrees_with_a_check_of_each_moment(seed: int) -> None:
    draw = random.Random(seed)
    edges, parts = sorted(draw.sample(range(300), 24)), sorted(draw.sample(range(300), 8))
    spans = [S(low, high, 0) for low, high in zip(edges[0::2], edges[1::2], strict=True)]
    stretches = list(zip(parts[0::2], parts[1::2], strict=True))
    draw.shuffle(spans)
    seen = sum(
        any(s.t_start <= t < s.t_end for s in spans)
        and any(low <= t < high for low, high in stretches)
        for t in range(300)
    )
    assert ev.work_inside(spans, stretches) == seen


def test_rate_series_cuts_spans_at_bucket_edges() -> None:
    assert ev.rate_series([S(5, 25, 0)], 0, 30, 10) == [0.5, 1.0, 0.5]


def test_percentile_is_nearest_rank() -> None:
    assert ev.percentile([3, 1, 2, 4], 50) == 2
    assert ev.percentile([3, 1, 2, 4], 99) == 4
    with pytest.raises(ValueError, match="no samples"):
        ev.percentile([], 50)


def test_the_programs_own_call_replaces_the_drivers_time() -> None:
    """A gate that closes between the call and the driver's stamp counts, with its few µs."""
    driven = [ev.Burst(1000 * US, 9000 * US), ev.Burst(500 * MS, 510 * MS)]
    found = ev.with_calls(driven, [960 * US, 100 * MS], 50 * MS)
    assert found == [ev.Burst(960 * US, 9000 * US), ev.Burst(500 * MS, 510 * MS)]
    assert ev.gate_close_us(found[:1], [G(980 * US, 0x101)]) == [20.0]


def test_harvest_by_gap_by_hand() -> None:
    online = [
        ev.Burst(0, 1000 * MS),
        ev.Burst(2000 * MS, 2500 * MS),
        ev.Burst(2550 * MS, 2600 * MS),
    ]
    offline = [S(1100 * MS, 1550 * MS, 0)]
    assert ev.harvest_by_gap(online, offline, 100 * MS) == [0.5]
