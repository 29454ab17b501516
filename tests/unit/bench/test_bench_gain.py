"""How the gain of tenants on one card is judged."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from bench.costs import framework
from bench.harness.figures import NotRun
from bench.promises import gain_chain, gain_engine, gain_shares, gain_torch
from bench.promises.gain_engine import COUNTS, POLICIES, RECORDED, Outcome, Played

PROGRAM = """
import json, sys
for line in sys.stdin:
    print(json.dumps({"steps": 10, "seconds": 2 * float(line)}), flush=True)
"""


def outcome(row: str, use: float, plain: float | None = None, count: int = 2) -> Outcome:
    """Equal tenants of this card use under both policies; plain slices as recorded."""
    equal = Played([use / count] * count)
    slices = RECORDED[row][COUNTS.index(count)].plain if plain is None else plain
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
    assert gain_engine.of_row(mixed).detail["apart_points"] == pytest.approx(10.0)


def test_controls_are_short_and_a_table_of_another_model_is_noticed() -> None:
    good = [outcome(row, 0.9, count=n) for row in RECORDED for n in COUNTS]
    verdicts = {f.name: f.verdict for f in gain_engine.judged(good)}
    assert verdicts["gain_plain_control"] == "short, as a control must be"
    assert verdicts["gain_exclusive_control"] == "short, as a control must be"
    assert verdicts["gain_model"] == "ok" == verdicts["gain_use_1ms"]
    other = [*good, outcome("1ms/1ms", 0.9, plain=0.7, count=4)]
    assert {f.name: f.verdict for f in gain_engine.judged(other)}["gain_model"].startswith("BLIND")


def test_on_the_chain_plain_slices_are_the_yardstick() -> None:
    two = gain_chain.Outcome(1000, 2, 0.45, Played([0.2, 0.25]), Played([0.45, 0.45]))
    told = {f.name: f for f in gain_chain.judged([two])}
    assert told["gain_chain_1000us_2"].value == pytest.approx(0.5)
    assert "gain 1.00" in told["gain_chain_1000us_2"].spread
    assert told["gain_chain_use_1ms"].verdict == "short"


def test_worlds_are_the_same_each_time_and_fill_a_card() -> None:
    seeds = range(gain_shares.JUDGED, gain_shares.JUDGED + gain_shares.WORLDS)
    worlds = [gain_shares.world(seed) for seed in seeds]
    assert worlds == [gain_shares.world(seed) for seed in seeds]
    assert {len(world.tenants) for world in worlds} == {2, 3, 4, 5}
    for world in worlds:
        assert sum(map(gain_shares.alone, world.tenants)) >= gain_shares.LEAST_DEMAND
        assert all(10 <= tenant.share <= 60 for tenant in world.tenants)


def test_who_has_less_than_his_turns_would_give_is_below_the_floor() -> None:
    world = gain_shares.world(gain_shares.JUDGED)
    total, second = sum(t.share for t in world.tenants), 10**9
    floors = [t.share / total * gain_shares.alone(t) for t in world.tenants]

    def lacking(points: float, lost: float = 0.0) -> float:
        tenants = [{"busy_ns": (floor - points / 100) * second} for floor in floors]
        cards = [{"switch_lost_ns": lost * second}]
        raw = {"duration_ns": second, "cards": cards, "tenants": tenants}
        return gain_shares.below_floor(world, raw)

    assert lacking(-1) == 0
    assert lacking(3) == pytest.approx(3)
    assert lacking(3, lost=0.5) < 3


def test_two_programs_gain_by_their_steps_per_second() -> None:
    pair = gain_torch.PAIRS[0]
    qgpu, plain = gain_torch.Speeds(100, [60, 50]), gain_torch.Speeds(100, [95, 95])
    (figure,) = gain_torch.judged({pair: (qgpu, plain)})
    assert figure.value == pytest.approx(1.1)
    assert figure.verdict == "short"
    assert "plain slices 1.90" in figure.spread


def test_without_pytorch_a_sentence_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("QGPU_FRAMEWORKS", str(tmp_path))
    monkeypatch.setattr(framework, "PLACE", tmp_path)
    with pytest.raises(NotRun, match="PyTorch is not installed"):
        list(gain_torch.figures(quick=True))


@pytest.mark.native
def test_programs_are_asked_alone_and_then_together(tmp_path: Path) -> None:
    program = tmp_path / "steps.py"
    program.write_text(PROGRAM)
    told = gain_torch.measure([sys.executable, program], 0.1)
    assert told.alone == pytest.approx(50)
    assert told.gain == pytest.approx(2)


@pytest.mark.native
def test_plain_slices_of_the_engine_are_those_of_the_table() -> None:
    row = gain_engine.PLAIN_FAILS
    plain = gain_engine.play(row, 2, isolation="none")
    assert plain.use == pytest.approx(RECORDED[row][0].plain, abs=gain_engine.STALE)


@pytest.mark.native
def test_plain_slices_do_not_keep_shares() -> None:
    found = gain_shares.run(1001, gates=False)
    assert found.error_10s > 10 > gain_shares.run(1001).error_10s
