"""Random schedules of grants, launches, allocations, frees, forks and kills against a model of the
ledger.

A job of up to four processes on one card. Each schedule is a handful of steps; after each the slots
must say what the model says, and after each kill (at a random moment, inside whatever the process
was just doing) the sum of the job must be that of the survivors. The processes live on from one
schedule to the next, so state piles up as in real jobs.

QGPU_SCHEDULES is the number of schedules: 10000, well under a minute. The gate of this model never
closes; test_real_schedules.py runs fewer with the real arbiter, grants that come and go, launches
and gates.
"""

from __future__ import annotations

import os
import random
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import shim_support as s

pytestmark = pytest.mark.native
GIB, MIB = s.GIB, s.MIB
SCHEDULES = int(os.environ.get("QGPU_SCHEDULES", "10000"))
CAP = 8 * GIB
SIZES = (1, 4096, MIB, 3 * MIB, 64 * MIB, 700 * MIB)
PROCESSES = 4
PLACES = 16  # things that one process holds at a time


class Slots(dict[int, int]):
    """Slots by pid; the lowest free one is given, as the arbiter does."""

    def setdefault(self, pid: int, default: int = 0) -> int:  # type: ignore[override]
        if pid not in self:
            self[pid] = next(n for n in range(128) if n not in self.values())
        return self[pid]


class Arbiter(s.FakeArbiter):
    """Clears the slots of the dead."""

    def start(self) -> None:
        super().start()
        self.slots = Slots()

    def died(self, pid: int) -> None:
        """What the arbiter does when a process is gone."""
        if pid in self.slots:
            self.card.clear(self.slots.pop(pid))

    def sum(self) -> tuple[int, int]:
        """(used, pending) of the job."""
        slots = self.slots.values()
        fields = ("mem_used", "mem_pending")
        used, pending = (sum(self.card.proc(f, slot) for slot in slots) for f in fields)
        return used, pending


@dataclass
class Worker:
    """A process of the job, and what the model says that it holds."""

    probe: s.Probe
    slot: int
    held: dict[int, tuple[str, int]] = field(default_factory=dict)
    launches: int = 0
    denied: int = 0
    peak: int = 0  # of the whole job, when this process allocated
    refused: int = 0

    @property
    def used(self) -> int:
        return sum(size for _, size in self.held.values())

    @property
    def pid(self) -> int:
        return self.probe.process.pid


FREES = {"alloc": "free", "managed": "free", "alloc_async": "free_async", "create": "release"}


class Model:
    """The job."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.directory = directory
        self.cap = CAP
        self.extra = 0
        self.arbiter = Arbiter(directory, [CAP])
        self.workers: list[Worker] = []
        self.kills = self.steps = self.refusals = 0

    def used(self) -> int:
        return sum(worker.used for worker in self.workers) + self.extra

    # ---- steps

    def join(self) -> None:
        """One more process."""
        fd = s.sealed("grant", s.grant_bytes(self.directory, [CAP]))
        probe = s.launch(self.directory, {"QGPU_GRANT_FD": str(fd)}, (fd,))
        os.close(fd)
        s.started(probe)
        assert probe.ask("stream 0") == 0
        s.until(lambda: probe.process.pid in self.arbiter.slots)
        self.workers.append(Worker(probe, self.arbiter.slots[probe.process.pid]))

    def allocate(self, worker: Worker) -> None:
        """Something of a random kind and size; the cap decides."""
        place = self.random.randrange(PLACES)
        if place in worker.held:
            self.free(worker, place)
            return
        kind, size = self.random.choice(list(FREES)), self.random.choice(SIZES)
        fits = self.used() + size <= self.cap
        result = worker.probe.ask(f"{kind} {place} {size} 0")
        assert result == (0 if fits else s.OUT_OF_MEMORY), (kind, size, self.used(), self.cap)
        if fits:
            worker.held[place] = (kind, size)
            worker.peak = max(worker.peak, self.used())
        else:
            worker.refused = max(worker.refused, self.used() + size)
            worker.denied += 1
            self.refusals += 1

    def free(self, worker: Worker, place: int) -> None:
        kind, _ = worker.held.pop(place)
        assert worker.probe.ask(f"{FREES[kind]} {place} 0") == 0

    def launch(self, worker: Worker) -> None:
        times = self.random.randrange(1, 20)
        assert worker.probe.ask(f"launch 0 0x10 {times}") == 0
        worker.launches += times

    def fork(self, worker: Worker) -> None:
        """A child with a CUDA of its own: its memory counts while it lives, and is gone with it."""
        size = self.random.choice(SIZES)
        before = set(self.arbiter.slots)
        fits = self.used() + size <= self.cap
        assert worker.probe.ask(f"fork {size}") == (0 if fits else s.OUT_OF_MEMORY)
        for pid in set(self.arbiter.slots) - before:
            slot = self.arbiter.slots[pid]
            assert self.arbiter.card.proc("mem_used", slot) == (size if fits else 0)
            assert self.arbiter.card.proc("mem_pending", slot) == 0
            self.arbiter.died(pid)

    def grant(self) -> None:
        """The administrator changes the cap, or the arbiter what it charges beside the slots."""
        if self.random.random() < 0.5:
            self.cap = self.random.choice((CAP, CAP // 2, CAP - 1))
            self.arbiter.card.gate_page.mem_cap = self.cap
        else:
            self.extra = self.random.choice((0, 0, 300 * MIB))
            self.arbiter.card.gate_page.mem_extra = self.extra

    def kill(self, worker: Worker) -> None:
        """In the middle of something: what its slot says last may be any moment of it, but never
        too much.
        """
        possible = worker.used
        for place in range(PLACES, PLACES + 8):
            worker.probe.send(f"alloc {place} {64 * MIB}")
            worker.probe.send(f"free {place}")
        time.sleep(self.random.random() * 3e-4)
        os.kill(worker.pid, signal.SIGKILL)
        worker.probe.process.communicate()
        used = self.arbiter.card.proc("mem_used", worker.slot)
        pending = self.arbiter.card.proc("mem_pending", worker.slot)
        assert used in (possible, possible + 64 * MIB) and pending in (0, 64 * MIB)
        self.arbiter.died(worker.pid)
        self.workers.remove(worker)
        self.kills += 1

    # ---- the rule

    def check(self) -> None:
        """Slots and model agree."""
        for worker in self.workers:
            own = {
                "mem_used": worker.used,
                "mem_pending": 0,
                "mem_peak": worker.peak,
                "mem_denied": worker.denied,
                "mem_refused": worker.refused,
                "launches": worker.launches,
            }
            assert own == {name: self.arbiter.card.proc(name, worker.slot) for name in own}
        assert self.arbiter.sum() == (self.used() - self.extra, 0)

    def schedule(self) -> None:
        """One schedule."""
        for _ in range(self.random.randrange(3, 9)):
            if not self.workers or (len(self.workers) < PROCESSES and self.random.random() < 0.05):
                self.join()
            worker = self.random.choice(self.workers)
            dice = self.random.random()
            if dice < 0.7:
                self.allocate(worker)
            elif dice < 0.95:
                self.launch(worker)
            elif dice < 0.96:
                self.grant()
            elif dice < 0.965:
                self.fork(worker)
            elif worker.held:
                self.free(worker, self.random.choice(list(worker.held)))
            self.steps += 1
            self.check()
        if self.random.random() < 0.05:
            self.kill(self.random.choice(self.workers))
            self.check()

    def close(self) -> None:
        for worker in self.workers:
            worker.probe.process.kill()
            worker.probe.process.communicate()
        self.arbiter.stop()


def test_random_schedules_agree_with_the_model(tmp_path: Path) -> None:
    seed = int(os.environ.get("QGPU_SEED", str(random.randrange(1 << 32))))
    model = Model(tmp_path, seed)
    print(f"QGPU_SEED={seed} repeats this (but for the moments of the kills)")
    try:
        for _ in range(SCHEDULES):
            model.schedule()
    finally:
        model.close()
    print(
        f"{SCHEDULES} schedules, {model.steps} steps, {model.kills} kills, {model.refusals} "
        "refusals"
    )
    assert model.kills > SCHEDULES / 50 and model.refusals
