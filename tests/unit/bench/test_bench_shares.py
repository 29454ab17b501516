"""How shares are judged: over all of a run, in every second, by quanta, and as a bound."""

from __future__ import annotations

import pytest

from bench.harness.scene import Scene
from bench.promises import shares
from simulator.judge import shares as sh
from simulator.sim import Interval, Kind, Piece

US, MS = 1000, 1_000_000


def piece(start_ms: int, end_ms: int, pid: int, kind: Kind = Kind.KERNEL) -> Interval:
    return Interval(
        start_ms * MS, end_ms * MS, start_ms * MS, pid, 0, pid, 17, kind, Piece.LAST, 1, 0
    )


def scene_of(spans: list[Interval], pids: dict[int, list[int]], end: int) -> Scene:
    return Scene(spans, [], pids, {}, {}, 0, end, sh.services(spans, pids))


def alternating(first_ms: int, second_ms: int, rounds: int) -> Scene:
    """Jobs 7 and 8 in turns."""
    length = first_ms + second_ms
    spans = [
        span
        for start in range(0, rounds * length, length)
        for span in (piece(start, start + first_ms, 1), piece(start + first_ms, start + length, 2))
    ]
    return scene_of(spans, {7: [1], 8: [2]}, rounds * length * MS)


def test_shares_are_judged_over_all_and_over_every_second() -> None:
    """30/70 in turns of 3 and 7 ms is exact over 4 s, and within one turn in any second."""
    turns = alternating(3, 7, 400)
    errors = shares.judge(turns, {7: 30, 8: 70}, "burst-share")
    assert errors.total == pytest.approx(0) and errors.worst_1s == pytest.approx(0)
    assert errors.price.switches_per_s == pytest.approx(199.75)
    assert shares.judge(turns, {7: 70, 8: 30}, "burst-share").total == pytest.approx(40)


def test_the_worst_mix_is_named_and_each_policy_has_its_target() -> None:
    price = sh.Price(100, 3, 1)
    found = {"a": shares.Errors(0.4, 2.0, price, -1), "b": shares.Errors(1.8, 5.5, price, -2)}
    fixed = {f.name: f for f in shares.figures_of("fixed-share", found)}
    total = fixed["share_error_points_max_fixed"]
    assert (total.value, total.verdict) == (1.8, "ok") and "worst at b" in total.spread
    assert fixed["share_error_points_1s_fixed"].verdict == "short"
    assert fixed["fixed_share_above_1s_and_a_kernel"].value == -1
    assert fixed["drain_loss_percent_fixed"].value == 2 and total.detail == {"a": 0.4, "b": 1.8}
    burst = {f.name: f for f in shares.figures_of("burst-share", found)}
    assert burst["share_error_points_max_burst"].verdict == "short"
    assert not any("above" in name for name in burst), "burst-share has no bound"


def test_changes_of_context_inside_a_job_are_its_own_time() -> None:
    """Job 7 has two processes: a context switch of 50 us between them is charged to it. One to job
    8 is charged to no job, and a pause is no switch.
    """
    spans = [
        Interval(start * US, end * US, 0, pid, 0, pid, 17, Kind.KERNEL, Piece.LAST, 1, 0)
        for start, end, pid in (
            (0, 100, 1),
            (150, 250, 2),
            (300, 400, 3),
            (450, 500, 1),
            (600, 700, 2),
        )
    ]
    pids = {7: [1, 2], 8: [3]}
    scene = scene_of(spans, pids, 700 * US)
    seen = shares.of_turns(scene, pids)
    assert scene.served[7].within(0, 700 * US) == 350 * US
    assert seen.served[7].within(0, 700 * US) == 400 * US, "one change; the pause of 100 us is none"
    assert seen.served[8].within(0, 700 * US) == 100 * US


def test_copies_are_work_of_the_turn() -> None:
    """A copy in, a kernel under its end, a copy out: 3 ms of the card, of which the kernel is 1."""
    copy_in, kernel, copy_out = (
        piece(start, end, 1, kind)
        for start, end, kind in ((0, 1, Kind.HTOD), (1, 2, Kind.KERNEL), (1, 3, Kind.DTOH))
    )
    served = sh.services([kernel], {7: [1]})
    scene = Scene([kernel], [], {7: [1]}, {}, {}, 0, 4 * MS, served, [copy_in, copy_out])
    assert scene.served[7].within(0, 4 * MS) == 1 * MS
    assert shares.of_turns(scene, [7]).served[7].within(0, 4 * MS) == 3 * MS


def fixed_scene(*spans: Interval) -> tuple[Scene, shares.Mix]:
    """A second in which job 200 (10 ms kernels) is due 30 % and job 201 (0.1 ms) is due 70 %."""
    scene = scene_of(list(spans), {200: [1], 201: [2]}, 1000 * MS)
    return scene, shares.unlike("x", "fixed-share", (30, 70), (10_000, 100))


def test_one_kernel_more_is_a_kernel_of_ones_own() -> None:
    """5 ms too much: half a kernel of the one, fifty of the other."""
    long = shares.above_1s(*fixed_scene(piece(0, 305, 1), piece(305, 1000, 2)))
    assert long == pytest.approx(0.5 - 1)
    short = shares.above_1s(*fixed_scene(piece(0, 295, 1), piece(295, 1000, 2)))
    assert short == pytest.approx(0.5 - 0.01)


def test_the_bound_of_fixed_share_is_judged_apart_from_its_error() -> None:
    scene, mix = fixed_scene(piece(0, 280, 1), piece(280, 995, 2))
    seen = shares.outcome(scene, mix)
    assert seen.total == pytest.approx(2) and seen.above_1s == pytest.approx(1.5 - 0.01)


def test_the_mixes_are_those_that_tenants_really_make() -> None:
    runs = shares.all_runs()
    found = {(mix.name, mix.policy): mix for run in runs for mix in run}
    assert len(found) == sum(map(len, runs)), "each has a name of its own"
    for policy in shares.TARGETS:
        assert {max(mix.each_us) for mix in found.values() if mix.policy == policy} >= {
            100,
            1000,
            10_000,
        }
    copies = found["30/70, the 30 copies", "burst-share"]
    assert "--copy" in copies.actors[0].args and "--copy" not in copies.actors[1].args
    assert [a.procs for a in found["30/70, the 30 in 4", "burst-share"].actors] == [4, 1]
    online = found["30/70 online", "burst-share"]
    assert {a.job_class for a in online.actors} == {"online"}
    assert [a.job_class for a in online.beside] == ["offline"]
    assert set(online.shares) == {200, 201}, "a job without a share is not judged by one"
    long = found["30/70 0.1 ms beside 10 ms", "fixed-share"]
    assert [(a.share, a.args[1]) for a in long.actors] == [(30, "100"), (70, "10000")]
    assert long.kernel_us == {200: 100, 201: 10_000}


def test_mixes_on_two_cards_have_no_job_in_common() -> None:
    first, second = (mix.on_card(card) for card, mix in enumerate(shares.all_runs()[5]))
    jobs = [[a.job_id for a in (*mix.actors, *mix.beside)] for mix in (first, second)]
    assert not set(jobs[0]) & set(jobs[1])
    assert {a.card for a in (*second.actors, *second.beside)} == {1}


def test_offline_beside_busy_online_is_told_in_percent_of_the_time() -> None:
    scene = scene_of([piece(0, 999, 1), piece(999, 1000, 2)], {200: [1], 220: [2]}, 1000 * MS)
    (offline,) = shares.online().beside
    figure = shares.beside_online(scene, offline)
    assert figure.value == pytest.approx(0.1) and figure.verdict == "ok"
