"""The preemption figures over a sweep of what the simulator assumes: a promise must not hang on one guess.

Each point changes the hardware's time slice, the cost of a context switch, or the length of offline kernels.
The worst point is reported with its name. The bound of card_free includes one offline kernel.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass

from bench.figures import Figure
from bench.preempt import beside
from enforcer import evaluate as ev


@dataclass(frozen=True)
class Point:
    """One set of assumptions."""

    slice_us: int
    switch_us: int
    kernel_us: int

    @property
    def name(self) -> str:
        return f"slice {self.slice_us} us, switch {self.switch_us} us, kernels {self.kernel_us} us"

    @property
    def options(self) -> tuple[str, ...]:
        """Options of the simulator."""
        return ("--slice-us", str(self.slice_us), "--switch-us", str(self.switch_us))


POINTS = (
    Point(500, 10, 200),
    Point(2000, 50, 200),
    Point(6000, 200, 200),
    Point(1000, 50, 20),
    Point(2000, 50, 450),
)


def figures(quick: bool) -> Iterator[Figure]:
    """The worst median over all points of card_free_us and gate_close_us."""
    episodes = 4 if quick else 15
    frees, closes = {}, {}
    for point in POINTS[:2] if quick else POINTS:
        run = beside(True, episodes, 0.15, 0.25, point.options, point.kernel_us)
        frees[point.name] = statistics.median(ev.card_free_us(run.online, run.offline))
        closes[point.name] = statistics.median(ev.gate_close_us(run.online, run.gates))
    for name, values, target in (
        ("sweep_card_free_us_worst", frees, 2000),
        ("sweep_gate_close_us_worst", closes, 1000),
    ):
        worst = max(values, key=lambda point: values[point])
        yield Figure(name, values[worst], "us", target, "<=", episodes * len(values), f"(at {worst})")
