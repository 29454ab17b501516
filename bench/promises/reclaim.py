"""How soon memory of an offline job is free for an online job that starts, on live Slurm.

A private cluster has one simulated card. The online job's Prolog waits until the offline job's
memory has left; qgpud's log has both moments. They are compared with the time that the bytes take
on the card's link.
"""

from __future__ import annotations

import os
import re
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.harness.figures import Figure, NotRun
from cli.sandbox import wait
from cli.sandbox.cluster import Sandbox
from cli.sandbox.errors import SandboxError
from cli.sandbox.options import SandboxOptions

SIZES, FEW = (8, 30, 60), (8,)  # GiB that the offline job holds
ROUNDS, FEW_ROUNDS = 3, 1
LINK = 50e9  # bytes a second: --copy-gbs of the simulator
WHOLE = 77  # GiB of the online job: no offline job of SIZES fits beside it
TARGET = 1.2
WAIT_S = 60
NAME = f"b{os.getpid() % 100_000}"


@dataclass(frozen=True)
class Moved:
    """One round: bytes that left, ns until they had left, and until the online job could start."""

    size: int
    leave_ms: int
    ready_ms: int

    @property
    def ratio(self) -> float:
        """Of the online job's wait to the bytes' time on the link."""
        return self.ready_ms / 1000 / (self.size / LINK)


def submitted(cluster: Sandbox, qos: str, gib: int, script: str) -> int:
    """A job of alice, its number."""
    words = ["sbatch", "--parsable", "--output=/dev/null", "--mem=500M", f"--qos={qos}"]
    words.append(f"--gres=qgpu:1,vram:{gib}G")
    done = cluster.run(words, user="alice", input=f"#!/bin/sh\n{script}\n")
    return int(done.stdout.strip().split(";")[0])


def logged(log: Path, pattern: str) -> re.Match[str]:
    """What qgpud wrote, once it did."""
    wait.until(
        lambda: re.search(pattern, log.read_text()) is not None, WAIT_S, f"'{pattern}' in {log}"
    )
    found = re.search(pattern, log.read_text())
    assert found is not None  # a log only grows
    return found


def moved(cluster: Sandbox, gib: int) -> Moved:
    """An offline job that holds so much leaves for an online one."""
    node = cluster.node(cluster.node_names[0])
    load = cluster.layout.home("alice") / "load.log"
    load.unlink(missing_ok=True)
    script = f"exec qgpu-workload --pattern {gib}G --log {load} --length 600 --gap 0.01"
    offline = submitted(cluster, "offline", gib + 1, script)
    wait.until(lambda: load.exists() and bool(load.read_text()), WAIT_S, "the offline job's start")
    online = submitted(cluster, "online", WHOLE, "true")
    log = node.log("qgpud")
    left = logged(log, rf"step=left job={offline} bytes=(\d+) ms=(\d+) to={online}\b")
    ready = logged(log, rf"step=ready job={online} ms=(\d+)\b")
    cluster.run(["scancel", str(offline), str(online)])
    empty = ["squeue", "-h", "-o", "%i"]
    wait.until(lambda: not cluster.run(empty).stdout.strip(), WAIT_S, "an empty queue")
    return Moved(int(left[1]), int(left[2]), int(ready[1]))


def figures(quick: bool) -> Iterator[Figure]:
    """The ratio by size; it is judged where the card's link takes most of the time."""
    if os.geteuid() != 0:
        raise NotRun("a private Slurm cluster needs root")
    cluster = Sandbox(SandboxOptions(NAME, nodes=1, cards=1, reclaimable=True))
    try:
        cluster.up()
        for gib in FEW if quick else SIZES:
            rounds = [moved(cluster, gib) for _ in range(FEW_ROUNDS if quick else ROUNDS)]
            yield figure(gib, rounds)
    except SandboxError as error:
        raise NotRun(str(error)) from None
    finally:
        cluster.down()


def figure(gib: int, rounds: list[Moved]) -> Figure:
    """Of one size."""
    ratios = [one.ratio for one in rounds]
    waits = ", ".join(f"{one.ready_ms}" for one in rounds)
    return Figure(
        f"reclaim_{gib}_gib_by_link",
        statistics.median(ratios),
        "",
        TARGET if gib > min(SIZES) else None,
        "<=",
        len(rounds),
        f"(waits {waits} ms for {rounds[0].size / 1e9:.1f} GB at {LINK / 1e9:.0f} GB/s)",
    )
