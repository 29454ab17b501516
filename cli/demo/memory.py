"""The last act: memory of an offline job is taken back for an online one, and returns.

It has a cluster of its own, in which offline memory is reclaimable.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass

from rich.console import Console

from cli.demo import measure
from cli.demo.jobs import Cluster, Job, wait_for
from cli.demo.promises import Promises
from cli.demo.story import KERNEL
from enforcer.nvml.driver import PynvmlNvml

GIB = 1 << 30
AWAY_GIB, HERE_GIB, CARD_GIB = 60, 50, 78  # the card cannot hold both
STARTS_S = 10  # from sbatch to the online job's first work
# --pattern is memory with known contents, which the program compares at its end.
TRAINING = (*KERNEL, "--no-sync-each", "--pattern", f"{AWAY_GIB}G", "--json")
SERVING = (*KERNEL, "--pattern", f"{HERE_GIB - 2}G", "--length", "3", "--json")


@dataclass
class MemoryStory:
    """One card, and two jobs that do not fit on it together."""

    cluster: Cluster
    promises: Promises
    console: Console

    def play(self) -> None:
        """Submit both, and look at the card meanwhile."""
        self.console.print(
            f"\n[bold]8. An offline job of {AWAY_GIB} GiB leaves a card of {CARD_GIB} GiB for an"
            f" online one of {HERE_GIB}[/]",
            highlight=False,
        )
        train = self._submit("pretrain", "bob", "offline", AWAY_GIB + 4, TRAINING)
        self.cluster.wait_logged(train, "the start", lambda: train.pid is not None)
        before = self._used()
        began = time.monotonic()
        serve = self._submit("answer", "alice", "online", HERE_GIB, SERVING)
        self.cluster.wait_logged(serve, "the start", lambda: serve.pid is not None)
        took = time.monotonic() - began
        self._check_start(before, took)
        self.cluster.wait_end(serve)
        back = time.monotonic_ns()
        self._check_serving(serve)
        node = self.cluster.sandbox.node(self.cluster.sandbox.node_names[0])
        wait_for(
            "the offline job's return",
            lambda: measure.ran_after(node, train, back),
            60,
            node.log("qgpud"),
        )
        self._finish(train)

    def _submit(self, name: str, user: str, qos: str, gib: int, work: tuple[str, ...]) -> Job:
        job = self.cluster.submit(
            user, name, qos, f"qgpu:50,vram:{gib}G", work, ["-t", "5", "--mem=1G"]
        )
        self.cluster.wait_state(job, ["RUNNING"], 60)
        return job

    def _used(self) -> int:
        """Bytes in use on the card, by NVML."""
        sandbox = self.cluster.sandbox
        os.environ["QGPU_SIM_DIR"] = str(sandbox.node(sandbox.node_names[0]).sim_dir)
        nvml = PynvmlNvml(str(sandbox.layout.opt / "sim/libnvidia-ml.so.1"))
        try:
            return nvml.load(nvml.cards()[0].uuid).mem_used or 0
        finally:
            nvml.close()

    def _check_start(self, before: int, took: float) -> None:
        used = f"{before / GIB:.0f} GiB were in use"
        self.promises.check("the offline job holds its memory", before >= AWAY_GIB * GIB, used)
        self.promises.check(
            f"the online job starts within {STARTS_S} s, its memory free (simulated)",
            took <= STARTS_S,
            f"{took:.1f} s from sbatch to its first request",
        )

    def _check_serving(self, serve: Job) -> None:
        told = json.loads(serve.out.read_text().strip().split("\n")[-1])
        right = told["errors"] == 0 and told["pattern"]["wrong"] == 0
        self.promises.check("it works on, and no allocation fails", right, f"{told['pattern']}")

    def _finish(self, train: Job) -> None:
        """End the offline job; it compares its memory and says how much of it changed."""
        self.cluster.sandbox.run(["scancel", "--signal=TERM", "--full", str(train.id)])
        self.cluster.wait_end(train)
        told = json.loads(train.out.read_text().strip().split("\n")[-1])
        self.promises.check(
            "the offline job goes on, its memory the same bit for bit",
            told["pattern"]["wrong"] == 0 and told["errors"] == 0,
            f"{told['pattern']['pages']} pages compared, {told['requests']} requests done",
        )
        report = self.cluster.sandbox.run(["qgpu", "report", str(train.id)])
        self.console.print(report.stdout, highlight=False, markup=False, soft_wrap=True)
