"""What the daemons cost: CPU time of arbiter and qgpud on a full node, from the scheduler's account in /proc.

8 cards with 16 tenants each. The tenants are not programs but one light process that registers for every grant and
moves the words of the pages as shims do (bench/tenants/light_tenants.c): the daemons see 128 tenants that all have
work, or none. Half of each card's tenants are offline; with online at work offline never gets a turn, so "busy" is
measured with 16 offline tenants per card, who all take turns, the dearer case. Both daemons run as their services do,
so without the gate trace.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from bench.daemons import cpu_percent, start_qgpud
from bench.figures import Figure
from bench.rig import BUILD, Rig

CARDS, TENANTS = 8, 16


def daemon_cpu(mode: str, rounds: int, seconds: float) -> tuple[list[float], list[float]]:
    """Percent of one core of arbiter and of qgpud, in each round, while 128 tenants are `busy` or `idle`."""
    with (
        tempfile.TemporaryDirectory(prefix="qgpu-bench-") as work,
        Rig(Path(work), cards=CARDS, traced=False) as rig,
    ):
        jobs = range(1000, 1000 + CARDS * TENANTS)
        for job in jobs:
            rig.grant(job, "offline", 5, mem_mib=1024, card=(job - 1000) // TENANTS)
        qgpud = start_qgpud(rig)
        argv: list[str | Path] = [BUILD / "test/light-tenants", rig.run_dir, mode, *map(str, jobs)]
        tenants = rig.spawn(argv, None, stdin=-1)
        assert tenants.stdout is not None
        if tenants.stdout.readline() != "ready\n":
            raise RuntimeError(f"light-tenants failed: {tenants.communicate()[1]}")
        time.sleep(2)
        told = [cpu_percent([rig.arbiter.pid, qgpud.pid], seconds) for _ in range(rounds)]
        return [t[0] for t in told], [t[1] for t in told]


def figures(quick: bool) -> Iterator[Figure]:
    """Both states of the node."""
    rounds, seconds = (2, 2.0) if quick else (5, 4.0)
    for mode, target in (("busy", 10.0), ("idle", 0.5)):
        arbiter, qgpud = daemon_cpu(mode, rounds, seconds)
        both = [a + q for a, q in zip(arbiter, qgpud, strict=True)]
        spread = (
            f"(arbiter {statistics.median(arbiter):.2f}, qgpud {statistics.median(qgpud):.2f}; "
            f"max {max(both):.2f}; {CARDS} cards x {TENANTS} light tenants)"
        )
        yield Figure(f"daemon_cpu_percent_{mode}", statistics.median(both), "%", target, "<=", rounds, spread)
