"""How the gain of equal tenants is judged."""

from __future__ import annotations

import pytest

from bench.promises import gain
from bench.promises.gain import POLICIES, RECORDED, Outcome, Played


def outcome(row: str, use: float, plain: float | None = None, count: int = 2) -> Outcome:
    """Equal tenants of this card use under both policies; plain slices as recorded."""
    equal = Played([use / count] * count)
    slices = RECORDED[row][gain.COUNTS.index(count)].plain if plain is None else plain
    return Outcome(row, count, 0.5, dict.fromkeys(POLICIES, equal), Played([slices / 2] * 2))


def test_gain_is_the_sum_of_speeds_and_parts_may_be_apart() -> None:
    played = Played([0.4, 0.35])
    assert played.gain(alone=0.5) == pytest.approx(1.5)
    assert played.apart == pytest.approx(5.0)


def test_the_better_simple_way_is_the_yardstick() -> None:
    taking_turns, slices = outcome("20us/20us", 0.25), outcome("1ms/1ms", 0.43)
    assert taking_turns.ratio == pytest.approx(0.25 / RECORDED["20us/20us"][0].exclusive)
    assert slices.ratio == pytest.approx(0.5, rel=0.01)


def test_the_policy_with_less_use_counts() -> None:
    runs = {POLICIES[0]: Played([0.4, 0.4]), POLICIES[1]: Played([0.1, 0.2])}
    mixed = Outcome("1ms/1ms", 2, 0.5, runs, Played([0.4, 0.4]))
    assert mixed.worst.use == pytest.approx(0.3)
    assert gain.of_row(mixed).detail["apart_points"] == pytest.approx(10.0)


def test_controls_are_short_and_a_table_of_another_model_is_noticed() -> None:
    good = [outcome(row, 0.9, count=n) for row in RECORDED for n in gain.COUNTS]
    verdicts = {f.name: f.verdict for f in gain.judged(good)}
    assert verdicts["gain_plain_control"] == "short, as a control must be"
    assert verdicts["gain_exclusive_control"] == "short, as a control must be"
    assert verdicts["gain_model"] == "ok" == verdicts["gain_use_1ms"]
    other = [*good, outcome("1ms/1ms", 0.9, plain=0.7, count=4)]
    assert {f.name: f.verdict for f in gain.judged(other)}["gain_model"].startswith("BLIND")


@pytest.mark.native
def test_plain_slices_of_the_engine_are_those_of_the_table() -> None:
    row = gain.PLAIN_FAILS
    plain = gain.play(row, 2, isolation="none")
    assert plain.use == pytest.approx(RECORDED[row][0].plain, abs=gain.STALE)
