"""Mixes of tenants that are not alike, and the program that runs all scenarios."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from click.testing import CliRunner

from bench import __main__ as program
from bench.harness.figures import Figure
from bench.harness.scene import Actor, Scene
from bench.promises import mixes
from simulator.judge import shares as sh
from simulator.sim import Interval, Kind, Piece

MS = 1_000_000


def piece(start_ms: int, end_ms: int, pid: int) -> Interval:
    return Interval(
        start_ms * MS, end_ms * MS, start_ms * MS, pid, 0, pid, 17, Kind.KERNEL, Piece.LAST, 1, 0
    )


def test_what_is_due_follows_the_present_tenants() -> None:
    """30 and 70 for the first half, then 50 joins: 15 + 10, 35 + 23.3, 16.7 percent."""
    always = (0, 100)
    due = mixes.due_points({1: 30, 2: 70, 3: 50}, {1: always, 2: always, 3: (50, 130)}, 0, 100)
    assert due == pytest.approx({1: 15 + 10, 2: 35 + 70 / 3, 3: 50 / 3})
    assert mixes.due_points({1: 30}, {1: (20, 60)}, 0, 100) == {1: 40.0}, (
        "nobody is due an empty card"
    )


def test_come_and_go_is_judged_while_a_tenant_is_present() -> None:
    """Job 8 is there for the second half of 100 ms and gets half of it, as it should; then it
    gets a fifth.
    """

    def error(first: int) -> float:
        spans = [
            piece(0, 50, 1),
            piece(50, 50 + first, 2),
            piece(50 + first, 99, 1),
            piece(99, 100, 2),
        ]
        pids = {7: [1], 8: [2]}
        run = Scene(spans, [], pids, {}, {}, 0, 100 * MS, sh.services(spans, pids))
        return mixes.come_and_go(run, {7: 50, 8: 50})

    assert error(24) < 1 and error(9) == pytest.approx(15, abs=1)


def test_changes_of_context_inside_a_job_are_its_own_time() -> None:
    """Job 7 has two processes: a change of 50 us between them is its own, one to job 8 nobody's,
    a pause none.
    """
    us = 1000
    spans = [
        Interval(start * us, end * us, 0, pid, 0, pid, 17, Kind.KERNEL, Piece.LAST, 1, 0)
        for start, end, pid in (
            (0, 100, 1),
            (150, 250, 2),
            (300, 400, 3),
            (450, 500, 1),
            (600, 700, 2),
        )
    ]
    pids = {7: [1, 2], 8: [3]}
    scene = Scene(spans, [], pids, {}, {}, 0, 700 * us, sh.services(spans, pids))
    seen = mixes.of_turns(scene, pids)
    assert scene.served[7].within(0, 700 * us) == 350 * us
    assert seen.served[7].within(0, 700 * us) == 400 * us, "one change; the pause of 100 us is none"
    assert seen.served[8].within(0, 700 * us) == 100 * us


def test_copies_are_work_of_the_turn() -> None:
    """A copy in, a kernel under its end, a copy out: 3 ms of the card, of which the kernel is 1."""
    copy_in, kernel, copy_out = (
        Interval(start * MS, end * MS, 0, 1, 0, 1, 17, kind, Piece.LAST, 1, 0)
        for start, end, kind in ((0, 1, Kind.HTOD), (1, 2, Kind.KERNEL), (1, 3, Kind.DTOH))
    )
    served = sh.services([kernel], {7: [1]})
    scene = Scene([kernel], [], {7: [1]}, {}, {}, 0, 4 * MS, served, [copy_in, copy_out])
    assert scene.served[7].within(0, 4 * MS) == 1 * MS
    assert mixes.of_turns(scene, [7]).served[7].within(0, 4 * MS) == 3 * MS


def fixed_scene(*spans: Interval) -> tuple[Scene, mixes.Mix]:
    """A second in which job 200 (10 ms kernels) is due 30 % and job 201 (0.1 ms) is due 70 %."""
    pids = {200: [1], 201: [2]}
    scene = Scene(spans, [], pids, {}, {}, 0, 1000 * MS, sh.services(spans, pids))
    return scene, mixes.unlike("x", "fixed-share", (30, 70), (10_000, 100))


def test_one_kernel_more_is_a_kernel_of_ones_own() -> None:
    """5 ms too much: half a kernel of the one, fifty of the other."""
    long = mixes.above_1s(*fixed_scene(piece(0, 305, 1), piece(305, 1000, 2)))
    assert long == pytest.approx(0.5 - 1)
    short = mixes.above_1s(*fixed_scene(piece(0, 295, 1), piece(295, 1000, 2)))
    assert short == pytest.approx(0.5 - 0.01)


def test_the_bound_of_fixed_share_is_judged_apart() -> None:
    scene, mix = fixed_scene(piece(0, 280, 1), piece(280, 995, 2))
    seen = mixes.outcome(scene, mix)
    figures = {f.name: f for f in mixes.over_all({mix.name: (mix, seen)})}
    assert seen.total == pytest.approx(2)
    assert (figures["mix_fixed_above_points"].value, figures["mix_fixed_above_points"].verdict) == (
        1.5,
        "short",
    )
    assert figures["mix_fixed_above_1s_and_a_kernel"].value == pytest.approx(1.5 - 0.01)
    assert figures["mix_error_points_1s"].value == pytest.approx(2)


def test_burst_share_has_no_bound_above() -> None:
    scene, fixed = fixed_scene(piece(0, 280, 1), piece(280, 995, 2))
    burst = mixes.unlike("x", "burst-share", (30, 70), (10_000, 100))
    assert (
        mixes.outcome(scene, burst).above_1s is None
        and mixes.outcome(scene, fixed).above_1s is not None
    )


def test_the_mixes_are_those_that_tenants_really_make() -> None:
    found = {mix.name: mix for mix in mixes.mixes(10)}
    assert len({mix.figure for mix in found.values()}) == len(found)
    four = found["best-effort 4 processes beside 1"]
    assert [a.procs for a in four.actors] == [4, 1] and set(four.shares.values()) == {1.0}
    assert (
        len(found["16x6 1 ms burst"].actors) == 16
        and found["16x6 1 ms fixed"].policy == "fixed-share"
    )
    assert [a.share for a in found["5/10/85 mixed burst"].actors] == [5, 10, 85]
    assert "--copy" in found["30/70 the 30 copies"].actors[0].args
    assert "--copy" not in found["30/70 the 30 copies"].actors[1].args
    assert found["tenants come and go"].fluctuates and not four.fluctuates
    assert all(a.job_class == "online" for a in found["30/70 online"].actors)
    long = found["30/70 10 ms beside 0.1 ms fixed"]
    assert [(a.share, a.args[1]) for a in long.actors] == [(30, "10000"), (70, "100")]
    assert long.kernel_us == {200: 10_000, 201: 100} and long.longest_us == 10_000
    other = found["30/70 0.1 ms beside 10 ms burst"]
    assert [(a.share, a.args[1]) for a in other.actors] == [(30, "100"), (70, "10000")]
    fixed = found["30/70 online fixed"]
    assert fixed.policy == "fixed-share" and all(a.job_class == "online" for a in fixed.actors)
    lone = [mix for name, mix in found.items() if name.startswith("alone")]
    assert [mix.longest_us for mix in lone] == [100, 1000, 10_000]
    assert all(mix.policy == "fixed-share" and list(mix.shares.values()) == [25] for mix in lone)
    assert not any(" " in mix.figure or "/" in mix.figure for mix in found.values())


def test_visitors_come_and_go_inside_the_run() -> None:
    for actor in (a for a in mixes.visitors(10) if a.for_s):
        assert isinstance(actor, Actor) and actor.after_s > 0 and actor.after_s + actor.for_s < 10.5


def test_mixes_on_two_cards_have_no_job_in_common() -> None:
    first, second = (mixes.on_card(mix, card) for card, mix in enumerate(mixes.mixes(10)[4:6]))
    assert not set(first.shares) & set(second.shares)
    assert {a.card for a in second.actors} == {1} and sum(second.shares.values()) == 100


def figure(name: str, value: float, control: bool = False) -> Figure:
    return Figure(name, value, "us", 1.0, "<=", 1, control=control)


def test_a_scenario_that_fails_takes_nothing_from_the_others() -> None:
    def broken(quick: bool) -> Iterator[Figure]:
        yield figure("first", 0.5)
        raise RuntimeError("the machine is too busy")

    run = program.Run()
    run.add("broken", broken, True)
    run.add("next", lambda quick: iter([figure("second", 2.0)]), True)
    assert [f.name for f in run.figures] == ["first", "second"] and set(run.seconds) == {
        "broken",
        "next",
    }
    assert run.failed == {"broken": "RuntimeError: the machine is too busy"} and run.status == 1
    assert run.summary() == "1 of 2 judged figures short: second"


def test_a_short_figure_is_a_result_and_a_blind_control_is_not() -> None:
    run = program.Run([figure("short", 2.0), figure("control", 2.0, control=True)])
    assert run.status == 0
    run.figures.append(figure("control", 0.5, control=True))
    assert run.status == 3


def test_the_help_says_how_long_it_takes() -> None:
    said = CliRunner().invoke(program.main, ["--help"])
    assert said.exit_code == 0 and "minutes" in said.output and "window" in said.output
    assert not set(program.ON_DEMAND) & set(program.SCENARIOS)


def test_runs_of_one_mix_are_judged_by_their_medians_and_bounds_by_the_worst() -> None:
    scene, mix = fixed_scene(piece(0, 280, 1), piece(280, 995, 2))
    seen = mixes.outcome(scene, mix)
    assert seen.near(mix) and seen.steady and seen.above_1s is not None
    good = replace(
        seen, total=0.1, steady=replace(seen.steady, worst_1s=0.2), above_1s=seen.above_1s - 1
    )
    assert not good.near(mix)
    late = replace(good, steady=replace(seen.steady, worst_1s=5))
    assert late.near(mix) and not late.near(replace(mix, longest_us=30_000))
    found = mixes.of_runs([good, seen, good])
    assert found.steady and (found.total, found.steady.worst_1s, found.runs) == (0.1, 0.2, 3)
    assert found.above_1s == seen.above_1s
