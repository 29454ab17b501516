"""Random worlds through the what-if engine: what the arbiter's decision gives to tenants for
which no constant was chosen.

Two families: everything is drawn (draw.py), or tenants are captured programs (replayed.py). Each
world is run three times: as it is, on the fluid card, and for its online tenants alone. Equal seeds
give equal figures, on any machine. Two sets of seeds are run: rules and constants may be chosen by
the first one; the second one is never looked at for that, and alone is judged.
"""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from bench.harness.figures import Figure
from bench.worlds import replayed
from bench.worlds.draw import SECONDS, without_offline, world
from bench.worlds.judge import Judged, Raw, judge, percentile
from simulator.whatif.simtrace import Trace
from simulator.whatif.simulate import run_program

COUNT, FEW = 200, 50
TUNING, JUDGING = 0, 100_000  # the first seed of either set
AT_ONCE = 2


@dataclass(frozen=True)
class Kind:
    """One figure of each world: its field of Judged, and what p95 of the worlds shall be."""

    field: str
    unit: str
    target: float
    sense: Literal["<=", ">="] = "<="


KINDS = (
    Kind("share_10s", "points", 1.5),
    Kind("share_1s", "points", 5.0),
    Kind("fixed_10s", "points", 2.0),
    Kind("above_n", "points", 0.0),
    Kind("freed_p99_us", "us", 1000.0),
    Kind("p99_ratio", "", 1.08),
    Kind("harvest", "", 0.95, ">="),
)


def divided(trace: Trace) -> Raw:
    """A world on the fluid card."""
    return run_program(trace, "--fluid", columns=SECONDS, jobs=1)


def of_world(trace: Trace, ideal: Raw, program: Path | None = None) -> Judged:
    """The figures of a world, by this qgpu-simulate or the one of the build."""
    online = without_offline(trace)

    def outcome(trace: Trace) -> Raw:
        return run_program(trace, "--requests", columns=SECONDS, jobs=1, program=program)

    return judge(trace, outcome(trace), ideal, outcome(online) if online.tenants else None)


@functools.cache
def fluid(seed: int) -> Raw:
    """The world on the fluid card: no decision is in it, so all programs agree on it."""
    return divided(world(seed))


def run(seed: int, program: Path | None = None) -> Judged:
    """The figures of the drawn world of a seed."""
    return of_world(world(seed), fluid(seed), program)


def replay(seed: int) -> Judged:
    """The figures of the world of captured programs of a seed."""
    trace = replayed.world(seed, judges=seed >= JUDGING)
    return of_world(trace, divided(trace))


# by what the names of their figures have before the kind
FAMILIES: dict[str, Callable[[int], Judged]] = {"": run, "programs_": replay}
# Each program leaves the card idle for moments. The fluid card fills them with others' kernels; who
# gives the card to one at a time cannot.
UNREACHABLE = {("programs_", "harvest")}


def of_seeds(seeds: Sequence[int], family: str = "") -> dict[int, Judged]:
    """The same of many."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return dict(zip(seeds, pool.map(FAMILIES[family], seeds), strict=True))


def worst_first(found: Mapping[int, Judged], kind: Kind) -> list[tuple[float, int]]:
    """Value and seed of each world that has such a figure, the worst one first."""
    pairs = [
        (value, seed)
        for seed, judged in found.items()
        if (value := getattr(judged, kind.field)) is not None
    ]
    return sorted(pairs, reverse=kind.sense == "<=")


def p95(found: Mapping[int, Judged], kind: Kind) -> float:
    """The value that 95 % of the worlds reach or do better."""
    values = [value for value, _ in worst_first(found, kind)]
    return percentile(values, 95) if kind.sense == "<=" else -percentile([-v for v in values], 95)


def figure(found: Mapping[int, Judged], kind: Kind, judged: bool, family: str) -> Figure:
    """p95 of the worlds is the figure; median and the worst three, with their seeds, are beside
    it.
    """
    ranked = worst_first(found, kind)
    values = [value for value, _ in ranked]
    worst = ", ".join(f"{value:.3g} (seed {seed})" for value, seed in ranked[:3])
    reachable = judged and (family, kind.field) not in UNREACHABLE
    return Figure(
        f"worlds_{family}{kind.field}_p95{'' if judged else '_tuning'}",
        p95(found, kind),
        kind.unit,
        kind.target if reachable else None,
        kind.sense,
        len(values),
        f"(median {statistics.median(values):.3g}, worst {worst})",
        detail={str(seed): value for value, seed in ranked},
    )


def figures(quick: bool) -> Iterator[Figure]:
    """p95 of each figure over the worlds of either set, of each family."""
    for family in FAMILIES:
        for first in (TUNING, JUDGING):
            found = of_seeds(range(first, first + (FEW if quick else COUNT)), family)
            for kind in KINDS:
                if worst_first(found, kind):
                    yield figure(found, kind, first == JUDGING, family)
