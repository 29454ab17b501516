"""Shares from small traces whose figures can be worked out by hand."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from simulator.judge import shares as sh

MS = 1_000_000


@dataclass(frozen=True)
class S:
    t_start: int
    t_end: int
    pid: int
    t_submit: int = 0
    card: int = 0


def turns(*parts: tuple[int, int]) -> list[S]:
    """Spans of (pid, ms) one after another."""
    at, spans = 0, []
    for pid, ms in parts:
        spans.append(S(at, at + ms * MS, pid))
        at += ms * MS
    return spans


def test_service_joins_touching_pieces_and_answers_inside_them() -> None:
    service = sh.Service([S(10, 20, 1), S(20, 30, 1), S(50, 60, 1)])
    assert (service.starts, service.ends) == ([10, 50], [30, 60])
    assert [service.until(t) for t in (0, 10, 15, 30, 40, 55, 99)] == [0, 0, 5, 20, 20, 25, 30]
    assert service.within(25, 55) == 10


def test_a_tenant_of_several_processes_is_one() -> None:
    served = sh.services(turns((1, 10), (2, 20), (3, 30)), {7: [1, 2], 8: [3]})
    assert served[7].within(0, 60 * MS) == 30 * MS and served[8].within(0, 60 * MS) == 30 * MS


def test_burst_rule_ignores_idle_time_and_fixed_rule_does_not() -> None:
    served = sh.services([S(0, 30 * MS, 1), S(40 * MS, 100 * MS, 2)], {1: [1], 2: [2]})
    shares = {1: 30, 2: 70}
    burst = sh.errors(served, shares, 0, 100 * MS, sh.burst_rule)
    assert burst[1] == pytest.approx(100 / 3 - 30) and burst[2] == pytest.approx(200 / 3 - 70)
    assert sh.errors(served, shares, 0, 100 * MS, sh.fixed_rule) == pytest.approx({1: 0, 2: -10})


def test_weights_need_not_add_up_to_a_card() -> None:
    served = sh.services(turns((1, 25), (2, 75)), {1: [1], 2: [2]})
    points = sh.errors(served, {1: 5, 2: 15}, 0, 100 * MS, sh.burst_rule)
    assert points == pytest.approx({1: 0, 2: 0})


def test_a_window_without_work_is_short_for_all_tenants() -> None:
    assert sh.burst_rule([0, 0], 100, [30, 70]) == [-30, -70]


def test_worst_names_the_tenant_and_above_considers_surpluses_only() -> None:
    assert sh.worst({1: 2.0, 2: -5.0}, 9) == sh.Worst(5.0, 2, 9)
    assert sh.worst({1: 2.0, 2: -5.0}, 9, "above") == sh.Worst(2.0, 1, 9)


def test_a_window_over_one_long_turn_is_found() -> None:
    """1 s of equal turns, inside it one turn of 300 ms: the worst window of 400 ms holds it
    whole.
    """
    spans = turns(*[(1, 50), (2, 50)] * 4, (1, 300), *[(2, 50), (1, 50)] * 4)
    served = sh.services(spans, {1: [1], 2: [2]})
    found = sh.worst_window(served, {1: 50, 2: 50}, (0, 1100 * MS), 400 * MS, sh.burst_rule)
    assert found.points == pytest.approx(100 * 350 / 400 - 50)
    with pytest.raises(ValueError, match="no window"):
        sh.worst_window(served, {1: 50, 2: 50}, (0, 100 * MS), 400 * MS, sh.burst_rule)


def test_price_counts_changes_and_what_lies_between() -> None:
    spans = [S(0, 40 * MS, 1), S(40 * MS, 80 * MS, 1), S(90 * MS, 100 * MS, 2)]
    paid = sh.price(spans, 0, 100 * MS, switch_ns=2 * MS)
    assert paid.switches_per_s == pytest.approx(10) and paid.lost_percent == pytest.approx(10)
    assert paid.switch_percent == pytest.approx(2) and paid.drain_percent == pytest.approx(8)
