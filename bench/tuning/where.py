"""`python -m bench.tuning.where`: where the card's time goes while tenants share it. For tuning;
promises nothing.

Prints how long the card was idle inside turns and between them, split at the moment the next gate
opened, and with --timeline every gate change and every kernel of a stretch.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import pairwise

import click

from bench.harness.machine import kept_awake
from bench.harness.scene import Actor, Scene, endless, play, rig
from bench.promises.shares import KERNELS, MIXES, POLICIES, judge
from simulator.judge import evaluate as ev


def openings(scene: Scene) -> dict[int, list[int]]:
    """When each job's gate went from closed to open."""
    found: dict[int, list[int]] = {job: [] for job in scene.pids}
    closed = dict.fromkeys(scene.pids, False)
    for gate in sorted(scene.gates, key=lambda g: g.t_ns):
        now_closed = bool(gate.flags & ev.CLOSED)
        if closed[gate.job_id] and not now_closed:
            found[gate.job_id].append(gate.t_ns)
        closed[gate.job_id] = now_closed
    return found


def idle_parts(scene: Scene) -> dict[str, list[int]]:
    """Nanoseconds of each idle stretch of the card, by its cause, and
    the length of each quantum.
    """
    owner = {pid: job for job, pids in scene.pids.items() for pid in pids}
    opened = openings(scene)
    parts: dict[str, list[int]] = {
        name: []
        for name in (
            "gap inside a turn",
            "last end to next opening",
            "opening to first kernel",
            "turn",
        )
    }
    inside = [s for s in scene.spans if s.t_end > scene.start and s.t_start < scene.end]
    began = inside[0].t_start if inside else 0
    for before, after in pairwise(inside):
        if before.pid == after.pid:
            parts["gap inside a turn"].append(after.t_start - before.t_end)
            continue
        parts["turn"].append(before.t_end - began)
        began = after.t_start
        times = opened[owner[after.pid]]
        at = bisect_right(times, after.t_start) - 1
        if at >= 0 and times[at] > before.t_start:
            parts["last end to next opening"].append(times[at] - before.t_end)
            parts["opening to first kernel"].append(after.t_start - times[at])
    return parts


def timeline(scene: Scene, low_ms: float, high_ms: float) -> Iterator[str]:
    """Gates and pieces between two times, in ms from the first counted moment."""
    owner = {pid: job for job, pids in scene.pids.items() for pid in pids}
    rows = [(g.t_ns, f"gate {g.job_id} {g.flags:#x}") for g in scene.gates]
    for s in scene.spans:
        name = f"{owner[s.pid]} #{s.seq}"
        rows += [(s.t_submit, f"    submitted {name}"), (s.t_start, f"    starts {name}")]
        rows += [(s.t_end, f"    ends {name}" if s.last else f"    stops {name}")]
    rows = sorted(set(rows))
    low, high = (scene.start + int(ms * ev.NS_PER_MS) for ms in (low_ms, high_ms))
    for t, text in rows[bisect_left(rows, (low, "")) : bisect_right(rows, (high, "~"))]:
        yield f"{(t - scene.start) / ev.NS_PER_MS:10.3f} {text}"


def line(name: str, values: Sequence[int], wall: int) -> str:
    """One part as text."""
    if not values:
        return f"{name:26} none"
    p50, p90 = (ev.percentile(values, percent) / 1000 for percent in (50, 90))
    return (
        f"{name:26} n={len(values):<6} p50 {p50:9.1f}  p90 {p90:9.1f}  max"
        f" {max(values) / 1000:9.1f} us  {100 * sum(values) / wall:6.2f} % of the time"
    )


@click.command()
@click.option("--policy", type=click.Choice(POLICIES), default="burst-share", show_default=True)
@click.option("--shares", type=click.Choice(sorted(MIXES)), default="30/70", show_default=True)
@click.option("--kernels", type=click.Choice(sorted(KERNELS)), default="1 ms", show_default=True)
@click.option("--seconds", type=float, default=4.0, show_default=True)
@click.option(
    "--timeline",
    "stretch",
    type=float,
    nargs=2,
    help="From and to, in ms: print all that happened.",
)
def main(
    policy: str, shares: str, kernels: str, seconds: float, stretch: tuple[float, float] | None
) -> None:
    """Run tenants that always have work on one simulated card and print where its time went."""
    actors = [
        Actor(200 + i, "offline", s, endless(*KERNELS[kernels]))
        for i, s in enumerate(MIXES[shares])
    ]
    with kept_awake(), rig(settings={"policy_offline": policy}) as node:
        scene = play(node, actors, seconds)
    found = judge(scene, {a.job_id: a.share for a in actors}, policy, max(KERNELS[kernels]))
    price = found.price
    click.echo(
        f"error {found.total:.2f} points, worst second {found.worst_1s:.2f};"
        f" {price.switches_per_s:.0f} changes/s, {price.lost_percent:.2f} % idle, of it"
        f" {price.switch_percent:.2f} for changes of context"
    )
    for name, values in idle_parts(scene).items():
        click.echo(line(name, values, scene.end - scene.start))
    if stretch:
        for text in timeline(scene, *stretch):
            click.echo(text)


if __name__ == "__main__":
    main()
