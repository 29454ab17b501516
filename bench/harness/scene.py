"""Plays several jobs on simulated cards for a while, and reads the trace about them."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.harness.machine import calmest
from bench.harness.node import BUILD, Rig
from gres.config.site import JobClass
from gres.grant.store import Grant
from simulator.judge import evaluate as ev
from simulator.judge import shares as sh
from simulator.judge.gatetrace import Gate
from simulator.sim import Interval, Kind

LOAD_S, LOAD_EACH_S = 0.6, 0.05  # all programs have opened the card before the first one launches
START_S = 0.5  # from the first launch to the first counted moment
MARGIN_S = 1.0  # how much longer each program runs than is counted
COMPUTE = (
    Kind.KERNEL,
    Kind.DTOD,
    Kind.MEMSET,
)  # what shares are of; copies to the host have engines of their own
ENDLESS = ("--no-sync-each=1000000", "--kernels-per-request", "5")


def kernels(*lengths_us: float) -> tuple[str, ...]:
    """Options of the workload for kernels of this length, or of one of these lengths each."""
    first = lengths_us[0]
    mix = ("--kernel-mix", ",".join(f"{us:g}" for us in lengths_us)) if len(lengths_us) > 1 else ()
    return ("--kernel-us", f"{first:g}", "--iters", str(round(first * 1000)), *mix)


def endless(*lengths_us: float) -> tuple[str, ...]:
    """Options for kernels back to back, never waiting for one."""
    return (*kernels(*lengths_us), *ENDLESS)


@dataclass(frozen=True)
class Actor:
    """One job: its grant and its program.

    `share` is what it is judged by, `granted` what it gets. Its program begins `after_s` seconds
    after the others and works `for_s` (0: to the end of the run).
    """

    job_id: int
    job_class: JobClass
    share: int
    args: Sequence[str]
    granted: int = 0
    card: int = 0
    shim: bool = True
    preload: str = ""
    procs: int = 1
    after_s: float = 0.0
    for_s: float = 0.0


@dataclass(frozen=True)
class Scene:
    """What is left of a run. `start` and `end` bound the time in which every endless program had
    work.
    """

    spans: Sequence[Interval]
    gates: Sequence[Gate]
    pids: Mapping[int, Sequence[int]]
    told: Mapping[int, Sequence[dict[str, Any]]]
    logged: Mapping[int, Sequence[dict[str, Any]]]
    start: int
    end: int
    served: Mapping[int, sh.Service] = field(repr=False)
    copies: Sequence[Interval] = ()  # to and from the host, and between cards

    def of(self, *jobs: int) -> list[Interval]:
        """What these jobs executed, in order of time."""
        wanted = {pid for job in jobs for pid in self.pids[job]}
        return [span for span in self.spans if span.pid in wanted]

    def gates_of(self, *jobs: int) -> list[Gate]:
        """Changes of the gates of these jobs."""
        return [gate for gate in self.gates if gate.job_id in jobs]

    def bursts(self, job: int, gap_ns: int) -> list[ev.Burst]:
        """Stretches of this job's work, beginning with its own calls."""
        calls = [entry["start_ns"] for entry in self.logged[job] if "burst" in entry]
        return ev.with_calls(ev.bursts(self.of(job), gap_ns), calls, gap_ns)

    def whole_bursts(self, job: int, gap_ns: int) -> list[ev.Burst]:
        """Those that lie inside the counted time."""
        return [b for b in self.bursts(job, gap_ns) if b.call >= self.start and b.end <= self.end]

    def latencies_us(self, job: int) -> list[float]:
        """Latency of each request of this job that was due in the counted time."""
        return [
            line["latency_ns"] / 1000
            for line in self.logged[job]
            if "latency_ns" in line and self.start <= line["due_ns"] < self.end
        ]


@contextmanager
def rig(**options: Any) -> Iterator[Rig]:
    """A rig in a directory that goes away."""
    with (
        tempfile.TemporaryDirectory(prefix="qgpu-bench-") as work,
        Rig(Path(work), **options) as node,
    ):
        yield node


def admit(node: Rig, actors: Iterable[Actor]) -> dict[int, Grant]:
    """The grants of all actors, made where they do not exist yet."""
    return {
        actor.job_id: node.grants.get(actor.job_id)
        or node.grant(
            actor.job_id,
            actor.job_class,
            actor.granted or actor.share,
            mem_mib=2048,
            card=actor.card,
        )
        for actor in actors
    }


def _log(node: Rig, job: int) -> Path:
    return node.directory / f"job{job}.log"


def _start(node: Rig, actor: Actor, grant: Grant, begin: int, seconds: float) -> Any:
    env = {"CUDA_VISIBLE_DEVICES": node.uuids[actor.card]}
    if actor.preload:
        env["LD_PRELOAD"] = f"{node.shim} {BUILD / 'test' / actor.preload}"
    begin += int(actor.after_s * 1e9)
    length = actor.for_s or seconds + MARGIN_S - actor.after_s
    common = ("--length", f"{length}", "--procs", str(actor.procs), "--start-at", str(begin))
    log = ("--log", str(_log(node, actor.job_id)), "--log-requests")
    return node.workload(grant if actor.shim else None, *actor.args, *common, *log, env=env)


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def play(node: Rig, actors: Sequence[Actor], seconds: float) -> Scene:
    """Run all actors side by side so long that `seconds` can be counted.
    Their grants end with it.
    """
    grants = admit(node, actors)
    begin = time.monotonic_ns() + int((LOAD_S + LOAD_EACH_S * len(actors)) * 1e9)
    running = {a.job_id: _start(node, a, grants[a.job_id], begin, seconds) for a in actors}
    told = {job: node.summaries(process, seconds * 3 + 60) for job, process in running.items()}
    for job in running:
        node.link.revoke(job)
        node.grants.pop(job)
    due = {a.job_id: begin + int(a.after_s * 1e9) for a in actors}
    late = max(s["start_ns"] - due[job] for job, summaries in told.items() for s in summaries)
    if late > int(START_S * 1e9):
        raise RuntimeError(
            f"a program began {late / 1e9:.2f} s late; the machine is too busy to measure"
        )
    start = begin + int(START_S * 1e9)
    pids = {job: [s["pid"] for s in summaries] for job, summaries in told.items()}
    everyone = {pid for own in pids.values() for pid in own}
    all_of_it = sorted(
        (span for span in node.trace() if span.pid in everyone), key=lambda span: span.t_start
    )
    spans = [span for span in all_of_it if span.kind in COMPUTE]
    copies = [span for span in all_of_it if span.kind not in COMPUTE]
    gates = [gate for gate in node.gates() if gate.job_id in pids]
    logged = {job: _lines(_log(node, job)) for job in pids}
    end = start + int(seconds * 1e9)
    return Scene(spans, gates, pids, told, logged, start, end, sh.services(spans, pids), copies)


def calm_play(actors: Sequence[Actor], seconds: float, **options: Any) -> Scene:
    """The same in a rig of its own; once more where the host took much
    from the machine meanwhile.
    """

    def once() -> Scene:
        with rig(**options) as node:
            return play(node, actors, seconds)

    return calmest(once)
