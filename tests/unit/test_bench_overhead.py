"""What qgpu costs a program that is alone on its card: in which state, and how it is said."""

from __future__ import annotations

from bench import overhead


def told(value: float) -> dict[str, float]:
    names = (*overhead.TARGETS, *(f"launch_overhead_ns_{state}" for state in overhead.STATES))
    return dict.fromkeys(names, value)


def test_the_promise_is_judged_alone_on_the_card_and_other_states_are_reported() -> None:
    figures = {f.name: f for f in overhead.launch_figures([told(9.0), told(12.0), told(15.0)])}
    assert (figures["launch_overhead_ns"].value, figures["launch_overhead_ns"].verdict) == (12.0, "short")
    assert figures["launch_overhead_ns_8t"].target == 20 and figures["launch_overhead_ns_8t"].verdict == "ok"
    assert "alone on the card" in figures["launch_overhead_ns"].spread
    for state in ("window_400us", "window_4000us", "kernels_100us", "isolation_none"):
        figure = figures[f"launch_overhead_ns_{state}"]
        assert figure.verdict == "reported" and not figure.simulated
        assert "the stub's card is always done" in figure.spread
