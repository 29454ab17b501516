"""Support of test_shim_submit_groups.py: programs that submit one call at a time, and a gate
that is closed then.
"""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import arbiter_support as a
from shim_memory_support import sanitizer_and_twin

from bench.harness.node import BUILD, Rig, wait_for
from enforcer.fdwait import readable_within
from enforcer.wire import abi
from enforcer.wire.link import TenantStats
from simulator.sim import Interval, Kind

ONLINE, OFFLINE = 1, 2
PROBE = (Kind.DTOH, 64)  # how a program reads its results (submit.h)
BLANK = (Kind.HTOD, 64)
# those before a call may be in one sum with it: together they are not worth a launch
LOOKS = 15 * 64


@dataclass(frozen=True)
class Step:
    """A program's announcement: a call, and its expected effect."""

    name: str
    kind: str
    launches: int
    copied: int
    truth: tuple[tuple[Kind, int], ...]

    @classmethod
    def parse(cls, line: str) -> Step:
        name, kind, launches, copied, truth = line.split()
        pieces = [part.split(":") for part in truth.split(",")] if truth != "-" else []
        return cls(
            name,
            kind,
            int(launches),
            int(copied),
            tuple((Kind[k.upper()], int(n)) for k, n in pieces),
        )


class Program:
    """One of the small programs as a task of the offline job."""

    def __init__(self, site: Site, name: str, sanitized: bool) -> None:
        env = (
            {"LD_PRELOAD": sanitizer_and_twin(), "ASAN_OPTIONS": "detect_leaks=0"}
            if sanitized
            else {}
        )
        self.process = site.rig.spawn(
            [BUILD / "test" / f"shim-{name}"],
            site.rig.grants[OFFLINE],
            stdin=subprocess.PIPE,
            env=env,
            bufsize=1,
        )

    def line(self) -> str:
        """Its next line; empty at its end."""
        assert self.process.stdout
        return self.process.stdout.readline().strip()

    def on(self) -> None:
        """Lets it continue."""
        assert self.process.stdin
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def says(self, word: str) -> None:
        """Its next line is this one."""
        said = self.line()
        assert said == word, (said, self.process.communicate(timeout=60))

    def is_silent(self) -> bool:
        """It has printed nothing."""
        assert self.process.stdout
        return not readable_within(self.process.stdout.fileno(), 0)


class Site:
    """A node of two cards; this process is the online tenant, and a second process of the
    offline job that watches.
    """

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        offline = rig.grant(OFFLINE, "offline", mem_mib=1024, card=(0, 1))
        online = rig.grant(ONLINE, "online", mem_mib=1024)
        self.online = a.Tenant(rig.run_dir, online, rig.uuids[0])
        self.watch = a.Tenant(rig.run_dir, offline, rig.uuids[0])
        self.shut: list[tuple[int, int]] = []

    def close_gate(self) -> None:
        """Online works: offline's gate is closed."""
        assert self.online.begin()
        wait_for("the gate closes", lambda: self.watch.closed)
        self.since = time.monotonic_ns()

    def open_gate(self) -> None:
        """Online is idle: offline's gate opens."""
        self.shut.append((self.since, time.monotonic_ns()))
        self.online.finish()
        wait_for("the gate opens", lambda: not self.watch.closed)

    def slot(self, pid: int) -> abi.ProcSlot:
        """What a process of the offline job shows of itself."""
        return next(slot for slot in self.watch.job.procs if slot.pid == pid)

    def stats(self) -> TenantStats:
        """What the arbiter has measured of the offline job on the first card."""
        return next(
            t for t in self.rig.link.stats() if (t.job_id, t.uuid) == (OFFLINE, self.rig.uuids[0])
        )

    def close(self) -> None:
        self.online.close()
        self.watch.close()


@contextlib.contextmanager
def site(directory: Path, arbiter: Path = a.ARBITER) -> Iterator[Site]:
    """A node for one test."""
    with Rig(directory, cards=2, settings={"idle_release_ms": 1}, arbiter_binary=arbiter) as rig:
        one = Site(rig)
        yield one
        one.close()


def launches(slot: abi.ProcSlot) -> int:
    """All launches that a process counted."""
    return int(slot.launches + sum(lane.launches for lane in slot.lanes))


def take(one: Site, program: Program, step: Step) -> None:
    """One call with the gate closed, from its announcement to the program's word that the result
    is right.
    """
    slot = one.slot(program.process.pid)
    before = launches(slot), slot.copy_bytes
    one.close_gate()
    program.on()
    if step.kind == "order":
        program.says("done")
        assert one.watch.closed, f"{step.name} shall pass the closed gate"
    else:
        waiting = step.launches if step.kind == "crowd" else 1
        wait_for(f"{step.name} waits at the gate", lambda: slot.waiting == waiting)
        assert program.is_silent(), f"{step.name} returned although the gate is closed"
    one.open_gate()
    if step.kind != "order":
        program.says("done")
    counted = launches(slot) - before[0], slot.copy_bytes - before[1]
    assert (step.name, counted[0], slot.waiting) == (step.name, step.launches, 0)
    assert 0 <= counted[1] - step.copied < LOOKS, (step, counted[1])
    if step.kind == "held":
        wait_for(f"{step.name} is seen to work", lambda: one.stats().busy)
    program.on()
    program.says("right")


def ran(one: Site, pid: int, since: int) -> list[Interval]:
    """The cards' work for the process, without its reads of results."""
    return [
        piece
        for piece in one.rig.trace()
        if piece.pid == pid
        and piece.t_submit >= since
        and (piece.kind, piece.work) not in (PROBE, BLANK)
    ]


def walk(one: Site, name: str, sanitized: bool = False) -> list[Step]:
    """A program from its first step to its end; the card's trace must hold its announcements, none
    early.
    """
    program = Program(one, name, sanitized)
    program.says("begin")
    since, steps, passed = time.monotonic_ns(), [], []
    program.on()
    while line := program.line():
        step = Step.parse(line)
        steps.append(step)
        take(one, program, step)
        if step.kind == "order":
            passed.append(len(one.shut) - 1)
    assert program.process.wait(60) == 0, program.process.communicate()
    error = program.process.communicate()[1]
    assert error == "", error
    expected = Counter(piece for step in steps for piece in step.truth)
    pid = program.process.pid

    def as_announced() -> bool:
        return Counter((Kind(p.kind), p.work) for p in ran(one, pid, since) if p.last) == expected

    wait_for("the card's trace is written", lambda: as_announced(), 5)
    shut = [span for i, span in enumerate(one.shut) if i not in passed]
    early = [p for p in ran(one, pid, since) for begin, end in shut if begin < p.t_submit < end]
    assert not early, f"submitted through a closed gate: {early[:3]}"
    wait_for("all is seen to end", lambda: not one.stats().busy)
    return steps
