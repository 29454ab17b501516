"""Measures the daemons' CPU time, arbiter and qgpud on a full node, by /proc.

8 cards with 16 tenants each, all real programs under the real shim, each with a context, memory and
kernels on its simulated card. So qgpud's NVML samples and audits find 128 processes, and the
arbiter their pages and doorbells. Metrics are read once per round of 15 s, a usual scrape interval
of Prometheus. Two states: all work (offline, so that all get quanta: beside online work offline
gets none, which is cheaper); all worked before and are idle. Both daemons run as their services do,
so without the gate trace. What they used is judged in timer wake-ups of this machine, measured in
the same round. CPU time of tenants and simulator is reported and not counted. All files are in
memory: qgpud would wait for a slow disk, and a daemon that waits looks cheap.
"""

from __future__ import annotations

import contextlib
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.harness.calibration import PERCENT, WAKE_UP, Sample, calibrated, in_units
from bench.harness.daemons import cpu_percent, free_port, scraped, start_qgpud, wakeups
from bench.harness.figures import Figure
from bench.harness.node import MEMORY_DIR, Rig, wait_for
from bench.harness.scene import endless
from enforcer.nvml.port import CardUsage

CARDS, TENANTS, SHARE = 8, 16, 5
KERNEL_US = (
    1000  # the shortest that the processors of a small machine can play on eight cards at once
)
MEMORY, MEMORY_MIB, CAP_MIB = "256M", 256, 1024
SCRAPE_S = 15.0
SETTLE_S = 3.0  # behind it the rounds begin: so a scrape falls into the midst of each
LOAD_S = 4.0  # until then all programs have opened their card
LISTED_S = 20.0  # seconds until NVML lists them all, at most
WORKED_S = 1.0  # what an idle tenant did before
TARGETS = {"busy": 10.0, "idle": 0.5}  # percent of a core of the reference machine
ROUNDS = {"busy": 2, "idle": 1}

WORK = endless(KERNEL_US)
LOADS = {"busy": WORK, "idle": (*WORK, "--busy", f"{WORKED_S}", "--idle", "100000")}


@dataclass(frozen=True)
class Round:
    """Percent of one core that each used in one round, and how often the arbiter's threads went to
    sleep per second.
    """

    arbiter: float
    qgpud: float
    simulator: float
    tenants: float
    wakeups: float
    wake_ns: float  # what a timer wake-up took meanwhile

    @property
    def daemons(self) -> float:
        """What is promised about."""
        return self.arbiter + self.qgpud


def admit(rig: Rig) -> dict[int, int]:
    """A grant for each tenant; its card, by job."""
    who = {1000 + card * TENANTS + place: card for card in range(CARDS) for place in range(TENANTS)}
    for job, card in who.items():
        rig.grant(job, "offline", SHARE, mem_mib=CAP_MIB, card=card)
    return who


@contextlib.contextmanager
def at_work(rig: Rig, who: Mapping[int, int], mode: str) -> Iterator[list[int]]:
    """All programs, which start to work together; yields their pids.

    They are killed: finishing their launched work one after the other would take minutes.
    """
    common = (
        "--memory",
        MEMORY,
        "--length",
        "100000",
        "--start-at",
        str(time.monotonic_ns() + int(LOAD_S * 1e9)),
    )
    programs = [
        rig.workload(
            rig.grants[job], *LOADS[mode], *common, env={"CUDA_VISIBLE_DEVICES": rig.uuids[card]}
        )
        for job, card in who.items()
    ]
    try:
        yield [program.pid for program in programs]
    finally:
        for program in programs:
            program.kill()


def full(usage: CardUsage, pids: set[int], mode: str) -> bool:
    """Whether NVML lists all of them with their memory and utilisation (idle: none)."""
    listed = {p.pid for p in usage.processes if p.mem_used and p.mem_used >= MEMORY_MIB << 20}
    told = usage.busy or {}
    idle = not any(told.get(pid) for pid in pids)
    return listed == pids and (pids <= told.keys() if mode == "busy" else idle)


def check(rig: Rig, pids: Sequence[int], mode: str) -> None:
    """Raise TimeoutError unless the cards are as qgpud must find them: an empty card is no
    measurement.
    """
    with contextlib.closing(rig.nvml()) as nvml:
        for card, uuid in enumerate(rig.uuids):
            own = set(pids[card * TENANTS : (card + 1) * TENANTS])
            wait_for(
                f"{TENANTS} tenants in NVML's list of card {card}",
                lambda uuid=uuid, own=own: full(nvml.usage(uuid), own, mode),  # type: ignore[misc]
                LISTED_S,
            )


def launches(rig: Rig) -> dict[int, int]:
    """Of each job so far."""
    return {tenant.job_id: tenant.launches for tenant in rig.link.stats()}


def check_work(before: Mapping[int, int], after: Mapping[int, int], mode: str) -> None:
    """RuntimeError where a tenant never worked, did not go on (busy), or did (idle)."""
    wrong = [
        job
        for job, count in before.items()
        if not count or (after[job] == count) == (mode == "busy")
    ]
    if wrong:
        raise RuntimeError(f"tenants that should be {mode} were not: jobs {wrong}")


def one_round(rig: Rig, qgpud: int, pids: Sequence[int], seconds: float) -> Round:
    """CPU time of all processes in the next seconds."""
    before, began = wakeups(rig.arbiter.pid), time.monotonic()
    with calibrated() as calibration:
        used = cpu_percent([rig.arbiter.pid, qgpud, rig.card_process.pid, *pids], seconds)
        woke = (wakeups(rig.arbiter.pid) - before) / (time.monotonic() - began)
    return Round(used[0], used[1], used[2], sum(used[3:]), woke, calibration.ns(WAKE_UP))


def daemon_cpu(mode: str, rounds: int) -> list[Round]:
    """What the daemons of a full node in this state use, in each round."""
    with (
        tempfile.TemporaryDirectory(prefix="qgpu-bench-", dir=MEMORY_DIR) as work,
        Rig(Path(work), cards=CARDS, traced=False) as rig,
    ):
        who, port = admit(rig), free_port()
        qgpud = start_qgpud(rig, metrics_port=port)
        with at_work(rig, who, mode) as pids:
            time.sleep(LOAD_S + WORKED_S + 2)  # NVML reports the last second
            check(rig, pids, mode)
            with scraped(port, SCRAPE_S) as samples:
                time.sleep(SETTLE_S)
                before = launches(rig)
                found = [one_round(rig, qgpud.pid, pids, SCRAPE_S) for _ in range(rounds)]
                check_work(before, launches(rig), mode)
                if not samples():
                    raise RuntimeError("qgpud's metrics were never read")
        return found


def line(mode: str, found: Sequence[Round]) -> Figure:
    """What the daemons used in timer wake-ups a second, and beside it the others' part."""
    detail = {
        name: statistics.median(getattr(one, name) for one in found)
        for name in ("arbiter", "qgpud", "wakeups", "simulator", "tenants")
    }
    note = (
        f"arbiter {detail['arbiter']:.2f} % in {detail['wakeups']:.0f} wake-ups/s, qgpud"
        f" {detail['qgpud']:.2f}; {CARDS} cards x {TENANTS} programs; not counted: they themselves"
        f" {detail['tenants']:.0f}, simulator {detail['simulator']:.0f}"
    )
    return in_units(
        f"daemon_cpu_wakes_{mode}",
        [Sample(one.daemons / PERCENT.scale, one.wake_ns) for one in found],
        WAKE_UP,
        TARGETS[mode] / PERCENT.scale,
        note,
        PERCENT,
        detail,
        simulated=True,
    )


def figures(quick: bool) -> Iterator[Figure]:
    """Both states of the node."""
    for mode in TARGETS:
        yield line(mode, daemon_cpu(mode, 1 if quick else ROUNDS[mode]))
