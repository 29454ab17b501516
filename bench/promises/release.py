"""What idle_release costs and buys: card use and online's slow-down over idle_release from 0 to 50
ms, and with `auto`.

What is promised for the default, 100 ms, holds for each value: online's p99. The plot (`frontier`)
needs matplotlib; without it the figures are still printed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from bench.harness.figures import Figure
from bench.harness.node import BUILD
from bench.harness.patterns import PATTERNS
from bench.promises.frontier import draw
from bench.promises.harvest import P99_RATIO, Outcome, measure

RELEASES_MS, FEW_MS = (0, 20, 50), (0,)  # `harvest` has 100
AUTO, DELAY_US = "auto", 1000
CARD_USE = 0.90  # of `auto`: offline's kernels are far shorter than online_delay
CHOSEN = "Poisson 20/s"  # requests enough for a p99 in ten seconds
SECONDS, FEW_SECONDS = 8.0, 4.0
PLOT = BUILD / "idle-release.svg"


def judged(outcomes: Mapping[str, Outcome], drawn: bool) -> Iterator[Figure]:
    """The worst p99 of all, and the card use of `auto`."""
    worst = max(outcomes, key=lambda name: outcomes[name].p99_ratio)
    each = ", ".join(
        f"{name}: p99 {o.p99_ratio:.2f}, mean {o.mean_ratio:.2f}, card use {100 * o.card_use:.0f} %"
        for name, o in outcomes.items()
    )
    note = f"(worst at {worst}; {CHOSEN}, {each}; {PLOT.name if drawn else 'no matplotlib'})"
    detail = {f"p99_ratio_{name}": o.p99_ratio for name, o in outcomes.items()} | {
        f"card_use_{name}": o.card_use for name, o in outcomes.items()
    }
    ratio, n = outcomes[worst].p99_ratio, len(outcomes)
    yield Figure("online_p99_ratio_any_release", ratio, "", P99_RATIO, "<=", n, note, detail=detail)
    use = outcomes[AUTO].card_use
    yield Figure("card_use_auto", use, "", CARD_USE, ">=", 1, f"({CHOSEN}, idle_release: auto)")


def figures(quick: bool) -> Iterator[Figure]:
    """Figures over all values and `auto`, and the plot in build/idle-release.svg."""
    releases, seconds = (FEW_MS, FEW_SECONDS) if quick else (RELEASES_MS, SECONDS)
    found = {f"{ms} ms": measure(PATTERNS[CHOSEN], seconds, ms) for ms in releases}
    found[AUTO] = measure(PATTERNS[CHOSEN], seconds, online_delay_us=DELAY_US)
    yield from judged(found, draw(found, PLOT))
