"""Daemon, arbiter and shim of this version and of the one before, exchanged under load on the simulated card.

The twins `qgpu-arbiter-v1` and `shim-v1` are today's sources that speak version 1 alone. QGPU_TEST_OLD_BUILD names a
build directory of an older commit, whose programs then take their places.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import arbiter_support as a
import pytest
import shim_support as s
from shim_memory_support import NVML_SHIM
from test_shim_stack import OFFLINE, OFFLINE2, ONLINE, Node, stats, summary

from enforcer import abi
from enforcer.arbiter_link import ArbiterLink, CardSettings, DeathWatch

pytestmark = pytest.mark.native
OLD = os.environ.get("QGPU_TEST_OLD_BUILD")
NEW_ARBITER = a.ARBITER
# Shims from before ADR 19 take nothing but a memory file.
NEW_ARGS = ("--job-memory", "file") if OLD else ()
OLD_ARBITER = Path(OLD) / "bin/qgpu-arbiter" if OLD else a.ROOT / "build/test/qgpu-arbiter-v1"
SHIMS = {
    "new": s.SHIM,
    "old": Path(OLD) / "shim/libcuda.so.1" if OLD else a.ROOT / "build/test/shim-v1/libcuda.so.1",
}


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
        self.arbiter = a.Arbiter(tmp_path / "run", NEW_ARBITER)
        self.arbiter.run_dir.mkdir(mode=0o755)
        jobs = ((ONLINE, "online", 50), (OFFLINE, "offline", 50), (OFFLINE2, "offline", 20))
        self.grants = {job: node.grant(job, kind, share, self.arbiter.run_dir) for job, kind, share in jobs}
        self.running: list[subprocess.Popen[str]] = []

    def serve(self, binary: Path, sig: int = signal.SIGTERM, grace_ms: int = 3000) -> None:
        """End the arbiter that runs, start this one and give it the full list."""
        if hasattr(self.arbiter, "process"):
            self.arbiter.stop(sig)
        self.arbiter.binary = binary
        self.arbiter.args = NEW_ARGS if binary == NEW_ARBITER else ()
        self.arbiter.start()
        with self.arbiter.link() as link:
            link.sync([CardSettings(self.node.uuid, grace_ms=grace_ms)], self.grants.values())

    def job(self, job: int, shim: Path, *args: str) -> subprocess.Popen[str]:
        """A workload of a job under this shim."""
        fd = a.sealed(abi.pack_grant(self.grants[job]))
        env = self.node.env | {"LD_PRELOAD": str(shim), "QGPU_GRANT_FD": str(fd)}
        command = [s.BUILD / "bin/qgpu-workload", "--json", "--iters", "100000", *args]
        process = subprocess.Popen(
            command, env=env, pass_fds=[fd], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
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


def refused_at_cap(site: Site, shim: Path) -> None:
    """A program that wants more than its job's 8 GiB is told so, whoever the arbiter is or is not."""
    process = site.job(OFFLINE2, shim, "--requests", "2", "--alloc-past", "9GiB")
    error = process.communicate(timeout=60)[1]
    assert "refused: job 3 holds" in error, error


def exchange(site: Site, shim: Path, arbiters: Sequence[Path]) -> None:
    """Jobs run while arbiters follow each other: killed, or ended politely."""
    site.serve(arbiters[0])
    batch = site.job(OFFLINE, shim, "--length", "120", "--no-sync-each=64", "--memory", "2GiB")
    site.works(OFFLINE, "offline works")
    for number, binary in enumerate(arbiters[1:]):
        service = site.job(ONLINE, shim, "--length", "120", "--no-sync-each=64")
        a.wait_for(lambda: stats(site.arbiter)[ONLINE].busy, "online works")
        a.wait_for(lambda: stats(site.arbiter)[OFFLINE].gate & abi.GATE_CLOSED, "and offline is closed")
        site.serve(binary, signal.SIGKILL if number % 2 else signal.SIGTERM)
        a.wait_for(lambda: stats(site.arbiter)[OFFLINE].procs == 1, "offline registers again")
        a.wait_for(lambda: stats(site.arbiter)[ONLINE].procs == 1, "online registers again")
        site.works(ONLINE, "online works under the successor")
        tenant = stats(site.arbiter)[OFFLINE]
        assert tenant.gate & abi.GATE_CLOSED and tenant.launches < 20, "offline waited all the while"
        assert tenant.mem_used == 2 * s.GIB, "what it holds is told to the successor"
        service.kill()
        service.communicate()
        site.works(OFFLINE, "offline has the card again: its gate is not stuck")
        refused_at_cap(site, shim)
    assert batch.poll() is None, batch.communicate()


def shared_by_weight(larger: subprocess.Popen[str], smaller: subprocess.Popen[str]) -> None:
    """Each had its turns, to its end and without a word, and 50:20 is 2.5, on a loaded machine about that."""
    kernels = []
    for process in (larger, smaller):
        result, error = summary(process)
        assert (result["errors"], error) == (0, "")
        kernels.append(result["kernels"])
    assert kernels[1] > 100 and 1.3 < kernels[0] / kernels[1] < 5, kernels


@pytest.mark.parametrize("shim", ["new", "old"])
def test_arbiter_goes_forth_and_back_under_load(site: Site, shim: str) -> None:
    exchange(site, SHIMS[shim], [NEW_ARBITER, OLD_ARBITER, NEW_ARBITER])


MONITOR = """
import json, pynvml as n
n.nvmlInit()
card = n.nvmlDeviceGetMemoryInfo(n.nvmlDeviceGetHandleByIndex(0))
print(json.dumps([card.total, card.used]))
"""


@pytest.mark.parametrize("arbiter", [NEW_ARBITER, OLD_ARBITER])
def test_monitor_of_a_job_asks_either_arbiter(site: Site, arbiter: Path) -> None:
    """A program without CUDA: the job's NVML registers by itself, and sees what the job's other process holds."""
    site.serve(arbiter)
    site.job(OFFLINE, SHIMS["old"], "--length", "60", "--no-sync-each=64", "--memory", "2GiB")
    site.works(OFFLINE, "offline works")
    fd = a.sealed(abi.pack_grant(site.grants[OFFLINE]))
    env = site.node.env | {"LD_PRELOAD": str(NVML_SHIM), "QGPU_GRANT_FD": str(fd)}
    done = subprocess.run(
        [sys.executable, "-c", MONITOR], env=env, pass_fds=[fd], capture_output=True, text=True, check=False
    )
    os.close(fd)
    assert done.returncode == 0, done.stderr
    total, used = json.loads(done.stdout)
    assert total == 8 * s.GIB
    assert 2 * s.GIB <= used < 3 * s.GIB, "what a process without pages would not know"


def test_new_shim_starts_under_the_old_arbiter(site: Site) -> None:
    """As after an upgrade whose arbiter was not restarted yet; the card is shared with a job of the old shim."""
    site.serve(OLD_ARBITER, grace_ms=0)
    first = site.job(OFFLINE, SHIMS["old"], "--length", "2", "--no-sync-each=32")
    second = site.job(OFFLINE2, SHIMS["new"], "--length", "2", "--no-sync-each=32")
    shared_by_weight(first, second)
    refused_at_cap(site, SHIMS["new"])


def test_both_shims_share_a_card_under_the_new_arbiter(site: Site) -> None:
    site.serve(NEW_ARBITER, grace_ms=0)
    first = site.job(OFFLINE, SHIMS["new"], "--length", "2", "--no-sync-each=32")
    second = site.job(OFFLINE2, SHIMS["old"], "--length", "2", "--no-sync-each=32")
    a.wait_for(
        lambda: stats(site.arbiter)[OFFLINE].launches and stats(site.arbiter)[OFFLINE2].launches, "both work"
    )
    shared_by_weight(first, second)


def test_memory_holds_while_no_arbiter_is_there(site: Site) -> None:
    site.serve(NEW_ARBITER)
    site.job(OFFLINE2, SHIMS["new"], "--length", "60", "--no-sync-each=64", "--memory", "6GiB")
    a.wait_for(lambda: stats(site.arbiter)[OFFLINE2].mem_used == 6 * s.GIB, "it holds 6 of 8 GiB")
    site.serve(OLD_ARBITER, signal.SIGKILL)
    a.wait_for(lambda: stats(site.arbiter)[OFFLINE2].mem_used == 6 * s.GIB, "known to the successor")
    late = site.job(OFFLINE2, SHIMS["new"], "--requests", "2", "--alloc-past", "4GiB")
    error = late.communicate(timeout=60)[1]
    assert "refused: job 3 holds" in error, "two processes of a job share one cap under either arbiter"


def test_link_speaks_both_versions(site: Site) -> None:
    """qgpud is newer than the arbiter: everything of version 1 works, and the rest says that it is not there."""
    uuid = site.node.uuid
    site.serve(OLD_ARBITER)
    with ArbiterLink(site.arbiter.run_dir) as link:
        link.card(CardSettings(uuid, ungoverned_online=True))
        assert link.version == 1
        assert link.processes() == [] and {t.job_id for t in link.stats()} == set(site.grants)
        link.overhead(OFFLINE, uuid, 5)
        link.gone(OFFLINE, uuid, 5)
        with DeathWatch(site.arbiter.run_dir) as watch:
            assert watch.died() == []
        boot = link.boot_id
        site.serve(NEW_ARBITER)
        link.close()
        assert link.hello() != boot and link.version == 2
        link.overhead(OFFLINE, uuid, 5)
        assert next(t for t in link.stats() if t.job_id == OFFLINE).mem_extra == 5


def test_old_qgpud_is_answered_in_its_version(site: Site) -> None:
    """Its messages have version 1, and its list of tenants the length of that version."""
    import socket

    site.serve(NEW_ARBITER)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        sock.settimeout(10)
        sock.connect(str(site.arbiter.run_dir / abi.SOCK_CONTROL))
        sock.send(bytes(abi.MsgHead(abi.MAGIC, 1, abi.CTL_STATS, 16)))
        for _ in site.grants:
            data = sock.recv(4096)
            head = abi.MsgHead.from_buffer_copy(data)
            assert (head.version, head.type, head.size, len(data)) == (1, abi.CTL_TENANT, 216, 216)
        assert abi.CtlAck.from_buffer_copy(sock.recv(4096)).head.version == 1
        sock.send(bytes(abi.MsgHead(abi.MAGIC, 1, abi.CTL_PROCS, 16)))
        assert abi.CtlAck.from_buffer_copy(sock.recv(4096)).status == 71, "EPROTO: not of version 1"
