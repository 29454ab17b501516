"""Random schedules of grants, launches, allocations, kills and revocations, on the real chain,
against a model.

test_shim_memory_model.py plays ten thousand schedules with an arbiter of the test's own, step by
step. Here arbiter, simulated driver and three jobs of both classes on two cards are real; this test
is qgpud only as far as it answers deaths from NVML's list. After each step the arbiter's books must
say what the model says, each refusal must be one that the model foresees, everything that was
launched must be executed once, and no gate may stay closed.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, get_args

import pytest

from bench.harness.node import Rig, wait_for
from enforcer.fdwait import readable_within
from enforcer.wire.messages import CardSettings, ProcessStats
from enforcer.wire.watch import DeathWatch
from gres.config.site import JobClass

pytestmark = [
    pytest.mark.native,
    pytest.mark.skipif(os.geteuid() != 0, reason="makes device nodes"),
    pytest.mark.timeout(300),
]
SCHEDULES = int(os.environ.get("QGPU_REAL_SCHEDULES", "600"))
MIB = 1 << 20
SIZES_MIB = (1, 3, 64, 700, 1500)
CAPS_MIB = (2048, 3000, 8192)
POLICIES = ("best-effort", "fixed-share", "burst-share")
SHARES = (10, 30, 70)
CARDS = {1: (0,), 2: (0, 1), 3: (1,)}  # of each job
PLACES, PROCESSES = 8, 4
OUT_OF_MEMORY = 2
HANGS_S = 30.0  # a closed gate opens long before, or never

WORKER = """
import ctypes as c, json, sys
cu = c.CDLL("libcuda.so.1")
def must(code):
    assert code == 0, code
device, context, module, work = c.c_int(), c.c_void_p(), c.c_void_p(), c.c_void_p()
must(cu.cuInit(0))
must(cu.cuDeviceGet(c.byref(device), 0))
must(cu.cuCtxCreate_v2(c.byref(context), 0, device))
ptx = b".version 6.3\\n.target sm_75\\n.visible .entry qgpu_work(.param .u64 n)\\n{ ret; }\\n"
must(cu.cuModuleLoadData(c.byref(module), ptx))
must(cu.cuModuleGetFunction(c.byref(work), module, b"qgpu_work"))
held = {}
def give(place, mib, kind):
    at, size = c.c_uint64(), c.c_size_t(mib << 20)
    if kind == "plain": code = cu.cuMemAlloc_v2(c.byref(at), size)
    elif kind == "managed": code = cu.cuMemAllocManaged(c.byref(at), size, 1)
    else: code = cu.cuMemAllocPitch_v2(
        c.byref(at), c.byref(c.c_size_t()), c.c_size_t(1 << 20), c.c_size_t(mib), 4)
    if code == 0: held[place] = at
    return code
def free(place):
    return cu.cuMemFree_v2(held.pop(place))
def launch(times, us):
    ns = c.c_uint64(us * 1000)
    params = (c.c_void_p * 1)(c.cast(c.byref(ns), c.c_void_p))
    for _ in range(times):
        must(cu.cuLaunchKernel(work, 1, 1, 1, 1, 1, 1, 0, None, params, None))
    return 0
def sync():
    return cu.cuCtxSynchronize()
print("ready", flush=True)
for line in sys.stdin:
    name, *words = json.loads(line)
    print(globals()[name](*words), flush=True)
"""


@dataclass
class Worker:
    """A process of a job, and what the model says of it."""

    process: subprocess.Popen[str]
    job: int
    card: int
    cap: int  # of its grant when it began, MiB
    held: dict[int, int] = field(default_factory=dict)  # MiB by place
    launched: int = 0
    asked: int = 0  # answers that are still to come
    heard: bytes = b""

    @property
    def used(self) -> int:
        return sum(self.held.values()) * MIB

    def send(self, *command: Any) -> None:
        """An order."""
        assert self.process.stdin
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()
        self.asked += 1

    def line(self) -> str:
        """The next answer; none for so long is a gate that stays closed."""
        assert self.process.stdout
        # several may come at once: what a text stream buffers, no poll sees
        while b"\n" not in self.heard:
            assert readable_within(self.process.stdout.fileno(), HANGS_S), f"job {self.job} hangs"
            more = os.read(self.process.stdout.fileno(), 4096)
            assert more, self.process.communicate()[1]
            self.heard += more
        line, self.heard = self.heard.split(b"\n", 1)
        return line.decode()

    def settle(self) -> int:
        """All answers; the last one."""
        code = 0
        while self.asked:
            code = int(self.line())
            self.asked -= 1
        return code

    def ask(self, *command: Any) -> int:
        self.settle()
        self.send(*command)
        return self.settle()


class World:
    """Two cards, three jobs, their processes."""

    def __init__(self, node: Rig, watch: DeathWatch, seed: int) -> None:
        self.node, self.watch, self.nvml = node, watch, node.nvml()
        self.random = random.Random(seed)
        self.workers: list[Worker] = []
        self.caps: dict[int, int] = {}
        self.ended: Counter[tuple[int, int]] = (
            Counter()
        )  # launches of processes that are gone, by (job, card)
        self.unsure: Counter[tuple[int, int]] = Counter()  # that a killed one may have made beyond
        self.executed: Counter[int] = Counter()  # kernels that must have run, by pid
        self.seen: Counter[str] = Counter()
        self.dead: list[ProcessStats] = []  # whom the arbiter asks about
        self.longest_s = 0.0
        for job in CARDS:
            self.grant(job)

    def of(self, job: int, card: int) -> list[Worker]:
        return [w for w in self.workers if (w.job, w.card) == (job, card)]

    def used(self, job: int, card: int) -> int:
        return sum(worker.used for worker in self.of(job, card))

    # ---- steps

    def grant(self, job: int) -> None:
        """A first grant, or a change of it: class, share and cap are drawn."""
        classes: tuple[JobClass, ...] = get_args(JobClass)
        self.caps[job] = cap = self.random.choice(CAPS_MIB)
        self.node.grant(
            job, self.random.choice(classes), self.random.choice(SHARES), cap, CARDS[job]
        )
        self.seen["grants"] += 1

    def revoke(self, job: int) -> None:
        """What the epilog does: its processes are gone, then the grant; then another job may
        have the number.
        """
        for worker in [w for w in self.workers if w.job == job]:
            self.kill(worker)
        self.node.link.revoke(job)
        for card in CARDS[job]:
            self.ended.pop((job, card), None)
            self.unsure.pop((job, card), None)
        assert job not in {t.job_id for t in self.node.link.stats()}
        self.seen["revocations"] += 1
        self.grant(job)

    def change_card(self) -> None:
        """What `qgpu card set` does."""
        online, offline = self.random.choice(POLICIES), self.random.choice(POLICIES)
        settings = CardSettings(
            self.random.choice(self.node.uuids),
            policy_online=online,
            policy_offline=offline,
            idle_release_ms=self.random.choice((0, 5, 20)),
            slice_us=self.random.choice((500, 2000)),
        )
        self.node.link.card(settings)
        self.seen["settings"] += 1

    def join(self) -> None:
        """One more process, on one of its job's cards."""
        job = self.random.choice(list(CARDS))
        card = self.random.choice(CARDS[job])
        visible = {"CUDA_VISIBLE_DEVICES": self.node.uuids[card]}
        command = [sys.executable, "-c", WORKER]
        process = self.node.spawn(
            command, self.node.grants[job], stdin=subprocess.PIPE, env=visible
        )
        worker = Worker(process, job, card, self.caps[job])
        assert worker.line() == "ready"
        self.workers.append(worker)

    def allocate(self, worker: Worker) -> None:
        """Something, or the end of what lies there; the cap of the job on the card decides, not
        the process's.
        """
        place = self.random.randrange(PLACES)
        if place in worker.held:
            assert worker.ask("free", place) == 0
            worker.held.pop(place)
            return
        mib = self.random.choice(SIZES_MIB)
        # a change reaches who runs only where it takes away
        cap = min(worker.cap, self.caps[worker.job])
        fits = self.used(worker.job, worker.card) + mib * MIB <= cap * MIB
        code = worker.ask("give", place, mib, self.random.choice(("plain", "managed", "pitch")))
        told = (worker.job, mib, cap, self.used(worker.job, worker.card) // MIB)
        assert code == (0 if fits else OUT_OF_MEMORY), told
        if fits:
            worker.held[place] = mib
        self.seen["allocations" if fits else "refusals"] += 1

    def launch(self, worker: Worker) -> None:
        """Some kernels: the answer may have to wait for the gate, so it is not awaited here."""
        times = self.random.randrange(1, 20)
        worker.send("launch", times, self.random.choice((20, 200)))
        worker.launched += times
        self.seen["launches"] += times

    def sync(self, worker: Worker) -> None:
        """Everything that it launched ends: its gate opens, whatever other tenants do."""
        began = time.monotonic()
        assert worker.ask("sync") == 0
        self.longest_s = max(self.longest_s, time.monotonic() - began)
        self.executed[worker.process.pid] = worker.launched

    def kill(self, worker: Worker) -> None:
        """At any moment of what it does. The job pays for it until the card has let go."""
        if worker.asked:
            self.unsure[worker.job, worker.card] += worker.launched
        else:
            self.ended[worker.job, worker.card] += worker.launched
        before = self.used(worker.job, worker.card)
        worker.process.kill()
        worker.process.communicate()
        self.workers.remove(worker)
        (uuid,) = (c.uuid for c in self.node.grants[worker.job].cards if c.minor == worker.card)
        charged = self.charged(worker.job, uuid)
        assert self.used(worker.job, worker.card) <= charged <= before
        wait_for("the end of a killed process", lambda: self.buried(worker.process.pid), HANGS_S)
        self.seen["kills"] += 1

    def buried(self, pid: int) -> bool:
        """Answers deaths as qgpud does; True once this process is on no card and charged to
        no tenant.
        """
        on_cards = {p.pid for uuid in self.node.uuids for p in self.nvml.processes(uuid)}
        for dead in self.watch.died() if readable_within(self.watch.fileno(), 0.0) else ():
            self.dead.append(dead)
        for dead in [d for d in self.dead if d.pid not in on_cards]:
            self.node.link.gone(dead.job_id, dead.uuid, dead.pid)
            self.dead.remove(dead)
        known = {p.pid for p in self.node.link.processes()} | {d.pid for d in self.dead}
        return pid not in on_cards | known

    # ---- the rule

    def charged(self, job: int, uuid: str) -> int:
        """What the arbiter charges the job on the card."""
        (found,) = (t for t in self.node.link.stats() if (t.job_id, t.uuid) == (job, uuid))
        return found.mem_used + found.mem_extra

    def check(self) -> None:
        """The arbiter's books of everybody agree with the model."""
        for tenant in self.node.link.stats():
            job, card = tenant.job_id, self.node.uuids.index(tenant.uuid)
            workers = self.of(job, card)
            assert (tenant.procs, tenant.mem_cap) == (len(workers), self.caps[job] * MIB)
            assert tenant.mem_used == sum(w.used for w in workers)
            if not self.agrees(tenant.launches, job, card):
                wait_for("the last look at the counters", partial(self.counted, job, card))

    def counted(self, job: int, card: int) -> bool:
        """Whether the arbiter counted every launch: it looks at an idle tenant a few times a
        second.
        """
        found = {(t.job_id, t.uuid): t.launches for t in self.node.link.stats()}
        return self.agrees(found[job, self.node.uuids[card]], job, card)

    def agrees(self, launches: int, job: int, card: int) -> bool:
        """No launch is lost or counted twice; a process in the middle of some is left out."""
        workers = self.of(job, card)
        known = self.ended[job, card] + sum(w.launched for w in workers if not w.asked)
        more = self.unsure[job, card] + sum(w.launched for w in workers if w.asked)
        return known <= launches <= known + more

    def lost(self) -> dict[int, int]:
        """Kernels that were launched and waited for, and are not in the trace, by pid."""
        whole = Counter(span.pid for span in self.node.trace() if span.last and not span.cut)
        return {
            pid: count - whole[pid] for pid, count in self.executed.items() if whole[pid] < count
        }

    def schedule(self) -> None:
        """One schedule."""
        for _ in range(self.random.randrange(3, 9)):
            if not self.workers or (len(self.workers) < PROCESSES and self.random.random() < 0.05):
                self.join()
            worker = self.random.choice(self.workers)
            dice = self.random.random()
            if dice < 0.5:
                self.allocate(worker)
            elif dice < 0.9:
                self.launch(worker)
            elif dice < 0.97:
                self.sync(worker)
            elif dice < 0.99:
                self.grant(self.random.choice(list(CARDS)))
            else:
                self.change_card()
            self.check()
        if self.random.random() < 0.05:
            self.kill(self.random.choice(self.workers))
        elif self.random.random() < 0.01:
            self.revoke(self.random.choice(list(CARDS)))
        self.check()


@contextlib.contextmanager
def worlds(seed: int) -> Iterator[World]:
    """A node, and this test in the place of qgpud."""
    with (
        tempfile.TemporaryDirectory(prefix="qgpu-test-") as name,
        Rig(Path(name), cards=2, settings={"idle_release_ms": 5}) as node,
        DeathWatch(node.run_dir) as watch,
    ):
        world = World(node, watch, seed)
        with contextlib.closing(world.nvml):
            yield world


def test_random_schedules_on_the_real_chain_agree_with_the_model() -> None:
    seed = int(os.environ.get("QGPU_SEED", str(random.randrange(1 << 32))))
    print(f"QGPU_SEED={seed} repeats this (but for who is how fast)")
    began = time.monotonic_ns()
    with worlds(seed) as world:
        for _ in range(SCHEDULES):
            world.schedule()
        for worker in world.workers:
            world.sync(worker)
        world.check()
        wall = time.monotonic_ns() - began
        for uuid in world.node.uuids:
            booked = sum(t.busy_ns for t in world.node.link.stats() if t.uuid == uuid)
            assert booked <= wall, "no card gave more than there was"
        wait_for("the last kernel in the trace", lambda: not world.lost(), HANGS_S)
        print(f"{SCHEDULES} schedules: {dict(world.seen)}, longest wait {world.longest_s:.2f} s")
    assert all(
        world.seen[name] for name in ("allocations", "refusals", "launches", "kills", "revocations")
    )
