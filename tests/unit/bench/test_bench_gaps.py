"""How gaps of services are judged."""

from __future__ import annotations

import pytest

from bench.promises import gaps
from bench.promises.gaps import AUTO, FIXED, RULE, Outcome, Played


def played(use: float, free_ms: float = 0.5, mean_ms: float = 2.0, p99_ms: float = 3.0) -> Played:
    return Played(use, free_ms, 1000, mean_ms, p99_ms)


def runs(**changes: Played) -> dict[str, Played]:
    """The shorter the hold the more use; only the rule keeps the limits, unless changed."""
    found = {name: played(0.1 * i, free_ms=5.0) for i, name in enumerate(FIXED, 1)}
    return found | {RULE: played(0.1)} | {name.lstrip("_"): one for name, one in changes.items()}


def test_the_oracle_is_the_best_fixed_value_that_keeps_onlines_limits() -> None:
    alone = played(0.0)
    assert gaps.oracle(runs(), alone, exact=True) == RULE
    assert gaps.oracle(runs(_1ms=played(0.8)), alone, exact=True) == "1ms"
    slow = runs(_1ms=played(0.8), _0s=played(0.9, mean_ms=2.6))
    assert gaps.oracle(slow, alone, exact=True) == "1ms"
    assert gaps.oracle(slow, alone, exact=False) == "0s"


def test_scenarios_are_the_same_each_time_and_of_all_kinds() -> None:
    drawn = [gaps.draw(seed) for seed in gaps.JUDGED]
    assert drawn == [gaps.draw(seed) for seed in gaps.JUDGED]
    assert {s.rate for s in drawn} == set(gaps.RATES)
    assert {s.short for s in drawn} == {s.paused for s in drawn} == {True, False}
    assert {len(s.offline) for s in drawn} >= {1, 2, 4, 8}


@pytest.mark.native
def test_a_card_that_idles_comes_out_short_and_one_that_fills_gaps_does_not() -> None:
    scenario = next(s for s in map(gaps.draw, gaps.JUDGED) if s.short and s.rate == 20)
    found = {release: gaps.play(scenario, release) for release in (*FIXED, AUTO)}
    outcome = Outcome(scenario, gaps.play(scenario, AUTO, alone=True), found)
    assert outcome.use_ratio > 0.9 > found[RULE].use
    lazy = Outcome(scenario, outcome.alone, found | {AUTO: found[RULE]})
    verdicts = {f.name: f.verdict for f in gaps.judged([lazy])}
    assert verdicts["gaps_use_ratio"] == "short"


@pytest.mark.native
def test_a_captured_service_is_replayed_beside_a_training() -> None:
    scenario = gaps.replay(0, "decode", 0.05)
    auto, rule = gaps.play(scenario, AUTO), gaps.play(scenario, RULE)
    assert auto.use > 0.7 > 0.3 > rule.use
    outcome = Outcome(scenario, gaps.play(scenario, AUTO, alone=True), dict.fromkeys(FIXED, rule))
    lazy = Outcome(scenario, outcome.alone, {**outcome.runs, "0s": auto, AUTO: rule})
    use, p99 = gaps.of_captured([lazy])
    assert (use.verdict, p99.verdict) == ("short", "ok")
