"""Tenants that are stopped, hung or report false work: skipped within bounded time, others
unharmed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from arbiter_support import Arbiter, Tenant, arbiter, grant, settings, tenant_stats, wait_for

from enforcer.wire import abi

pytestmark = pytest.mark.native
WORKER = """
import sys, time
sys.path.insert(0, sys.argv[1])
from arbiter_support import *
tenant = Tenant(Path(sys.argv[2]), grant(int(sys.argv[3])))
print("ready", flush=True)
while True:
    tenant.finish()
    tenant.begin()
    time.sleep(0.0002)
"""


class Worker:
    """A thread that keeps a tenant at work; knows for how much of a time its gate was open."""

    def __init__(self, tenant: Tenant) -> None:
        self.tenant = tenant
        self.done = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self._stop.is_set():
            self.tenant.finish()
            self.done += self.tenant.begin()
            time.sleep(0.0002)

    def __enter__(self) -> Worker:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def open_part(self, link, seconds: float) -> float:  # type: ignore[no-untyped-def]
        """1 - the part of the next seconds for which it stood at a gate closed by shares."""
        job, begin = self.tenant.job_id, time.monotonic_ns()
        closed = tenant_stats(link, job).closed_share_ns
        time.sleep(seconds)
        closed = tenant_stats(link, job).closed_share_ns - closed
        return 1 - closed / (time.monotonic_ns() - begin)


@contextmanager
def process(one: Arbiter, job: int) -> Iterator[subprocess.Popen[str]]:
    """A worker in a process of its own, to be stopped."""
    command = [
        sys.executable,
        "-c",
        WORKER,
        str(Path(__file__).parents[2] / "support/node"),
        str(one.run_dir),
        str(job),
    ]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert child.stdout and child.stdout.readline() == "ready\n"
    try:
        yield child
    finally:
        child.kill()
        child.wait()


def test_stopped_holder_loses_its_turns(tmp_path: Path) -> None:
    """SIGSTOP in the middle of its turns (scontrol suspend): others soon have the card, and it
    comes back.
    """
    stopped, worker = grant(1), grant(2)
    with arbiter(tmp_path) as one, one.link() as link:
        link.sync([settings()], [stopped, worker])
        with process(one, 1) as child, Worker(Tenant(one.run_dir, worker)) as other:
            wait_for(
                lambda: tenant_stats(link, 2).closed_share_ns > 0 and other.done > 20,
                "they take turns",
            )
            os.kill(child.pid, signal.SIGSTOP)
            # Whatever it held: a kernel on the card is awaited 100 ms each turn, and debited, until
            # it is called stuck.
            wait_for(
                lambda: other.open_part(link, 0.3) > 0.9, "nearly the whole card is the other's"
            )
            wait_for(lambda: other.open_part(link, 1.0) > 0.95, "for good")
            os.kill(child.pid, signal.SIGCONT)
            before = tenant_stats(link, 1).launches
            wait_for(lambda: tenant_stats(link, 1).launches > before + 20, "it has turns again")


def test_holder_whose_markers_never_complete(tmp_path: Path) -> None:
    """A hung kernel: after the drain's limit the others run, it pays for all of it, and soon it
    is passed over.
    """
    hung, worker = grant(1), grant(2)
    with arbiter(tmp_path) as one, one.link() as link:
        link.sync([settings()], [hung, worker])
        bad = Tenant(one.run_dir, hung)
        wait_for(lambda: not bad.closed, "open")
        assert bad.begin()
        with Worker(Tenant(one.run_dir, worker)) as other:
            wait_for(lambda: other.done > 50, "the other runs although nothing ever finished", 3)
            assert tenant_stats(link, 1).deficit_ns <= tenant_stats(link, 2).deficit_ns
            wait_for(lambda: tenant_stats(link, 1).passed_over, "called stuck", 5)
            wait_for(lambda: other.open_part(link, 0.5) > 0.9, "its gate stays open")
            bad.finish()
            wait_for(lambda: not tenant_stats(link, 1).passed_over, "its kernel ended after all")
        assert tenant_stats(link, 1).busy_ns > 50_000_000, "it had the card, and is charged for it"


def test_who_has_long_kernels_is_not_soon_called_stuck(tmp_path: Path) -> None:
    """A kernel may take 2 s."""
    mine = grant(1)
    with arbiter(tmp_path) as one, one.link() as link:
        link.sync([settings()], [mine, grant(2)])
        tenant = Tenant(one.run_dir, mine)
        wait_for(lambda: not tenant.closed, "open")
        began = time.monotonic()
        assert tenant.begin()
        wait_for(lambda: tenant_stats(link, 1).passed_over, "it hangs")
        assert time.monotonic() - began > 2.0
        tenant.finish()
        wait_for(lambda: not tenant_stats(link, 1).passed_over, "it ended")


def test_tenant_that_always_says_it_waits(tmp_path: Path) -> None:
    """Equal shares, so its turns are short: what it leaves unused adds up, and its word counts
    for less each time.
    """
    liar_grant, worker_grant = grant(1), grant(2)
    with arbiter(tmp_path) as one, one.link() as link:
        link.sync([settings()], [liar_grant, worker_grant])
        liar = Tenant(one.run_dir, liar_grant)
        liar.slot.waiting = 65536
        liar.ring()
        with Worker(Tenant(one.run_dir, worker_grant)) as other:
            wait_for(lambda: tenant_stats(link, 1).passed_over, "found out")
            wait_for(lambda: other.open_part(link, 1.0) > 0.9, "it costs the other next to nothing")
            liar.slot.waiting = 0
            liar.slot.launches += 1
            liar.ring()
            wait_for(lambda: not tenant_stats(link, 1).passed_over, "a launch clears its name")


def test_tenant_that_never_says_anything(tmp_path: Path) -> None:
    """Neither launches nor waiting: it has no turns, and nobody waits for it."""
    silent, worker, on = grant(1, share=100), grant(2, share=1), grant(3, "online")
    with arbiter(tmp_path) as one, one.link() as link:
        link.sync([settings()], [silent, worker, on])
        _mute, online = Tenant(one.run_dir, silent), Tenant(one.run_dir, on)
        with Worker(Tenant(one.run_dir, worker)) as other:
            wait_for(lambda: other.done > 20, "it works")
            wait_for(lambda: other.open_part(link, 0.5) > 0.95, "its gate stays open")
            assert online.begin()
            wait_for(lambda: other.tenant.closed, "online preempts as ever")
            assert other.tenant.flags & abi.GATE_WHY_PREEMPTED
        assert tenant_stats(link, 1).busy_ns == 0


def test_online_that_claims_work_for_ever_and_shows_none(tmp_path: Path) -> None:
    """A stopped online tenant at its open gate does not lock offline out for longer than the
    release and its doubt.
    """
    on, off = grant(1, "online"), grant(2)
    with arbiter(tmp_path) as one, one.link() as link:
        link.sync([settings(idle_release_ms=10)], [on, off])
        online, offline = Tenant(one.run_dir, on), Tenant(one.run_dir, off)
        online.slot.waiting = 1
        online.ring()
        wait_for(lambda: offline.closed, "believed at first")
        wait_for(lambda: not offline.closed, "but not for long", 3)
        wait_for(lambda: tenant_stats(link, 1).passed_over, "found out")

        def mostly_open() -> bool:
            opened = 0
            for _ in range(200):
                time.sleep(0.005)
                opened += not offline.closed
            return opened > 100

        wait_for(mostly_open, "most of the time the card is offline's")


def test_counters_in_lanes_count(tmp_path: Path) -> None:
    """Launches told in lanes are work like others; a lane of garbage moves nothing back."""
    on, off = grant(1, "online"), grant(2)
    with arbiter(tmp_path) as one, one.link() as link:
        link.sync([settings()], [on, off])
        online, offline = Tenant(one.run_dir, on), Tenant(one.run_dir, off)
        wait_for(lambda: online.flags & abi.GATE_NOTIFY and not offline.closed, "idle")
        online.slot.lanes[3].launches += 2
        online.slot.fences[0].submitted += 1
        online.ring()
        wait_for(lambda: offline.closed, "a launch in a lane preempts")
        online.slot.lanes[15].launches += 5
        online.slot.launches += 1
        wait_for(lambda: tenant_stats(link, 1).launches == 8, "the sum of all counters")
        online.slot.lanes[3].launches = 2**64 - 1
        online.slot.lanes[7].launches = 4
        wait_for(lambda: tenant_stats(link, 1).launches >= 8, "never back")
        assert tenant_stats(link, 1).launches < 100


def test_who_stood_too_long_at_an_open_gate_and_then_goes_on(tmp_path: Path) -> None:
    """Doubted, since its thread got no processor: its launch, counted long ago, is work when it
    is made after all.
    """
    on, off = grant(1, "online"), grant(2)
    with arbiter(tmp_path) as one, one.link() as link:
        link.sync([settings(idle_release_ms=5)], [on, off])
        online, offline = Tenant(one.run_dir, on), Tenant(one.run_dir, off)
        assert online.begin()
        wait_for(lambda: offline.closed, "online works")
        assert not offline.begin(), "it stands at the gate"
        online.finish()
        wait_for(lambda: not offline.closed, "its gate opens")
        wait_for(lambda: tenant_stats(link, 2).passed_over, "it does not move")
        wait_for(lambda: offline.flags & abi.GATE_NOTIFY, "nothing more is expected of it")
        went_on = time.monotonic_ns()
        offline.slot.quantum_start_ns = went_on
        offline.slot.waiting = 0
        offline.ring()
        wait_for(
            lambda: offline.gate.changed_ns > went_on,
            "it is looked at from now on, and need not ring",
        )
