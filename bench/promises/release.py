"""What idle_release costs and buys: offline's harvest and online's p99 over idle_release from 0 to
100 ms.

What is promised for the default, 100 ms, holds for each value: online's p99. The plot needs
matplotlib; without it the figures are still printed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from bench.harness.figures import Figure
from bench.harness.node import BUILD
from bench.harness.patterns import PATTERNS
from bench.promises.harvest import P99_RATIO, Outcome, measure

RELEASES_MS, FEW_MS = (0, 20, 50), (0, 20)  # `harvest` has 100
CHOSEN = "Poisson 20/s"  # requests enough for a p99 in ten seconds
SECONDS, FEW_SECONDS = 8.0, 4.0
PLOT = BUILD / "idle-release.svg"


def draw(outcomes: Sequence[Outcome], releases: Sequence[int], path: Path) -> bool:
    """Write the plot; False when matplotlib is not there."""
    try:
        import matplotlib
    except ImportError:
        return False
    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "qgpu"
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 4), constrained_layout=True)
    left.plot(releases, [100 * o.offline_share for o in outcomes], marker="o", label=CHOSEN)
    right.plot(releases, [o.p99_ratio for o in outcomes], marker="o", label=CHOSEN)
    left.set(
        xlabel="idle_release (ms)",
        ylabel="card used by offline (%)",
        ylim=(0, 100),
        title="harvest (simulated)",
    )
    right.set(
        xlabel="idle_release (ms)",
        ylabel="p99 beside offline / alone",
        title="online's price (simulated)",
    )
    right.axhline(P99_RATIO, color="grey", linestyle=":", label="promise")
    for axes in (left, right):
        axes.grid(alpha=0.3)
        axes.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)
    return True


def judged(outcomes: Sequence[Outcome], releases: Sequence[int], drawn: bool) -> Figure:
    """The worst p99 of all, and what offline got beside each."""
    ratios = dict(zip(releases, (o.p99_ratio for o in outcomes), strict=True))
    worst = max(ratios, key=lambda ms: ratios[ms])
    each = ", ".join(
        f"{ms} ms {o.p99_ratio:.2f} and {100 * o.offline_share:.0f} %"
        for ms, o in zip(releases, outcomes, strict=True)
    )
    note = f"(worst at {worst} ms; p99 ratio and offline's part of the card, {CHOSEN}: {each}"
    detail = {f"p99_ratio_{ms}": ratio for ms, ratio in ratios.items()} | {
        f"offline_percent_{ms}": 100 * o.offline_share
        for ms, o in zip(releases, outcomes, strict=True)
    }
    return Figure(
        "online_p99_ratio_any_release",
        ratios[worst],
        "",
        P99_RATIO,
        "<=",
        len(releases),
        f"{note}; {PLOT.name if drawn else 'no matplotlib'})",
        detail=detail,
    )


def figures(quick: bool) -> Iterator[Figure]:
    """One figure over all values, and the plot in build/idle-release.svg."""
    releases, seconds = (FEW_MS, FEW_SECONDS) if quick else (RELEASES_MS, SECONDS)
    found = [measure(PATTERNS[CHOSEN], seconds, ms) for ms in releases]
    yield judged(found, releases, draw(found, releases, PLOT))
