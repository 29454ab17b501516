"""The cost of qgpu for a program alone on its card: its state, and the figure's text."""

from __future__ import annotations

import pytest

from bench.costs import overhead


def told(value: float) -> dict[str, float]:
    names = (
        *overhead.TARGETS,
        "launch_overhead_ns_8t_wall",
        *(f"launch_overhead_ns_{state}" for state in overhead.STATES),
    )
    return dict.fromkeys(names, value)


def test_the_promise_is_judged_alone_on_the_card_and_other_states_are_reported() -> None:
    figures = {f.name: f for f in overhead.launch_figures([told(9.0), told(12.0), told(15.0)])}
    assert (figures["launch_overhead_ns"].value, figures["launch_overhead_ns"].verdict) == (
        12.0,
        "short",
    )
    assert (
        figures["launch_overhead_ns_8t"].target == 20
        and figures["launch_overhead_ns_8t"].verdict == "ok"
    )
    assert "alone on the card" in figures["launch_overhead_ns"].spread
    for state in ("window_275us", "window_4000us", "kernels_100us", "isolation_none"):
        figure = figures[f"launch_overhead_ns_{state}"]
        assert figure.verdict == "reported" and not figure.simulated
        assert "the stub's card is always done" in figure.spread


def test_the_load_that_loses_most_is_the_figure() -> None:
    found = {
        "long": [overhead.Pair(100, 100), overhead.Pair(102, 100), overhead.Pair(101, 101)],
        "short": [overhead.Pair(101, 100), overhead.Pair(101, 100), overhead.Pair(101, 90)],
    }
    figure = overhead.solo_judged(found)
    assert (figure.value, figure.verdict, figure.runs) == (pytest.approx(1.01), "short", 3)
    assert figure.spread.startswith(
        "(worst at short; long: 1.0000 (1.0000 to 1.0200, noise 0.0148, 3 pairs)"
    )
    assert figure.detail["short, noise"] == 0


def test_a_median_is_in_doubt_by_the_spread_of_its_pairs_and_their_number() -> None:
    calm = [overhead.Pair(1000 + i % 3, 1000) for i in range(11)]
    noisy = [overhead.Pair(1000 + 20 * (i % 3), 1000) for i in range(11)]
    assert 0 < overhead.doubt_of(calm) < overhead.SOLO_DOUBT < overhead.doubt_of(noisy)
    assert overhead.doubt_of(noisy * 4) == pytest.approx(overhead.doubt_of(noisy) / 2)


def test_loads_differ_in_length_waiting_and_kind_of_submission() -> None:
    loads = overhead.SOLO_LOADS
    assert len({" ".join(load) for load in loads.values()}) == len(loads) == 4
    assert sum("--graph" in load for load in loads.values()) == 1
    assert {load[1] for load in loads.values()} == {"200", "20", "5"}
