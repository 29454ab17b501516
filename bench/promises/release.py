"""What idle_release costs and buys: offline's harvest and online's p99 over idle_release from 0 to
100 ms.

A plot, not a promise. Needs matplotlib; without it the figures are still printed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from bench.harness.figures import Figure
from bench.harness.node import BUILD
from bench.harness.patterns import PATTERNS
from bench.promises.harvest import Outcome, measure

RELEASES_MS = (0, 5, 10, 20, 50, 100)
CHOSEN = ("Poisson 20/s", "Poisson 100/s")  # requests enough for a p99 in ten seconds
PLOT = BUILD / "idle-release.svg"


def draw(found: Mapping[str, Sequence[Outcome]], releases: Sequence[int], path: Path) -> bool:
    """Write the plot; False when matplotlib is not there."""
    try:
        import matplotlib
    except ImportError:
        return False
    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "qgpu"
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 4), constrained_layout=True)
    for name, outcomes in found.items():
        left.plot(releases, [100 * o.offline_share for o in outcomes], marker="o", label=name)
        right.plot(releases, [o.p99_ratio for o in outcomes], marker="o", label=name)
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
    right.axhline(1.05, color="grey", linestyle=":", label="promise")
    for axes in (left, right):
        axes.grid(alpha=0.3)
        axes.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)
    return True


def figures(quick: bool) -> Iterator[Figure]:
    """One line per pattern and idle_release, and the plot in build/idle-release.svg."""
    releases, chosen = ((0, 20, 100), CHOSEN[:1]) if quick else (RELEASES_MS, CHOSEN)
    seconds = 4.0 if quick else 10.0
    found = {name: [measure(PATTERNS[name], seconds, ms) for ms in releases] for name in chosen}
    drawn = draw(found, releases, PLOT)
    for name, outcomes in found.items():
        ratios = ", ".join(
            f"{ms} ms {o.p99_ratio:.2f}" for ms, o in zip(releases, outcomes, strict=True)
        )
        used = ", ".join(
            f"{ms} ms {100 * o.offline_share:.0f}" for ms, o in zip(releases, outcomes, strict=True)
        )
        detail = {
            f"offline_percent_{ms}": 100 * o.offline_share
            for ms, o in zip(releases, outcomes, strict=True)
        }
        detail |= {f"p99_ratio_{ms}": o.p99_ratio for ms, o in zip(releases, outcomes, strict=True)}
        note = (
            f"(offline % of the card: {used}; p99 ratio:"
            f" {ratios}{f'; {PLOT.name}' if drawn else '; no matplotlib'})"
        )
        value = 100 * outcomes[-1].offline_share
        yield Figure(
            f"release_{name.replace(' ', '_')}",
            value,
            "%",
            None,
            ">=",
            len(releases),
            note,
            detail=detail,
        )
