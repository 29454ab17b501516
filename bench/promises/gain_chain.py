"""The gain of equal offline tenants with shim, arbiter and simulated card.

The pause is a sleep, so with the time to wake up it is longer than its number. It is so in all runs
of a row, with qgpu and with plain time slices (gates stay open). In these rows plain slices are the
better simple way, so they alone are the yardstick.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bench.harness.figures import Figure
from bench.harness.scene import Actor, calm_play, kernels
from bench.promises.gain_engine import COUNTS, FULL_USE, TARGET, Played

ROWS_US, FEW_ROWS_US = (1000, 500, 200), (1000,)  # kernel, and pause after it
FULL_US = 1000
SECONDS = 1.5  # hundreds of kernels
FIRST_JOB = 501
CARD = ("--switch-us", "100")  # as in the engine


@dataclass(frozen=True)
class Outcome:
    """A row with so many tenants."""

    us: int
    count: int
    alone: float
    qgpu: Played
    plain: Played

    @property
    def ratio(self) -> float:
        return self.qgpu.use / self.plain.use


def play(us: int, count: int, governed: bool = True) -> Played:
    """So many programs, each with a kernel of this length and a pause as long."""
    args = (*kernels(us), "--gap", f"{us / 1e6:g}")
    share = 100 // max(COUNTS)
    actors = [Actor(FIRST_JOB + i, "offline", share, args) for i in range(count)]
    scene = calm_play(actors, SECONDS, governed=governed, sim_options=CARD)
    wall = scene.end - scene.start
    return Played([scene.served[a.job_id].within(scene.start, scene.end) / wall for a in actors])


def outcomes(rows_us: Sequence[int], counts: Sequence[int]) -> Iterator[Outcome]:
    """All rows, with each number of tenants."""
    for us in rows_us:
        alone = play(us, 1).use
        for count in counts:
            plain = play(us, count, governed=False)
            yield Outcome(us, count, alone, play(us, count), plain)


def of_row(o: Outcome) -> Figure:
    """Card use with qgpu over that with plain time slices."""
    gains = [played.gain(o.alone) for played in (o.qgpu, o.plain)]
    note = (
        f"(card use {o.qgpu.use:.3f}, gain {gains[0]:.2f}; one alone {o.alone:.3f}, plain slices"
        f" {o.plain.use:.3f}, gain {gains[1]:.2f}; parts {o.qgpu.apart:.1f} points apart)"
    )
    detail = {"use": o.qgpu.use, "plain": o.plain.use, "alone": o.alone, "apart": o.qgpu.apart}
    name = f"gain_chain_{o.us}us_{o.count}"
    return Figure(name, o.ratio, "", TARGET, ">=", 1, note, detail=detail)


def judged(found: Sequence[Outcome]) -> Iterator[Figure]:
    """Each row, and the use of a card that two could fill."""
    yield from map(of_row, found)
    full = next(o for o in found if (o.us, o.count) == (FULL_US, 2))
    yield Figure("gain_chain_use_1ms", full.qgpu.use, "", FULL_USE, ">=", 1, "(two, 1 ms and 1 ms)")


def figures(quick: bool) -> Iterator[Figure]:
    """All rows; `quick`: two tenants of the first one."""
    rows, counts = (FEW_ROWS_US, COUNTS[:1]) if quick else (ROWS_US, COUNTS)
    yield from judged(list(outcomes(rows, counts)))
