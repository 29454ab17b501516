"""The promises over a sweep of what the simulator assumes: none may hang on one guess.

Each point changes one or two of: the hardware's time slice, the cost of a change of context, the cost of a launch, the
length of offline kernels, and whether the card stands still for 50 ms now and then. The queue is 1024 commands deep
everywhere. The worst point is reported with its name.
"""

from __future__ import annotations

import statistics
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

from bench.figures import Figure
from bench.preempt import beside, offline_jobs
from bench.rig import Rig
from bench.scene import Actor, endless, play, rig
from bench.shares import TARGET, judge
from enforcer import evaluate as ev

STALL_US, STALL_EACH_S = 50_000, 0.9


@dataclass(frozen=True)
class Point:
    """One set of assumptions."""

    slice_us: int = 1000
    switch_us: int = 50
    launch_us: float = 3
    kernel_us: int = 200
    stalls: bool = False

    @property
    def name(self) -> str:
        stalls = ", stalls of 50 ms" if self.stalls else ""
        return (
            f"slice {self.slice_us} us, switch {self.switch_us} us, launch {self.launch_us:g} us, "
            f"kernels {self.kernel_us} us{stalls}"
        )

    @property
    def options(self) -> tuple[str, ...]:
        """Options of the simulator."""
        words = ("--slice-us", self.slice_us, "--switch-us", self.switch_us, "--launch-us", self.launch_us)
        return (*map(str, words), "--queue-depth", "1024")

    @property
    def company(self) -> Callable[[Rig], AbstractContextManager[object]] | None:
        """What happens to the card meanwhile."""
        return stalled if self.stalls else None


POINTS = (
    Point(),
    Point(slice_us=500, switch_us=20, launch_us=2),
    Point(slice_us=5000, switch_us=500, launch_us=6),
    Point(slice_us=500, switch_us=500),
    Point(slice_us=5000, switch_us=20),
    Point(kernel_us=20),
    Point(kernel_us=450, launch_us=6),
    Point(stalls=True),
)


@contextmanager
def stalled(node: Rig) -> Iterator[None]:
    """The card stands still for 50 ms about once a second."""
    stop = threading.Event()

    def stall() -> None:
        while not stop.wait(STALL_EACH_S):
            node.fault(f"stall us={STALL_US} card=0")

    thread = threading.Thread(target=stall)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def share_error(point: Point, shares: Sequence[int], seconds: float) -> float:
    """Share error in points of two offline tenants with kernels of 1 ms."""
    actors = [Actor(401 + i, "offline", share, endless(1000)) for i, share in enumerate(shares)]
    with rig(sim_options=point.options) as node:
        if point.stalls:
            with stalled(node):
                scene = play(node, actors, seconds)
        else:
            scene = play(node, actors, seconds)
    return judge(scene, {a.job_id: a.share for a in actors}, "burst-share", 1000).total


def _worst(
    name: str, values: dict[str, float], unit: str, target: float, runs: int, lowest: bool = False
) -> Figure:
    worst = (min if lowest else max)(values, key=lambda point: values[point])
    note = f"(at {worst})"
    return Figure(name, values[worst], unit, target, ">=" if lowest else "<=", runs, note, detail=values)


def figures(quick: bool) -> Iterator[Figure]:
    """The worst median over all points of each promise."""
    points, count, seconds = (POINTS[1:3], 5, 3.0) if quick else (POINTS, 12, 4.0)
    frees, closes, harvests, errors = {}, {}, {}, {}
    for point in points:
        run = beside(offline_jobs(1, point.kernel_us), count, point.company, sim_options=point.options)
        frees[point.name] = statistics.median(ev.card_free_us(run.online, run.offline))
        closes[point.name] = statistics.median(ev.gate_close_us(run.online, run.gates))
        harvests[point.name] = run.harvest
        errors[point.name] = share_error(point, (30, 70), seconds)
    runs = count * len(points)
    yield _worst("sweep_gate_close_us_worst", closes, "us", 200, runs)
    yield _worst("sweep_card_free_us_worst", frees, "us", 1000, runs)
    yield _worst("sweep_harvest_ratio_worst", harvests, "", 0.97, len(points), lowest=True)
    yield _worst("sweep_share_error_points_worst", errors, "points", TARGET, len(points))
