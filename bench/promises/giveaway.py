"""Measures which tenant gets the unused time of a quantum.

Two tenants share a card. One always has kernels. The other pauses between its own, is stopped, sits
in a driver call of 50 ms, or reports false work. The judge is the simulator's trace and the
arbiter's record of gate words: how long after its last kernel its neighbour's gate opens, and how
much of the unused time the neighbour got.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from bench.harness.figures import Figure
from bench.harness.machine import calmest
from bench.harness.node import Rig, wait_for
from bench.harness.scene import Actor, Scene, endless, kernels, play, rig
from simulator.judge import evaluate as ev
from simulator.judge.gatetrace import Gate
from simulator.sim import SimError

ODD, NEIGHBOUR = 401, 402
SWITCH_US = 50
GIVE_AWAY_US, STALLED_RATIO = 1000, 0.95
LEAST_PAUSE_US = 1000  # us: a pause of this length or more is given away
CALL_US = 50_000
LATE_LAUNCH = f"delay call=cuLaunchKernel us={CALL_US} times=1"
Act = Callable[[Rig, int, threading.Event], None]


def pauses(*args: str) -> tuple[str, ...]:
    """Kernels of 100 us with other work between them."""
    return (*kernels(100), *args)


@dataclass(frozen=True)
class Case:
    """What the odd tenant does, and what is done to it."""

    args: Sequence[str]
    act: Act | None = None
    preload: str = ""


def every(
    seconds: float,
    what: Callable[[Rig, int], None],
    after: Callable[[Rig, int], None] | None = None,
    first: float | None = None,
) -> Act:
    """Do something to the odd tenant again and again, and something else half of the time later."""

    def act(node: Rig, pid: int, over: threading.Event) -> None:
        wait = seconds / 2 if first is None else first
        while not over.wait(wait):
            wait = seconds / 2
            what(node, pid)
            late = over.wait(seconds / 2)
            if after:
                after(node, pid)
            if late:
                return

    return act


def sent(number: int) -> Callable[[Rig, int], None]:
    """Send it a signal."""
    return lambda node, pid: os.kill(pid, number)


def fault(text: str) -> Callable[[Rig, int], None]:
    """Make the simulated driver misbehave towards it."""

    def order(node: Rig, pid: int) -> None:
        node.fault(f"{text} pid={pid}")

    return order


PAUSES: dict[str, Case] = {
    "2 ms of CPU after each": Case(pauses("--gap", "0.002")),
    "3 each 5 ms, not waited for": Case(
        pauses("--gap", "0.005", "--no-sync-each=1000000", "--kernels-per-request", "3")
    ),
    "100, then 3 ms": Case(pauses("--gap", "0.003", "--kernels-per-request", "100")),
}
STALLS: dict[str, Case] = {
    "stopped": Case(endless(200), every(0.6, sent(signal.SIGSTOP), sent(signal.SIGCONT))),
    "launch of 50 ms": Case(endless(200), every(0.3, fault(LATE_LAUNCH))),
    "each call 50 ms": Case(
        endless(200), every(60, fault(f"delay call=* us={CALL_US}"), first=1.0)
    ),
    "busy by its own word": Case(pauses("--gap", "60"), preload="poser.so"),
}
# Its pauses are too short to be given away, so its quanta are half empty and no tenant gets that
# time.
CONTROL = Case(pauses("--gap", "0.0002"))
SECONDS, FEW_SECONDS = 4.0, 3.0
QUICK = ("2 ms of CPU after each", "stopped")


def closed_at(events: Sequence[Gate], t: int) -> bool:
    """Whether the gate of these events (in order of time) was closed then."""
    at = bisect_right([g.t_ns for g in events], t)
    return at > 0 and bool(events[at - 1].flags & ev.CLOSED)


def give_away_us(scene: Scene) -> list[float]:
    """us from the end of the odd tenant's last kernel, in its own quantum, to the opening of its
    neighbour's gate.
    """
    own, other = (sorted(scene.gates_of(job), key=lambda g: g.t_ns) for job in (ODD, NEIGHBOUR))
    opened = [g.t_ns for g in other if not g.flags & ev.CLOSED]
    found = []
    for end, following in pauses_of(scene.of(ODD)):
        until = min(following, scene.end)
        if end < scene.start or until - end < LEAST_PAUSE_US * 1000:
            continue
        if closed_at(other, end) and not closed_at(own, end):
            at = bisect_right(opened, end)
            found.append((min(opened[at] if at < len(opened) else until, until) - end) / 1000)
    return found


def pauses_of(spans: Sequence[Any]) -> Iterator[tuple[int, int]]:
    """End of all that was submitted, and the next submission."""
    end = 0
    for s in sorted(spans, key=lambda s: s.t_submit):
        if end and s.t_submit > end:
            yield end, s.t_submit
        end = max(end, s.t_end)


@dataclass(frozen=True)
class Outcome:
    """Part of the unused time that the neighbour got, and delays of giving away."""

    ratio: float
    delays: Sequence[float]


def measure(case: Case, seconds: float) -> Outcome:
    """One run."""
    actors = [
        Actor(ODD, "offline", 50, case.args, preload=case.preload),
        Actor(NEIGHBOUR, "offline", 50, endless(200)),
    ]
    over = threading.Event()
    with rig(sim_options=("--switch-us", str(SWITCH_US))) as node:
        helper = threading.Thread(target=_intervene, args=(node, case.act, over))
        helper.start()
        try:
            scene = play(node, actors, seconds)
        finally:
            over.set()
            helper.join()
    odd, other = (scene.served[job].within(scene.start, scene.end) for job in (ODD, NEIGHBOUR))
    return Outcome(other / (scene.end - scene.start - odd), give_away_us(scene))


def _intervene(node: Rig, act: Act | None, over: threading.Event) -> None:
    log = node.directory / f"job{ODD}.log"
    if act is None:
        return
    with contextlib.suppress(TimeoutError, ProcessLookupError, SimError):  # it ended meanwhile
        wait_for(
            "the odd tenant",
            lambda: over.is_set() or (log.exists() and "pid" in log.read_text()),
            60,
        )
        if not over.is_set():
            act(node, json.loads(log.read_text().splitlines()[0])["pid"], over)


def worst_p99(found: Mapping[str, Outcome], **rest: Any) -> Figure:
    """The worst p99 of giving away; a case without a pause in its own quantum does not count."""
    p99 = {name: ev.percentile(o.delays, 99) for name, o in found.items() if o.delays}
    worst = max(p99, key=lambda name: p99[name])
    all_delays = [us for o in found.values() for us in o.delays]
    note = (
        f"(worst at {worst}; p50 of all {ev.percentile(all_delays, 50):.0f} us, max"
        f" {max(all_delays):.0f} us)"
    )
    return Figure(
        "give_away_us_p99",
        p99[worst],
        "us",
        GIVE_AWAY_US,
        "<=",
        len(all_delays),
        note,
        detail=p99,
        **rest,
    )


def least_ratio(name: str, found: Mapping[str, Outcome], target: float | None) -> Figure:
    """The least part of the time that the odd tenant left unused, and its neighbour got."""
    ratios = {k: o.ratio for k, o in found.items()}
    worst = min(ratios, key=lambda k: ratios[k])
    note = f"(worst at {worst}; " + ", ".join(f"{k}: {v:.3f}" for k, v in ratios.items()) + ")"
    return Figure(name, ratios[worst], "", target, ">=", len(ratios), note, detail=ratios)


def figures(quick: bool) -> Iterator[Figure]:
    """Pauses, stalls, and a control."""
    seconds = FEW_SECONDS if quick else SECONDS

    def runs(cases: Mapping[str, Case]) -> dict[str, Outcome]:
        chosen = {n: c for n, c in cases.items() if not quick or n in QUICK}
        return {n: calmest(partial(measure, c, seconds)) for n, c in chosen.items()}

    paused = runs(PAUSES)
    yield worst_p99(paused)
    yield least_ratio("paused_neighbour_ratio", paused, None)
    yield least_ratio("stalled_neighbour_ratio", runs(STALLS), STALLED_RATIO)
    control = measure(CONTROL, seconds)
    yield Figure(
        "control_short_pauses_neighbour_ratio",
        control.ratio,
        "",
        STALLED_RATIO,
        ">=",
        1,
        control=True,
    )
