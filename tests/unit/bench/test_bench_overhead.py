"""The cost of qgpu for a program alone on its card: its state, and the figure's text."""

from __future__ import annotations

import pytest

from bench.costs import overhead
from bench.harness.calibration import CALL
from bench.harness.figures import doubt_of


def told(value: float, unit: float = CALL.reference_ns) -> dict[str, float]:
    names = (*overhead.TARGETS, *(f"launch_overhead_ns_{state}" for state in overhead.STATES))
    return dict.fromkeys(names, value) | {f"{name}_unit": unit for name in names}


def test_the_promise_is_judged_alone_on_the_card_and_other_states_are_reported() -> None:
    figures = {f.name: f for f in overhead.launch_figures([told(9.0), told(12.0), told(15.0)])}
    alone = figures["launch_overhead_calls"]
    assert alone.value == pytest.approx(12 / CALL.reference_ns) and alone.verdict == "short"
    assert alone.detail["reference_ns"] == pytest.approx(12)
    assert figures["launch_overhead_calls_8t"].target == pytest.approx(20 / CALL.reference_ns)
    assert figures["launch_overhead_calls_8t"].verdict == "ok"
    assert "alone on the card" in alone.spread
    for state in ("window_275us", "window_4000us", "kernels_100us", "isolation_none"):
        figure = figures[f"launch_overhead_calls_{state}"]
        assert figure.verdict == "reported" and not figure.simulated
        assert "the stub's card is always done" in figure.spread


def test_a_slow_machine_is_slow_for_the_unit_too() -> None:
    """15.3 ns where a call takes 2.25 times as long as on the reference machine are 6.8 there."""
    slow = next(overhead.launch_figures([told(15.3, 2.25 * CALL.reference_ns)]))
    assert slow.verdict == "ok" and slow.detail["reference_ns"] == pytest.approx(6.8)
    assert slow.detail["here_ns"] == pytest.approx(15.3)
    assert next(overhead.launch_figures([told(15.3)])).verdict == "short"


def test_the_load_that_loses_most_is_the_figure() -> None:
    found = {
        "long": [overhead.Pair(100, 100), overhead.Pair(102, 100), overhead.Pair(101, 101)],
        "short": [overhead.Pair(101, 100), overhead.Pair(101, 100), overhead.Pair(101, 90)],
    }
    figure = overhead.solo_judged(found)
    assert (figure.value, figure.verdict, figure.runs) == (pytest.approx(1.01), "short", 3)
    assert figure.spread.startswith("(worst at short; long: 1.0000 +-0.0")
    assert "(noise 0.0148, 3 pairs)" in figure.spread
    assert figure.detail["short, noise"] == 0


def test_a_median_is_in_doubt_by_the_spread_of_its_pairs_and_their_number() -> None:
    calm = [1 + i % 3 / 1000 for i in range(11)]
    noisy = [1 + 20 * (i % 3) / 1000 for i in range(11)]
    assert 0 < doubt_of(calm) < doubt_of(noisy)
    assert doubt_of(noisy * 4) == pytest.approx(doubt_of(noisy) / 2)


def test_loads_differ_in_length_waiting_and_kind_of_submission() -> None:
    loads = overhead.SOLO_LOADS
    assert len({" ".join(load) for load in loads.values()}) == len(loads) == 3
    assert sum("--graph" in load for load in loads.values()) == 1
    assert {load[1] for load in loads.values()} == {"20", "5"}
