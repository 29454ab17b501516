"""The sweep over what the simulator assumes: every corner, and a judge that takes stalls for
what they are.
"""

from __future__ import annotations

from typing import Any

import pytest

from bench.harness import stalls
from bench.harness.scene import Actor, Scene
from bench.promises.harvest import Outcome
from bench.sweep import runs, sweep
from bench.sweep.points import POINTS, Point
from bench.sweep.runs import Further, Result, ShareErrors
from bench.tuning import window
from simulator.judge import shares as sh
from simulator.sim import Interval, Kind, Piece

MS = 1_000_000


def piece(start: float, end: float, seq: int, pid: int = 1, last: bool = True) -> Interval:
    """Times in ms."""
    flags = Piece.LAST if last else 0
    return Interval(
        round(start * MS), round(end * MS), 0, pid, 0, pid, 17, Kind.KERNEL, flags, seq, 0
    )


def scene(spans: list[Interval], end_ms: float) -> Scene:
    pids = {7: [1], 8: [2]}
    logged: dict[int, list[dict[str, Any]]] = {7: [], 8: []}
    return Scene(spans, [], pids, {}, logged, 0, round(end_ms * MS), sh.services(spans, pids))


def errors(**different: float) -> ShareErrors:
    values = {
        "total": 0.2,
        "worst_1s": 2.0,
        "executed": 0.2,
        "above": 0.1,
        "above_1s": -0.1,
        "lost": 0.1,
        "used": 0.99,
        "changes": 30.0,
    }
    return ShareErrors(**(values | different))


def result(**different: Any) -> Result:
    values = {
        "close_us": [10.0],
        "free_us": [100.0],
        "back_ms": [101.0],
        "spoilt": 0,
        "harvest": 0.98,
        "harvest_many": 0.9,
        "share": errors(),
    }
    return Result(**(values | different))


def found(first: Result | None = None, **further: Any) -> sweep.Found:
    values = {"fixed": errors(), "mixed": errors(), "ratio": 1.02, "others": None}
    return sweep.Found(first or result(), Further(**(values | further)))


def judged(seen: dict[Point, sweep.Found]) -> dict[str, Any]:
    return {figure.name: figure for figure in sweep.judged([seen])}


def test_every_corner_of_the_promise_is_a_point() -> None:
    corners = {(p.slice_us, p.switch_us, p.launch_us) for p in POINTS if not p.stalls}
    assert {(a, b, c) for a in (500, 5000) for b in (20, 500) for c in (2, 6)} <= corners
    assert {p.stalls for p in POINTS} == {"", "card", "call"}
    assert all(p.options[-2:] == ("--queue-depth", "1024") for p in POINTS)
    assert len({p.name for p in POINTS}) == len(POINTS)


def test_a_stall_is_time_of_the_kernel_that_it_stopped() -> None:
    stopped = [piece(0, 1, 1, last=False), piece(51, 52, 1), piece(52, 53, 1, pid=2)]
    assert [(s.t_start, s.t_end) for s in stalls.held(stopped)] == [
        (0, 52 * MS),
        (52 * MS, 53 * MS),
    ]
    between = [piece(0, 1, 1, last=False), piece(1, 2, 1, pid=2), piece(51, 52, 1)]
    assert stalls.held(between) == between, "somebody else had the card"
    ended = [piece(0, 1, 1), piece(51, 52, 2)]
    assert stalls.held(ended) == ended, "an idle card is nobody's"


def test_shares_are_judged_by_time_held_and_by_what_was_executed() -> None:
    """Job 7 stands still for 40 ms of its 50: it held half of the card and executed a sixth of
    all.
    """
    spans = [piece(0, 5, 1, last=False), piece(45, 50, 1), piece(50, 100, 1, pid=2)]
    seen = runs.share_errors(scene(spans, 100), {7: 50, 8: 50})
    assert (seen.total, seen.worst_1s) == (pytest.approx(0), pytest.approx(0))
    assert seen.executed == pytest.approx(100 * (50 / 60) - 50)
    assert (seen.lost, seen.used) == (pytest.approx(0), pytest.approx(1))


def test_a_neighbour_is_judged_by_its_own_part() -> None:
    """Job 7 worked for 20 ms of 100 and left 80; job 8, due 70, had 60 of them."""
    spans = [piece(0, 20, 1), piece(30, 90, 1, pid=2)]
    seen = runs.share_errors(scene(spans, 100), {7: 30, 8: 70})
    assert (seen.lost, seen.used) == (pytest.approx(10), pytest.approx(60 / 80))
    more = runs.share_errors(
        scene([piece(0, 20, 1), piece(20, 100, 1, pid=2)], 100), {7: 30, 8: 70}
    )
    assert (more.lost, more.used) == (0, 1)


def test_the_bound_of_fixed_share_is_by_what_was_executed() -> None:
    """Job 8 held 74 ms of 100 and executed 72; its due is 70, and a kernel of 1 ms is 1 point
    here.
    """
    spans = [piece(0, 25, 1), piece(25, 50, 1, pid=2, last=False), piece(52, 99, 1, pid=2)]
    seen = runs.share_errors(scene(spans, 100), {7: 30, 8: 70}, "fixed-share")
    assert seen.total == pytest.approx(5) and seen.above == pytest.approx(2)
    assert seen.above_1s == pytest.approx(1)


def test_harvest_leaves_out_what_the_card_stood_still() -> None:
    online, offline = Actor(7, "online", 50, ()), Actor(8, "offline", 50, ())
    release = 100  # ms, as all of the sweep
    spans = [
        piece(0, 10, 1),
        piece(10 + release, 400, 1, pid=2, last=False),
        piece(450, 500, 1, pid=2),
    ]
    stall = stalls.Stalls([(400 * MS, 450 * MS)])
    assert runs.harvest(scene(spans, 500), online, [offline], stall) == pytest.approx(1)
    assert runs.harvest(scene(spans, 500), online, [offline], stalls.Stalls()) == pytest.approx(
        340 / 390
    )
    early = stalls.Stalls([(20 * MS, 70 * MS)])
    assert runs.harvest(scene(spans, 500), online, [offline], early) == pytest.approx(340 / 390), (
        "a stall while policy keeps the card free takes nothing"
    )


def test_stalls_meet_what_they_overlap() -> None:
    found = stalls.Stalls([(10, 20), (30, 40)])
    assert found.meet(19, 21) and not found.meet(20, 30) and found.inside(15, 35) == 10
    assert found.inside(25, 20) == 0


def test_the_worst_point_is_named_and_short_ones_are_counted() -> None:
    found = sweep.Promise("x", {"a": 0.9, "b": 0.95, "c": 0.99}, "", 0.97, 3, lowest=True).worst(1)
    assert (found.value, found.verdict) == (0.9, "short")
    assert "at a" in found.spread and "2 of 3 points short" in found.spread
    assert sweep.Promise("x", {"a": 1, "b": 2}, "us", None, 2).worst(1).verdict == "reported"


def test_at_each_point_the_median_of_the_rounds_counts_and_of_a_bound_the_worst() -> None:
    rounds = [
        {
            Point(): found(result(close_us=[close]), ratio=ratio),
            Point(500, 20, 2): found(fixed=errors(above_1s=above)),
        }
        for close, ratio, above in ((900.0, 1.01, -0.1), (50.0, 1.09, 0.2), (60.0, 1.03, -0.3))
    ]
    figures = {figure.name: figure for figure in sweep.judged(rounds)}
    close = figures["sweep_gate_close_us_p99"]
    assert (close.value, close.runs, close.verdict) == (60.0, 6, "ok")
    assert "medians of 3 rounds" in close.spread
    assert figures["sweep_online_p99_ratio"].value == 1.03
    above = figures["sweep_fixed_share_above_1s_and_a_kernel"]
    assert (above.value, above.verdict) == (0.2, "short") and "worst of 3 rounds" in above.spread


def test_where_onlines_p99_comes_near_its_target_longer_runs_decide_on_either_side() -> None:
    far, below, above, beyond = (
        Point(),
        Point(kernel_us=20),
        Point(kernel_us=450),
        Point(switch_us=500),
    )
    ratios = {
        far: (1.0, 1.03, 1.2),
        below: (1.045, 1.0, 1.2),
        above: (1.1, 1.0, 1.2),
        beyond: (1.2, 1.2, 1.2),
    }
    rounds = [
        {point: found(ratio=each[i], others=1.0) for point, each in ratios.items()}
        for i in range(3)
    ]
    longer = {below: iter((1.06, 1.07, 1.0)), above: iter((1.01, 1.04, 1.3))}
    decided = sweep.settled(rounds, lambda point: next(longer[point]), pytest.fail)
    assert [[seen[point].second.ratio for seen in decided] for point in ratios] == [
        [1.0, 1.03, 1.2],
        [1.06, 1.07, 1.0],
        [1.01, 1.04, 1.3],
        [1.2, 1.2, 1.2],
    ]
    figures = {figure.name: figure for figure in sweep.judged(decided)}
    assert figures["sweep_online_p99_ratio"].value == 1.06
    assert figures["sweep_online_p99_ratio"].detail[above.name] == 1.04


def test_where_harvest_comes_near_its_target_a_card_with_the_machine_to_itself_decides() -> None:
    far, below, above = Point(), Point(kernel_us=20), Point(kernel_us=450)
    harvests = {far: (0.99, 0.9, 0.98), below: (0.96, 0.95, 0.99), above: (0.975, 0.975, 0.975)}
    rounds = [
        {point: found(result(harvest=each[i])) for point, each in harvests.items()}
        for i in range(3)
    ]
    alone = {below: iter((0.98, 0.99, 0.97)), above: iter((0.96, 0.965, 0.99))}
    decided = sweep.settled(rounds, pytest.fail, lambda point: next(alone[point]))
    assert [[seen[point].first.harvest for seen in decided] for point in harvests] == [
        [0.99, 0.9, 0.98],
        [0.98, 0.99, 0.97],
        [0.96, 0.965, 0.99],
    ]
    figure = next(f for f in sweep.judged(decided) if f.name == "sweep_harvest_ratio")
    assert (figure.value, figure.verdict) == (0.965, "short")


def test_launches_that_stay_in_the_driver_are_short_in_a_line_of_their_own() -> None:
    figures = judged(
        {
            Point(): found(),
            Point(stalls="card"): found(result(share=errors(executed=4.0, worst_1s=5.0))),
            Point(stalls="call"): found(result(free_us=[50_000.0], close_us=[300.0])),
        }
    )
    assert figures["sweep_card_free_us_p99"].value == 100
    assert figures["sweep_gate_close_us_p99"].verdict == "short", (
        "the gate closes whatever the driver does"
    )
    assert figures["sweep_share_error_points_1s"].value == 2.0
    beyond, executed = (
        figures["sweep_call_stalls_card_free_us_p99"],
        figures["sweep_card_stalls_executed_error"],
    )
    assert (beyond.value, beyond.verdict) == (50_000.0, "short"), (
        "the promise is over the whole sweep"
    )
    assert (executed.value, executed.verdict) == (4.0, "reported")


def test_only_the_tenant_in_a_launch_call_loses() -> None:
    """At that point shares are not those of tenants that always have work; the neighbour's part
    is judged instead.
    """
    seen = found(
        result(harvest=0.9, share=errors(total=20.0)), fixed=errors(lost=1.5, above=1.2), ratio=1.2
    )
    figures = judged({Point(): found(), Point(stalls="call"): seen})
    assert figures["sweep_share_error_points"].value == 0.2
    lost = figures["sweep_call_stalls_neighbour_lost_points"]
    assert (lost.value, lost.verdict, lost.runs) == (1.5, "short", 3)
    used = figures["sweep_call_stalls_neighbour_ratio"]
    assert (used.value, used.verdict, used.runs) == (0.99, "ok", 2), (
        "under fixed-share nobody is given more"
    )
    assert figures["sweep_harvest_ratio"].value == 0.9, "of two tenants the other one goes on"
    assert figures["sweep_online_p99_ratio"].value == 1.2, "online is a neighbour too"
    assert figures["sweep_fixed_share_above_points"].verdict == "short", (
        "a bound holds whatever the driver does"
    )
    assert "sweep_call_stalls_neighbour_ratio" not in judged({Point(): found()})


def test_fixed_share_mixed_kernels_and_hand_back_are_judged_at_every_point() -> None:
    corner = Point(500, 20, 2)
    bad = found(
        result(back_ms=[101.0, 110.0]),
        mixed=errors(total=3.0, worst_1s=4.0),
        fixed=errors(total=1.4, worst_1s=3.5, above_1s=0.2),
    )
    figures = judged({Point(): found(), corner: bad})
    for name, value in (
        ("sweep_handback_ms_p99", 110.0),
        ("sweep_share_error_points", 3.0),
        ("sweep_share_error_points_1s", 4.0),
        ("sweep_share_error_points_fixed", 1.4),
        ("sweep_share_error_points_1s_fixed", 3.5),
        ("sweep_fixed_share_above_1s_and_a_kernel", 0.2),
    ):
        assert (figures[name].value, figures[name].verdict) == (value, "short"), name
        assert corner.name in figures[name].spread
    spent = figures["sweep_fixed_switch_percent"]
    assert (spent.value, spent.verdict) == (pytest.approx(30 * 50e-6 * 100), "reported")


def test_online_is_judged_by_another_pattern_where_a_change_of_context_alone_is_too_much() -> None:
    near, far = Point(5000, 20), Point(5000, 500)
    assert not near.p99_beyond and far.p99_beyond
    figures = judged({near: found(), far: found(ratio=1.12, others=1.04)})
    assert (figures["sweep_online_p99_ratio"].value, figures["sweep_online_p99_ratio"].verdict) == (
        1.04,
        "ok",
    )
    beyond = figures["sweep_online_p99_beyond_reach_ratio"]
    assert (beyond.detail, beyond.verdict) == ({far.name: 1.12}, "short"), (
        "the promise is over the whole sweep"
    )
    assert "sweep_online_p99_beyond_reach_ratio" not in judged({near: found()})


def test_stalled_calls_reach_every_card_and_leave_it_a_neighbour() -> None:
    who = runs.cast(Point(stalls="call"))
    assert len(who.beside) == 2 and len(runs.cast(Point()).beside) == 1
    assert len({actor.job_id for actor in who.actors}) == len(who.actors) == 22


@pytest.mark.parametrize("point", POINTS, ids=lambda point: point.name)
def test_every_online_job_of_the_second_run_has_a_twin_with_the_same_draws(point: Point) -> None:
    two = runs.pairs(point)
    assert len(two) == (2 if point.p99_beyond else 1)
    for one in two:
        assert (
            one.shared.args == one.alone.args
            and one.shared.card == one.offline.card != one.alone.card
        )
    actors = [actor for one in two for actor in one.actors]
    assert len({actor.job_id for actor in actors}) == len(actors)
    assert {actor.card for actor in actors} == set(range(2, 2 + 2 * len(two))), (
        "cards 0 and 1 are shared by others"
    )


def test_a_line_of_the_window_is_over_all_rounds() -> None:
    points = [result(free_us=[100.0, 200.0]), result(free_us=[900.0], harvest=0.9)]
    outcomes = [Outcome(0.5, 0.9, 0.4, ratio) for ratio in (1.0, 1.1, 1.02)]
    line = window.line(400, points, outcomes)
    assert (line.value, line.runs, line.verdict) == (900.0, 3, "reported")
    assert line.detail["online_p99_ratio"] == 1.02 and line.detail[
        "harvest_ratio"
    ] == pytest.approx(0.94)


def test_where_the_driver_itself_goes_to_online_and_back_the_target_is_beyond_reach() -> None:
    short, far = Point(500, 20), Point(500, 500)
    assert (short.floor_us, far.floor_us, Point(5000, 500).floor_us) == (540, 1500, 0)
    figures = judged({short: found(), far: found(result(free_us=[1600.0]))})
    assert figures["sweep_card_free_us_p99"].detail == {short.name: 100.0}
    beyond = figures["sweep_card_free_beyond_reach_us_p99"]
    assert (beyond.detail, beyond.verdict) == ({far.name: 1600.0}, "short")
