"""The act of small requests: card use and online's latency with idle_release of 100ms, and auto."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from cli.demo import measure
from cli.demo.jobs import Cluster, Job, wait_for
from cli.demo.promises import Promises
from simulator.judge import evaluate as ev

KERNEL = ("--kernel-us", "200", "--iters", "200000")
SERVING = (*KERNEL, "--kernels-per-request", "10", "--poisson", "20", "--log-requests")
TRAINING = (*KERNEL, "--kernels-per-request", "5", "--no-sync-each")
REQUESTS = 80  # with each value: four seconds
LONGEST_S = 60  # of the two programs, which are ended before
TIMES, DELAY_US = 2, 1000  # more use with auto at least; online_delay


@dataclass(frozen=True)
class Phase:
    """What was seen with one value."""

    release: str
    use: float
    median_us: float
    p95_us: float


@dataclass
class ReleaseStory:
    """One card, a service with 20 requests of 2 ms a second, and an offline job without rest."""

    cluster: Cluster
    promises: Promises
    console: Console

    def play(self) -> None:
        """Look at the card with 100ms, type what is recommended, and look again."""
        self.console.print(
            "\n[bold]7. Online has 20 requests of 2 ms a second: idle_release 100ms, and auto[/]",
            highlight=False,
        )
        train, serve = self._start("batch", "bob", TRAINING), self._start("api", "alice", SERVING)
        grants = self.cluster.grants()
        node, card = grants[train.id].node, grants[train.id].cards[0]
        same = card.uuid == grants[serve.id].cards[0].uuid
        self.promises.check("both are on one card", same, f"{node}, card {card.index}")
        spans = [self._requests(serve)]
        words = ["qgpu", "card", "set", str(card.index), "idle_release=auto", "--node", node]
        self.console.print(f"  # {' '.join(words)}", highlight=False)
        self.cluster.sandbox.run(words)
        spans.append(self._requests(serve))
        self.cluster.cancel(train, serve)
        for job in (train, serve):
            self.cluster.wait_end(job)
        found = [
            self._phase(release, node, (train, serve), *span)
            for release, span in zip(("100ms", "auto"), spans, strict=True)
        ]
        self._show(*found)
        self._check_report(train)

    def _start(self, name: str, user: str, work: tuple[str, ...]) -> Job:
        qos = "online" if user == "alice" else "offline"
        options = ["-t", "2", "-w", self.cluster.sandbox.node_names[0]]
        work = (*work, "--length", str(LONGEST_S))
        job = self.cluster.submit(user, name, qos, "qgpu:50,vram:4G", work, options)
        self.cluster.wait_state(job, ["RUNNING"])
        self.cluster.wait_logged(job, "its process id", lambda: job.pid is not None)
        return job

    def _requests(self, serve: Job) -> tuple[int, int]:
        """Begin and end of some requests."""
        begin, before = time.monotonic_ns(), len(serve.logged())
        wait_for(
            f"{REQUESTS} requests",
            lambda: len(serve.logged()) >= before + REQUESTS,
            LONGEST_S / 2,
            serve.err,
        )
        return begin, time.monotonic_ns()

    def _phase(self, release: str, node: str, jobs: tuple[Job, Job], begin: int, end: int) -> Phase:
        paths = self.cluster.sandbox.node(node)
        use = sum(measure.busy_fraction(paths, job, begin, end) for job in jobs)
        seen = [
            int(str(entry["latency_ns"])) / 1000
            for entry in jobs[1].logged()
            if "latency_ns" in entry and begin <= int(str(entry["due_ns"])) < end
        ]
        return Phase(release, use, statistics.median(seen), ev.percentile(seen, 95))

    def _show(self, fixed: Phase, auto: Phase) -> None:
        table = Table("idle_release", "card use", "online: median", "p95", box=None)
        for one in (fixed, auto):
            times = (f"{value / 1000:.2f} ms" for value in (one.median_us, one.p95_us))
            table.add_row(one.release, f"{100 * one.use:.0f} %", *times)
        self.console.print(table)
        check = self.promises.check
        check(
            f"with auto the card is in use {TIMES} times as long (simulated)",
            auto.use >= TIMES * fixed.use,
            f"{100 * fixed.use:.0f} % and {100 * auto.use:.0f} % of the time",
        )
        more = auto.median_us - fixed.median_us
        check(
            "online's median request takes at most online_delay (1 ms) more (simulated)",
            more <= DELAY_US,
            f"{more:.0f} us more",
        )

    def _check_report(self, train: Job) -> None:
        said = self.cluster.sandbox.run(["qgpu", "report", str(train.id)]).stdout
        told = next((text for text in said.split("\n") if " was idle " in text), "")
        self.promises.check("the report says what 100ms cost", bool(told), told or said)
