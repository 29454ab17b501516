"""Arbiters that follow each other under load on the simulated card: killed, or ended politely."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import arbiter_support as a
import pytest
import shim_support as s
from shim_memory_support import NVML_SHIM
from test_shim_stack import OFFLINE, OFFLINE2, ONLINE, Node, stats

from enforcer.wire import abi
from enforcer.wire.link import CardSettings

pytestmark = pytest.mark.native
# On a busy machine online may get no processor for the 100 ms after which offline is released.
NEVER = {"idle_release_ms": 60_000}


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    running = Node(tmp_path)
    yield running
    running.gpu.terminate()
    running.gpu.wait()


class Site:
    """A node whose arbiter is exchanged while jobs run."""

    def __init__(self, tmp_path: Path, node: Node) -> None:
        self.node = node
        self.arbiter = a.Arbiter(tmp_path / "run", a.ARBITER)
        self.arbiter.run_dir.mkdir(mode=0o755)
        jobs = ((ONLINE, "online", 50), (OFFLINE, "offline", 50), (OFFLINE2, "offline", 20))
        self.grants = {
            job: node.grant(job, kind, share, self.arbiter.run_dir) for job, kind, share in jobs
        }
        self.running: list[subprocess.Popen[str]] = []

    def serve(self, sig: int = signal.SIGTERM, **changes: int) -> None:
        """End the arbiter that runs, start the next one and give it the full list."""
        if hasattr(self.arbiter, "process"):
            self.arbiter.stop(sig)
        self.arbiter.start()
        self.tell(**changes)

    def tell(self, **changes: int) -> None:
        """Give the arbiter the full list, with these settings of the card."""
        with self.arbiter.link() as link:
            settings = CardSettings(self.node.uuid, grace_ms=3000, **changes)
            link.sync([settings], self.grants.values())

    def job(self, job: int, *args: str) -> subprocess.Popen[str]:
        """A workload of a job."""
        fd = a.sealed(abi.pack_grant(self.grants[job]))
        env = self.node.env | {"LD_PRELOAD": str(s.SHIM), "QGPU_GRANT_FD": str(fd)}
        command = [s.BUILD / "bin/qgpu-workload", "--json", "--iters", "100000", *args]
        process = subprocess.Popen(
            command,
            env=env,
            pass_fds=[fd],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        os.close(fd)
        self.running.append(process)
        return process

    def works(self, job: int, what: str) -> None:
        """Launches of the job keep coming."""
        before = stats(self.arbiter)[job].launches
        a.wait_for(lambda: stats(self.arbiter)[job].launches > before + 50, what)

    def close(self) -> None:
        for process in self.running:
            process.kill()
            process.communicate()
        self.arbiter.stop()


@pytest.fixture
def site(tmp_path: Path, node: Node) -> Iterator[Site]:
    one = Site(tmp_path, node)
    yield one
    one.close()


def refused_at_cap(site: Site) -> None:
    """A program that wants more than its job's 8 GiB is told so, whoever the arbiter is or is
    not.
    """
    process = site.job(OFFLINE2, "--requests", "2", "--alloc-past", "9GiB")
    error = process.communicate(timeout=60)[1]
    assert "refused: job 3 holds" in error, error


def exchange(site: Site, arbiters: int) -> None:
    """Jobs run while arbiters follow each other: killed, or ended politely."""
    site.serve()
    batch = site.job(OFFLINE, "--length", "600", "--no-sync-each=64", "--memory", "2GiB")
    site.works(OFFLINE, "offline works")
    for number in range(arbiters - 1):
        site.tell(**NEVER)
        service = site.job(ONLINE, "--length", "600", "--no-sync-each=64")
        a.wait_for(lambda: stats(site.arbiter)[ONLINE].busy, "online works")
        a.wait_for(
            lambda: stats(site.arbiter)[OFFLINE].gate & abi.GATE_CLOSED, "and offline is closed"
        )
        site.serve(signal.SIGKILL if number % 2 else signal.SIGTERM, **NEVER)
        a.wait_for(lambda: stats(site.arbiter)[OFFLINE].procs == 1, "offline registers again")
        a.wait_for(lambda: stats(site.arbiter)[ONLINE].procs == 1, "online registers again")
        site.works(ONLINE, "online works under the successor")
        tenant = stats(site.arbiter)[OFFLINE]
        assert tenant.gate & abi.GATE_CLOSED and tenant.launches < 20, (
            "offline waited all the while"
        )
        assert tenant.mem_used == 2 * s.GIB, "what it holds is told to the successor"
        service.kill()
        service.communicate()
        site.tell()
        site.works(OFFLINE, "offline has the card again: its gate is not stuck")
        refused_at_cap(site)
    assert batch.poll() is None, batch.communicate()


def test_arbiters_follow_each_other_under_load(site: Site) -> None:
    exchange(site, 3)


MONITOR = """
import json, pynvml as n
n.nvmlInit()
card = n.nvmlDeviceGetMemoryInfo(n.nvmlDeviceGetHandleByIndex(0))
print(json.dumps([card.total, card.used]))
"""


def test_monitor_of_a_job_asks_the_arbiter(site: Site) -> None:
    """A program without CUDA: the job's NVML registers by itself, and sees what the job's other
    process holds.
    """
    site.serve()
    site.job(OFFLINE, "--length", "600", "--no-sync-each=64", "--memory", "2GiB")
    site.works(OFFLINE, "offline works")
    fd = a.sealed(abi.pack_grant(site.grants[OFFLINE]))
    env = site.node.env | {"LD_PRELOAD": str(NVML_SHIM), "QGPU_GRANT_FD": str(fd)}
    done = subprocess.run(
        [sys.executable, "-c", MONITOR],
        env=env,
        pass_fds=[fd],
        capture_output=True,
        text=True,
        check=False,
    )
    os.close(fd)
    assert done.returncode == 0, done.stderr
    total, used = json.loads(done.stdout)
    assert total == 8 * s.GIB
    assert 2 * s.GIB <= used < 3 * s.GIB, "what a process without pages would not know"


def test_memory_holds_while_no_arbiter_is_there(site: Site) -> None:
    site.serve()
    site.job(OFFLINE2, "--length", "600", "--no-sync-each=64", "--memory", "6GiB")
    a.wait_for(lambda: stats(site.arbiter)[OFFLINE2].mem_used == 6 * s.GIB, "it holds 6 of 8 GiB")
    site.serve(signal.SIGKILL)
    a.wait_for(
        lambda: stats(site.arbiter)[OFFLINE2].mem_used == 6 * s.GIB, "known to the successor"
    )
    late = site.job(OFFLINE2, "--requests", "2", "--alloc-past", "4GiB")
    error = late.communicate(timeout=60)[1]
    assert "refused: job 3 holds" in error, (
        "two processes of a job share one cap under the successor too"
    )
