"""What each way of injection adds to the start of a task: from slurmstepd's child to the end of
/bin/true.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from bench.harness.figures import Figure
from bench.harness.node import BUILD
from enforcer.wire.abi import pack_grant
from gres.config.site import Injection
from gres.grant.store import Grant, GrantCard

TARGET_MS = 5.0
STARTS, FEW_STARTS = 150, 40  # of each way
GIB = 1 << 30
WAYS: dict[str, Injection] = {"mount": "mount", "preload": "preload"}
BARE = "bare"


def _grant(run_dir: Path, way: Injection) -> None:
    """The grant of job 1, whose tasks get the shim in that way."""
    card = GrantCard("GPU-00000000-0000-0000-0000-000000000001", 0, 0, 30, 12 * GIB, 80 * GIB)
    grant = Grant(
        job_id=1,
        uid=os.getuid(),
        gid=os.getgid(),
        node="rig",
        state="active",
        job_class="offline",
        created_ns=1,
        cards=(card,),
        run_dir=str(run_dir),
        driver_path=str(BUILD / "sim/libcuda.so.1"),
        shim_path=str(BUILD / "shim/libcuda.so.1"),
    )
    (run_dir / "grants").mkdir(mode=0o755, parents=True)
    file = run_dir / "grants/1.grant"
    file.write_bytes(pack_grant(grant, way))
    file.chmod(0o644)


@dataclass
class Starts:
    """Milliseconds of the starts, by way; `bare` is a job without grant."""

    places: dict[str, Path]
    told: dict[str, list[float]] = field(default_factory=dict)

    def once(self) -> None:
        """One start in each way, one right after the other."""
        for way, place in self.places.items():
            stage = [
                str(BUILD / "test/spank_stage"),
                str(BUILD / "lib/qgpu_spank.so"),
                "remote",
                "1",
            ]
            command = [*stage, str(os.getuid()), f"run_dir={place}", "--", "/bin/true"]
            began = time.perf_counter()
            subprocess.run(command, env={"PATH": "/usr/bin:/bin"}, check=True)
            self.told.setdefault(way, []).append((time.perf_counter() - began) * 1000)

    def figure(self, way: str) -> Figure:
        """The median of the differences to the bare start beside it."""
        bare = self.told[BARE]
        extra = [with_it - without for with_it, without in zip(self.told[way], bare, strict=True)]
        noise = statistics.median(abs(a - b) for a, b in pairwise(bare))
        spread = (
            f"(a bare start takes {statistics.median(bare):.1f} ms, and the next one {noise:.2f} ms"
            " more or less)"
        )
        target = TARGET_MS if way == "mount" else None
        name = f"task_start_ms_{way}"
        return Figure(
            name, statistics.median(extra), "ms", target, "<=", len(extra), spread, simulated=False
        )


def figures(quick: bool) -> Iterator[Figure]:
    """Medians over many task starts."""
    with tempfile.TemporaryDirectory(prefix="qgpu-bench-", dir="/var/tmp") as work:
        places = {way: Path(work) / way for way in (BARE, *WAYS)}
        places[BARE].mkdir(mode=0o755)
        for way, injection in WAYS.items():
            places[way].mkdir(mode=0o755)
            _grant(places[way], injection)
        starts = Starts(places)
        for _ in range(FEW_STARTS if quick else STARTS):
            starts.once()
    yield from (starts.figure(way) for way in WAYS)
