"""Everything at once against the sanitized twins: processes come and die, gates move, qgpud asks
and changes settings.

Thread and address sanitizer end the arbiter with another status than 0 when they have anything to
report.
"""

from __future__ import annotations

import contextlib
import itertools
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from arbiter_support import (
    ARBITER_ASAN,
    ARBITER_TSAN,
    CARD,
    CARD2,
    Arbiter,
    Tenant,
    arbiter,
    grant,
    settings,
    wait_for,
)

from enforcer.wire.link import MemoryAction
from enforcer.wire.watch import DeathWatch

pytestmark = pytest.mark.native
STORM = """
import os, sys
sys.path.insert(0, sys.argv[1])
from arbiter_support import *
run_dir = Path(sys.argv[2])
both = grant(3, "offline", 50, 1 << 30, CARD, CARD2)
for n in range(40):
    if os.fork() == 0:
        tenant = Tenant(run_dir, both, (CARD, CARD2)[n % 2], mem_used=1000)
        tenant.slot.lanes[n % 16].launches += 1
        tenant.slot.mem_wanted = 1000 * n
        tenant.begin()
        tenant.ring()
        os._exit(0)
    if n % 4 == 3:
        os.wait()
while True:
    try:
        os.wait()
    except ChildProcessError:
        break
"""


def without_random_addresses() -> tuple[str, ...]:
    """The thread sanitizer of older compilers does not start where a kernel scatters addresses
    widely.
    """
    prefix = ("setarch", "-R")
    with contextlib.suppress(OSError):
        if subprocess.run([*prefix, "true"], capture_output=True).returncode == 0:
            return prefix
    return ()


class Crowd:
    """Threads that repeat something until the end; what one of them raises fails the test."""

    def __init__(self) -> None:
        self.over = threading.Event()
        self.errors: list[BaseException] = []
        self.threads: list[threading.Thread] = []

    def add(self, step: Callable[[], object]) -> None:
        def run() -> None:
            try:
                while not self.over.is_set():
                    step()
            except BaseException as error:
                self.errors.append(error)

        self.threads.append(threading.Thread(target=run))
        self.threads[-1].start()

    def end(self) -> None:
        self.over.set()
        for thread in self.threads:
            thread.join()
        assert not self.errors, self.errors


def worker(tenant: Tenant) -> Callable[[], object]:
    def step() -> None:
        tenant.finish()
        tenant.begin()
        tenant.slot.mem_wanted = (tenant.slot.mem_wanted + 1) % 1000
        time.sleep(0.0005)

    return step


def caller(tenant: Tenant) -> Callable[[], object]:
    def step() -> None:
        tenant.begin()
        time.sleep(0.005)
        tenant.finish()
        time.sleep(0.03)

    return step


def qgpud(one: Arbiter) -> Callable[[], object]:
    link = one.link()
    count = iter(range(1 << 30))

    def step() -> None:
        n = next(count)
        policy = ("best-effort", "burst-share", "fixed-share")[n % 3]
        changes = {"policy_offline": policy, "slice_us": 500 + n % 7 * 1000, "together": n % 5 > 0}
        link.card(settings((CARD, CARD2)[n % 2], idle_release_ms=10, **changes))
        link.grant(grant(4 + n % 2, "online" if n % 4 == 0 else "offline"))
        link.overhead(3, CARD, n)
        link.grant(grant(3, "offline", 50, 1 << 30, CARD, CARD2), held=n % 3 == 0)
        link.memory(n % 4, (CARD, CARD2)[n % 2], MemoryAction(1 + n % 4))
        assert len(link.stats()) >= 4
        link.processes()
        link.revoke(4 + n % 2)
        time.sleep(0.002)

    return step


def mover(one: Arbiter) -> Callable[[], object]:
    """A job with a process that follows it from card to card."""
    link, home = one.link(), grant(6)
    card = replace(home.cards[0], uuid=CARD2, home=CARD, home_minor=0)
    places = itertools.cycle(itertools.pairwise((home, replace(home, cards=(card,)), home)))

    def step() -> None:
        old, new = next(places)
        link.grant(old, held=True)
        link.grant(new, held=True)
        link.revoke(6, old.cards[0].uuid)
        Tenant(one.run_dir, home, mem_used=5).close()
        link.grant(new)
        time.sleep(0.001)

    return step


@pytest.mark.parametrize("binary", [ARBITER_TSAN, ARBITER_ASAN], ids=["threads", "addresses"])
def test_everything_at_once(tmp_path: Path, binary: Path) -> None:
    on, off = grant(1, "online"), grant(2)
    both = grant(3, "offline", 50, 1 << 30, CARD, CARD2)
    prefix = without_random_addresses() if binary is ARBITER_TSAN else ()
    trace = str(tmp_path / "trace.bin")
    with (
        arbiter(tmp_path, "--trace", trace, binary=binary, prefix=prefix) as one,
        one.link() as link,
    ):
        link.sync([settings(CARD), settings(CARD2)], [on, off, both])
        crowd = Crowd()
        with DeathWatch(one.run_dir) as watch:
            for tenant in (Tenant(one.run_dir, off), Tenant(one.run_dir, both, CARD2)):
                crowd.add(worker(tenant))
            crowd.add(caller(Tenant(one.run_dir, on)))
            crowd.add(qgpud(one))
            crowd.add(mover(one))
            deaths = 0
            storm = [
                sys.executable,
                "-c",
                STORM,
                str(Path(__file__).parents[2] / "support/node"),
                str(one.run_dir),
            ]
            for _ in range(3):
                subprocess.run(storm, check=True, timeout=120)
                for dead in watch.died():
                    deaths += 1
                    link.gone(dead.job_id, dead.uuid, dead.pid)
            crowd.end()
            for uuid in (CARD, CARD2):
                link.revoke(6, uuid)
            wait_for(lambda: len(link.processes()) == 3, "the storm is over")
            deaths += len(watch.died())
        assert deaths == 120
    report = one.log.read_text()
    assert "Sanitizer" not in report and "runtime error" not in report, report
