"""Measures the daemons' CPU time, arbiter and qgpud on a full node, by /proc.

8 cards with 16 tenants each, all real programs under the real shim, each with a context, memory and
kernels on its simulated card. So qgpud's NVML samples and audits find 128 processes, and the
arbiter their pages and doorbells. Metrics are read once per round of 15 s, a usual scrape interval
of Prometheus. Three states: all work (offline, so that all get quanta: beside online work offline
gets none, which is cheaper); all worked before and are idle; services that come and go beside
offline work. Both daemons run as their services do, so without the gate trace. CPU time of tenants
and simulator is reported and not counted. All files are in memory: qgpud would wait for a slow
disk, and a daemon that waits looks cheap.
"""

from __future__ import annotations

import contextlib
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.harness.daemons import cpu_percent, free_port, scraped, start_qgpud, wakeups
from bench.harness.figures import Figure
from bench.harness.node import MEMORY_DIR, Rig, wait_for
from bench.harness.scene import endless, kernels
from enforcer.nvml.port import CardUsage
from gres.config.site import JobClass

CARDS, TENANTS = 8, 16
ONLINE = 4  # of each card's tenants, where classes are mixed
KERNEL_US = (
    1000  # the shortest that the processors of a small machine can play on eight cards at once
)
MEMORY, MEMORY_MIB, CAP_MIB = "256M", 256, 1024
SCRAPE_S = 15.0
SETTLE_S = 3.0  # behind it the rounds begin: so a scrape falls into the midst of each
LOAD_S = 4.0  # until then all programs have opened their card
LISTED_S = 20.0  # seconds until NVML lists them all, at most
WORKED_S = 1.0  # what an idle tenant did before
TARGETS: Mapping[str, float | None] = {"busy": 10.0, "idle": 0.5, "mixed": None}

WORK = endless(KERNEL_US)
ONCE = (*WORK, "--busy", f"{WORKED_S}", "--idle", "100000")
SERVICE = (*kernels(100), "--kernels-per-request", "50", "--poisson", "1")


@dataclass(frozen=True)
class Part:
    """What one tenant is and does."""

    job_class: JobClass
    share: int
    args: Sequence[str]


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

    @property
    def daemons(self) -> float:
        """What is promised about."""
        return self.arbiter + self.qgpud


def parts(mode: str) -> list[Part]:
    """The tenants of each card."""
    if mode == "mixed":
        offline = [Part("offline", 5, WORK)] * (TENANTS - ONLINE)
        return [Part("online", 10, (*SERVICE, "--seed", str(n))) for n in range(ONLINE)] + offline
    return [Part("offline", 5, WORK if mode == "busy" else ONCE)] * TENANTS


def admit(rig: Rig, mode: str) -> dict[int, tuple[int, Part]]:
    """A grant for each tenant; its card and its load, by job."""
    who = {
        1000 + card * TENANTS + place: (card, part)
        for card in range(CARDS)
        for place, part in enumerate(parts(mode))
    }
    for job, (card, part) in who.items():
        rig.grant(job, part.job_class, part.share, mem_mib=CAP_MIB, card=card)
    return who


@contextlib.contextmanager
def at_work(rig: Rig, who: Mapping[int, tuple[int, Part]]) -> Iterator[list[int]]:
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
            rig.grants[job], *part.args, *common, env={"CUDA_VISIBLE_DEVICES": rig.uuids[card]}
        )
        for job, (card, part) in who.items()
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
    return listed == pids and (pids <= told.keys() if mode == "busy" else idle or mode != "idle")


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
        if not count
        or (mode == "busy" and after[job] == count)
        or (mode == "idle" and after[job] != count)
    ]
    if wrong:
        raise RuntimeError(f"tenants that should be {mode} were not: jobs {wrong}")


def one_round(rig: Rig, qgpud: int, pids: Sequence[int], seconds: float) -> Round:
    """CPU time of all processes in the next seconds."""
    before, began = wakeups(rig.arbiter.pid), time.monotonic()
    used = cpu_percent([rig.arbiter.pid, qgpud, rig.card_process.pid, *pids], seconds)
    woke = (wakeups(rig.arbiter.pid) - before) / (time.monotonic() - began)
    return Round(used[0], used[1], used[2], sum(used[3:]), woke)


def daemon_cpu(mode: str, rounds: int) -> list[Round]:
    """What the daemons of a full node in this state use, in each round."""
    with (
        tempfile.TemporaryDirectory(prefix="qgpu-bench-", dir=MEMORY_DIR) as work,
        Rig(Path(work), cards=CARDS, traced=False) as rig,
    ):
        who, port = admit(rig, mode), free_port()
        qgpud = start_qgpud(rig, metrics_port=port)
        with at_work(rig, who) as pids:
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
    """The daemons' part, and beside it the others'."""
    both = [one.daemons for one in found]
    detail = {
        name: statistics.median(getattr(one, name) for one in found)
        for name in ("arbiter", "qgpud", "wakeups", "simulator", "tenants")
    }
    note = (
        f"(arbiter {detail['arbiter']:.2f} in {detail['wakeups']:.0f} wake-ups/s, qgpud"
        f" {detail['qgpud']:.2f}; max {max(both):.2f}; {CARDS} cards x {TENANTS} programs; not"
        f" counted: they themselves {detail['tenants']:.0f}, simulator {detail['simulator']:.0f})"
    )
    name, target = f"daemon_cpu_percent_{mode}", TARGETS[mode]
    return Figure(name, statistics.median(both), "%", target, "<=", len(found), note, detail=detail)


def figures(quick: bool) -> Iterator[Figure]:
    """All states of the node."""
    for mode in TARGETS:
        yield line(mode, daemon_cpu(mode, 1 if quick else 3))
