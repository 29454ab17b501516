"""The sweep over what the simulator assumes: every corner, and a judge that takes stalls for what they are."""

from __future__ import annotations

from typing import Any

import pytest

from bench import sweep, window
from bench.harvest import Outcome
from bench.scene import Actor, Scene
from enforcer import shares as sh
from enforcer.sim import Interval, Kind, Piece

MS = 1_000_000


def piece(start: float, end: float, seq: int, pid: int = 1, last: bool = True) -> Interval:
    """Times in ms."""
    flags = Piece.LAST if last else 0
    return Interval(round(start * MS), round(end * MS), 0, pid, 0, pid, 17, Kind.KERNEL, flags, seq, 0)


def scene(spans: list[Interval], end_ms: float) -> Scene:
    pids = {7: [1], 8: [2]}
    logged: dict[int, list[dict[str, Any]]] = {7: [], 8: []}
    return Scene(spans, [], pids, {}, logged, 0, round(end_ms * MS), sh.services(spans, pids))


def result(**different: Any) -> sweep.Result:
    values = {
        "close_us": [10.0], "free_us": [100.0], "spoilt": 0, "harvest": 0.98, "harvest_many": 0.9,
        "error": 0.2, "error_1s": 2.0, "error_executed": 0.2,
    }  # fmt: skip
    return sweep.Result(**(values | different))


def test_every_corner_of_the_promise_is_a_point() -> None:
    corners = {(p.slice_us, p.switch_us, p.launch_us) for p in sweep.POINTS if not p.stalls}
    assert {(a, b, c) for a in (500, 5000) for b in (20, 500) for c in (2, 6)} <= corners
    assert {p.stalls for p in sweep.POINTS} == {"", "card", "call"}
    assert all(p.options[-2:] == ("--queue-depth", "1024") for p in sweep.POINTS)
    assert len({p.name for p in sweep.POINTS}) == len(sweep.POINTS)


def test_a_stall_is_time_of_the_kernel_that_it_stopped() -> None:
    stopped = [piece(0, 1, 1, last=False), piece(51, 52, 1), piece(52, 53, 1, pid=2)]
    assert [(s.t_start, s.t_end) for s in sweep.held(stopped)] == [(0, 52 * MS), (52 * MS, 53 * MS)]
    between = [piece(0, 1, 1, last=False), piece(1, 2, 1, pid=2), piece(51, 52, 1)]
    assert sweep.held(between) == between, "somebody else had the card"
    ended = [piece(0, 1, 1), piece(51, 52, 2)]
    assert sweep.held(ended) == ended, "an idle card is nobody's"


def test_shares_are_judged_by_time_held_and_by_what_was_executed() -> None:
    """Job 7 stands still for 40 ms of its 50: it held half of the card and executed a sixth of all."""
    spans = [piece(0, 5, 1, last=False), piece(45, 50, 1), piece(50, 100, 1, pid=2)]
    total, within, executed = sweep.share_errors(scene(spans, 100), {7: 50, 8: 50})
    assert (total, within) == (pytest.approx(0), pytest.approx(0))
    assert executed == pytest.approx(100 * (50 / 60) - 50)


def test_harvest_leaves_out_what_the_card_stood_still() -> None:
    online, offline = Actor(7, "online", 50, ()), Actor(8, "offline", 50, ())
    release = 100  # ms, as all of the sweep
    spans = [piece(0, 10, 1), piece(10 + release, 400, 1, pid=2, last=False), piece(450, 500, 1, pid=2)]
    stall = sweep.Stalls([(400 * MS, 450 * MS)])
    assert sweep.harvest(scene(spans, 500), online, [offline], stall) == pytest.approx(1)
    assert sweep.harvest(scene(spans, 500), online, [offline], sweep.Stalls()) == pytest.approx(340 / 390)
    early = sweep.Stalls([(20 * MS, 70 * MS)])
    assert sweep.harvest(scene(spans, 500), online, [offline], early) == pytest.approx(340 / 390), (
        "a stall while policy keeps the card free takes nothing"
    )


def test_stalls_meet_what_they_overlap() -> None:
    stalls = sweep.Stalls([(10, 20), (30, 40)])
    assert stalls.meet(19, 21) and not stalls.meet(20, 30) and stalls.inside(15, 35) == 10
    assert stalls.inside(25, 20) == 0


def test_the_worst_point_is_named_and_short_ones_are_counted() -> None:
    found = sweep.worst("x", {"a": 0.9, "b": 0.95, "c": 0.99}, "", 0.97, 3, lowest=True)
    assert (found.value, found.verdict) == (0.9, "short")
    assert "at a" in found.spread and "2 of 3 points short" in found.spread
    assert sweep.worst("x", {"a": 1, "b": 2}, "us", None, 2).verdict == "reported"


def test_launches_that_stay_in_the_driver_are_short_in_a_line_of_their_own() -> None:
    found = {
        sweep.Point(): result(),
        sweep.Point(stalls="card"): result(error_executed=4.0, error_1s=5.0),
        sweep.Point(stalls="call"): result(free_us=[50_000.0], close_us=[300.0], harvest=0.5),
    }
    figures = {f.name: f for f in sweep.judged(found)}
    assert figures["sweep_card_free_us_p99"].value == 100
    assert figures["sweep_gate_close_us_p99"].verdict == "short", "the gate closes whatever the driver does"
    assert figures["sweep_harvest_ratio"].value == 0.98
    assert figures["sweep_share_error_points_1s"].value == 2.0
    beyond, executed = (
        figures["sweep_call_stalls_card_free_us_p99"],
        figures["sweep_card_stalls_executed_error"],
    )
    assert (beyond.value, beyond.verdict) == (50_000.0, "short"), "the promise is over the whole sweep"
    assert (executed.value, executed.verdict) == (4.0, "reported")


def test_a_line_of_the_window_is_over_all_rounds() -> None:
    points = [result(free_us=[100.0, 200.0]), result(free_us=[900.0], harvest=0.9)]
    outcomes = [Outcome(0.5, 0.9, 0.4, ratio) for ratio in (1.0, 1.1, 1.02)]
    line = window.line(400, points, outcomes)
    assert (line.value, line.runs, line.verdict) == (900.0, 3, "reported")
    assert line.detail["online_p99_ratio"] == 1.02 and line.detail["harvest_ratio"] == pytest.approx(0.94)


def test_where_the_driver_itself_goes_to_online_and_back_the_target_is_beyond_reach() -> None:
    short, far = sweep.Point(500, 20), sweep.Point(500, 500)
    assert (short.floor_us, far.floor_us, sweep.Point(5000, 500).floor_us) == (540, 1500, 0)
    figures = {f.name: f for f in sweep.judged({short: result(), far: result(free_us=[1600.0])})}
    assert figures["sweep_card_free_us_p99"].detail == {short.name: 100.0}
    beyond = figures["sweep_card_free_beyond_reach_us_p99"]
    assert (beyond.detail, beyond.verdict) == ({far.name: 1600.0}, "short")
