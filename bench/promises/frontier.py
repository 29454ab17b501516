"""Card use against what online pays, over idle_release: a panel per load, through `qgpu simulate`,
and one of the real chain.

The line is the physical limit. How long a random gap still lasts is not known, so no choice of gaps
is better than another one. An offline tenant in a part of them makes online wait for the rest of
the kernel that runs and a change of context, and whoever is queued behind it, too; the card loses
that change and the one back. The star is all gaps. The ring is the oracle: the fixed value with the
most card use among those that keep online's limits (`gaps`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from bench.promises.gaps import AUTO, Played, Scenario, oracle, outcome
from bench.promises.harvest import P99_RATIO, Outcome

SWITCH_MS, CHAIN_SWITCH_MS = 0.1, 0.05  # of the engine's card, and of the simulated one
KERNEL_MS = 0.1  # online's
SEED = 1
COLORS = {
    "100 ms": "tab:blue",
    "50 ms": "tab:cyan",
    "20 ms": "tab:green",
    "5 ms": "tab:olive",
    "1 ms": "tab:orange",
    "0 ms": "tab:purple",
    AUTO: "tab:red",
}


@dataclass(frozen=True)
class Load:
    """A service with random requests, and the length of its neighbour's kernels."""

    rate: int
    kernels: int
    other_ms: float

    @property
    def title(self) -> str:
        request = self.kernels * KERNEL_MS
        return f"{self.rate}/s of {request:g} ms, offline {self.other_ms:g} ms"

    @property
    def scenario(self) -> Scenario:
        service: dict[str, Any] = {
            "name": "s",
            "class": "online",
            "share": 20,
            "kernel": f"{KERNEL_MS * 1000:g}us",
            "load": {"per_second": self.rate, "kernels": self.kernels},
        }
        kernel = f"{self.other_ms * 1000:g}us"
        other = {"name": "o", "class": "offline", "share": 50, "kernel": kernel}
        return Scenario(SEED, self.rate, True, False, (service,), (other,))


CHAIN = Load(20, 50, 0.2)  # as in `release`
LOADS = (Load(5, 50, 0.2), CHAIN, Load(100, 50, 0.2), Load(200, 20, 0.5))


@dataclass(frozen=True)
class Frontier:
    """A load in all its runs."""

    load: Load
    alone: Played
    runs: Mapping[str, Played]

    @property
    def oracle(self) -> str:
        return oracle(self.runs, self.alone, exact=True)


def limit(load: Load, alone_use: float, switch_ms: float) -> tuple[float, float]:
    """What each request of online pays on average in ms, and card use, where offline has all gaps.

    Only a request that finds no other one at work changes contexts, but it delays those behind it.
    """
    starts = load.rate * (1 - alone_use)
    return load.other_ms / 2 + switch_ms, 1 - 2 * switch_ms / 1000 * starts


def measure(load: Load) -> Frontier:
    """All runs of a load, with the same arrivals."""
    found = outcome(load.scenario)
    return Frontier(load, found.alone, found.runs)


def style(name: str) -> dict[str, Any]:
    """The mark of an idle_release."""
    key = "0 ms" if name == "0s" else name.replace("ms", " ms").replace("  ", " ")
    return {"color": COLORS[key], "marker": "D" if key == AUTO else "o", "label": key}


def _limit(axes: Any, alone: tuple[float, float], all_gaps: tuple[float, float]) -> None:
    """From online alone to offline in all gaps."""
    pays, use = zip(alone, all_gaps, strict=True)
    axes.plot(pays, [100 * part for part in use], color="black", linestyle="--", linewidth=1)
    label, where = "physical limit", (pays[1], 100 * use[1])
    axes.plot(*where, color="black", marker="*", markersize=11, linestyle="--", label=label)


def _oracle(axes: Any, pays: float, use: float) -> None:
    ring = {"marker": "o", "markerfacecolor": "none", "markersize": 13, "linestyle": ""}
    axes.plot(pays, 100 * use, color="black", label="best fixed value", **ring)


def draw_load(axes: Any, found: Frontier) -> None:
    """A panel: a point for each idle_release."""
    pays = {name: run.mean_ms - found.alone.mean_ms for name, run in found.runs.items()}
    for name, run in found.runs.items():
        axes.plot(pays[name], 100 * run.use, linestyle="", **style(name))
    _limit(axes, (0.0, found.alone.use), limit(found.load, found.alone.use, SWITCH_MS))
    _oracle(axes, pays[found.oracle], found.runs[found.oracle].use)
    axes.set(title=f"engine: {found.load.title}", xlabel="online's mean above alone (ms)")


def draw_chain(axes: Any, outcomes: Mapping[str, Outcome]) -> None:
    """The panel of the real chain: online's mean and p99, joined."""
    for name, o in outcomes.items():
        axes.plot([o.mean_ratio, o.p99_ratio], [100 * o.card_use] * 2, **style(name))
    alone_ms = fmean(o.alone_ms for o in outcomes.values())
    alone_use = CHAIN.rate * CHAIN.kernels * KERNEL_MS / 1000
    pays, use = limit(CHAIN, alone_use, CHAIN_SWITCH_MS)
    _limit(axes, (1.0, alone_use), (1 + pays / alone_ms, use))
    kept = [o for name, o in outcomes.items() if name != AUTO and o.p99_ratio <= P99_RATIO]
    if kept:
        best = max(kept, key=lambda o: o.card_use)
        _oracle(axes, best.mean_ratio, best.card_use)
    axes.axvline(P99_RATIO, color="grey", linestyle=":", label="promise for p99")
    axes.set(title=f"chain: {CHAIN.title}", xlabel="online's mean and p99 over alone")


def _legend(axes: Any, panels: Sequence[Any]) -> None:
    """In a place of its own: what is drawn in any of the panels, the values in their order."""
    marks = {
        label: mark
        for panel in panels
        for mark, label in zip(*panel.get_legend_handles_labels(), strict=True)
    }
    order = [*(value for value in COLORS if value in marks), *(m for m in marks if m not in COLORS)]
    axes.axis("off")
    axes.legend(
        [marks[each] for each in order], order, loc="center", title="idle_release (simulated)"
    )


def draw(outcomes: Mapping[str, Outcome], path: Path) -> bool:
    """Write the plot of both; False when matplotlib is not there."""
    try:
        import matplotlib
    except ImportError:
        return False
    matplotlib.use("svg")
    matplotlib.rcParams |= {"svg.hashsalt": "qgpu", "svg.fonttype": "none", "font.size": 8.5}
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(2, 3, figsize=(10, 6.4), constrained_layout=True)
    chain, *engine, rest = panels.flat
    draw_chain(chain, outcomes)
    for axes, load in zip(engine, LOADS, strict=True):
        draw_load(axes, measure(load))
    for axes in (chain, *engine):
        axes.set(ylabel="card use (%)", ylim=(0, 105))
        axes.grid(alpha=0.3)
    _legend(rest, (chain, engine[0]))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)
    return True
