"""Random worlds: equal seeds make equal worlds, and the judge tells good from bad."""

from __future__ import annotations

import json
from typing import Any

import pytest

from bench.worlds import programs, replayed, worlds
from bench.worlds.draw import MAX_TENANTS, document, without_offline, world
from bench.worlds.judge import Got, errors, judge, present, windows
from simulator.whatif.simtrace import Trace, parse_trace
from simulator.whatif.simulate import run_program

SECONDS = 12
SECOND = 10**9


def made(card: dict[str, Any] | None = None, *tenants: dict[str, Any]) -> Trace:
    """A trace of one card whose tenants have kernels of 200 us without end."""
    each = [
        {"name": f"t{i}", "class": "offline", "share": 50, "kernel": "200us"} | tenant
        for i, tenant in enumerate(tenants)
    ]
    text = {"duration": f"{SECONDS}s", "cards": [card or {}], "tenants": each}
    return parse_trace(json.dumps(text))


def busy(trace: Trace, *words: str) -> list[float]:
    """Seconds that each tenant had on the card."""
    raw = run_program(trace, *words, columns=SECONDS)
    return [tenant["busy_ns"] / 1e9 for tenant in raw["tenants"]]


def test_a_seed_makes_one_world_and_others_make_others() -> None:
    texts = [json.dumps(document(seed)) for seed in range(50)]
    assert texts == [json.dumps(document(seed)) for seed in range(50)]
    assert len(set(texts)) == 50


def test_every_world_is_a_trace_of_one_card_that_slurm_could_have_filled() -> None:
    sizes = set()
    for seed in [*range(worlds.COUNT), *range(worlds.JUDGING, worlds.JUDGING + worlds.COUNT)]:
        trace = world(seed)
        assert sum(tenant.share for tenant in trace.tenants) <= 100
        assert not without_offline(trace).tenants or trace.tenants[0].job_class == "online"
        sizes.add(len(trace.tenants))
    assert sizes == set(range(1, MAX_TENANTS + 1))


BOTH_SETS = [
    *((seed, False) for seed in range(worlds.COUNT)),
    *((seed, True) for seed in range(worlds.JUDGING, worlds.JUDGING + worlds.COUNT)),
]


def test_every_world_of_programs_is_a_trace_that_slurm_could_have_filled() -> None:
    used: dict[bool, set[str]] = {False: set(), True: set()}
    for seed, judges in BOTH_SETS:
        trace = replayed.world(seed, judges)
        assert sum(tenant.share for tenant in trace.tenants) <= 100
        used[judges] |= {tenant.program or "" for tenant in trace.tenants}
        assert trace == replayed.world(seed, judges)
    assert not used[False] & used[True], "a judged program may be looked at"
    assert used[False] | used[True] == {path.stem for path in programs.HERE.glob("*.json")}


def test_captured_programs_are_small_and_within_the_bounds_of_a_trace() -> None:
    for path in programs.HERE.glob("*.json"):
        one = programs.read(path)
        assert path.stat().st_size < 20_000
        trace = parse_trace(traced(one))
        assert trace.work(trace.tenants[0]) == replayed.program(one.name).stretches
        assert bool(one.requests) == (path.stem in {*sum(replayed.SERVICES.values(), ())})


def traced(one: programs.Captured) -> str:
    """A trace of this program, as a user may write it."""
    stretches = [
        [row.kernels, f"{row.ns}ns", f"{row.gap_ns}ns", f"{row.copy_ns}ns"] for row in one.rows
    ]
    tenant = {"name": "a", "class": "offline", "share": 50, "program": one.name}
    return json.dumps(
        {"programs": [{"name": one.name, "stretches": stretches}], "tenants": [tenant]}
    )


def test_who_is_present() -> None:
    trace = made(None, {"start": "1500ms", "stop": "4s"})
    assert present(trace.tenants[0], 6) == [False, False, True, True, False, False]


def test_windows() -> None:
    assert windows([1, 2, 3, 4], 2) == [3, 5, 7] and windows([1], 2) == []


def test_what_lies_between_the_two_ideals_is_no_error() -> None:
    trace = made(None, {}, {})

    def one(had: float, due: float, fluid: float) -> Got:
        work, *ideals = ([value * SECOND] for value in (had, due, fluid))
        return Got(trace.tenants[0], True, work, work, *ideals, [True])

    def found(mine: Got, kernel_ns: int = 0) -> list[float]:
        return list(errors(mine, [mine], 1, kernel_ns))

    assert found(one(0.3, 0.2, 0.5)) == [0.0]
    assert found(one(0.1, 0.2, 0.5)) == pytest.approx([10.0])
    assert found(one(0.6, 0.2, 0.5)) == pytest.approx([10.0])
    assert found(one(0.6, 0.2, 0.5), 30_000_000) == pytest.approx([7.0]), "less one kernel"


@pytest.mark.native
class TestRun:
    def test_the_fluid_card_divides_itself_by_weight_and_without_loss(self) -> None:
        trace = made(None, {"share": 30}, {"share": 20})
        assert busy(trace, "--fluid") == pytest.approx([7.2, 4.8], rel=1e-5)

    def test_the_fluid_card_knows_the_three_policies(self) -> None:
        tenants = ({"share": 30}, {"share": 20})
        for policy, wanted in (("best-effort", [6, 6]), ("fixed-share", [3.6, 2.4])):
            trace = made({"policy": {"offline": policy}}, *tenants)
            assert busy(trace, "--fluid") == pytest.approx(wanted, rel=1e-5)

    def test_the_fluid_card_keeps_offline_off_until_idle_release_is_over(self) -> None:
        online = {"class": "online", "load": {"every": "1s", "kernels": 1000}}
        trace = made({"idle_release": "300ms"}, online, {})
        assert busy(trace, "--fluid") == pytest.approx([2.4, 12 * 0.5], rel=1e-3)

    def test_requests_are_the_same_whoever_is_there(self) -> None:
        online = {
            "class": "online",
            "kernel": ["50us", "150us"],
            "load": {"per_second": 20, "kernels": 9},
        }
        alone = run_program(made(None, online), "--fluid", "--requests")["tenants"][0]
        beside = run_program(made(None, online, {}), "--fluid", "--requests")["tenants"][0]
        assert beside["latencies_ns"] == alone["latencies_ns"] and alone["requests"] > 100

    def test_a_division_by_the_wrong_weights_is_short(self) -> None:
        """The control of the judge: the tenants get 30 to 70, and should have had 70 to 30."""
        right = made(None, {"share": 70}, {"share": 30})
        wrong = made(None, {"share": 30}, {"share": 70})
        raw, fluid = (run_program(right, *w, columns=SECONDS) for w in ((), ("--fluid",)))
        good = judge(right, raw, fluid, None)
        assert good.share_10s is not None and good.share_10s < 2
        lies = run_program(wrong, columns=SECONDS)
        other = {"cards": lies["cards"], "tenants": [dict(t) for t in lies["tenants"]]}
        for tenant, ideal in zip(other["tenants"], raw["tenants"], strict=True):
            tenant["due_bins"] = ideal["due_bins"]
        bad = judge(right, other, fluid, None)
        assert bad.share_10s is not None and bad.share_10s > 35

    def test_who_pauses_in_its_own_quanta_costs_no_other_an_error(self) -> None:
        """A fifth of the time is due to one that pauses for half of its time. So it works for a
        tenth, and the other one has its four fifths.
        """
        pausing = {"pause": "100us", "share": 20, "kernel": "100us"}
        trace = made(None, pausing, {"share": 80})
        raw, fluid = (run_program(trace, *w, columns=SECONDS) for w in ((), ("--fluid",)))
        pauses, works = (each["busy_ns"] / (SECONDS * SECOND) for each in raw["tenants"])
        assert works == pytest.approx(0.8, abs=0.03) and pauses < 0.15
        judged = judge(trace, raw, fluid, None)
        assert judged.share_10s is not None and judged.share_10s < 1

    def test_who_pauses_and_has_the_wrong_share_is_found(self) -> None:
        """The control: the one that pauses is given 20 % of the time, and is due half of it."""
        right, wrong = (
            made(None, {"pause": "100us", "share": share}, {"share": 100 - share})
            for share in (50, 20)
        )
        due, raw = (run_program(trace, columns=SECONDS) for trace in (right, wrong))
        fluid = run_program(right, "--fluid", columns=SECONDS)
        tenants = [
            mine | {"due_bins": ideal["due_bins"]}
            for mine, ideal in zip(raw["tenants"], due["tenants"], strict=True)
        ]
        judged = judge(right, raw | {"tenants": tenants}, fluid, None)
        assert judged.share_10s is not None and judged.share_10s > 15

    def test_equal_seeds_give_equal_figures(self) -> None:
        for family in worlds.FAMILIES:
            found = worlds.of_seeds(range(8), family)
            assert found == worlds.of_seeds(range(8), family)

    def test_a_program_alone_takes_the_time_that_it_took_when_it_was_captured(self) -> None:
        for path in programs.HERE.glob("*.json"):
            one = programs.read(path)
            (alone,) = run_program(parse_trace(traced(one)))["tenants"]
            part = one.busy_ns / (one.busy_ns + one.idle_ns)
            assert alone["busy_ns"] / 10**10 == pytest.approx(part, rel=0.02), path.stem


@pytest.mark.native
@pytest.mark.parametrize("seed", [26, 300, 924])
def test_deficits_at_their_bound_keep_shares(seed: int) -> None:
    """With a bound for each tenant alone these tuning worlds were 19, 8 and 14 points off. In the
    last one kernels of 240 ms are beside such of 5 us.
    """
    off = worlds.run(seed).share_10s
    assert off is not None and off < 7
