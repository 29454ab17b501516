"""The shim with the real arbiter and the simulated driver: unchanged programs share one
simulated card.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import arbiter_support as a
import pytest
import shim_support as s

from enforcer.wire import abi
from enforcer.wire.link import ArbiterLink, TenantStats
from gres.grant.store import Grant, GrantCard

pytestmark = pytest.mark.native
SIM = s.BUILD / "sim" / "libcuda.so.1"
SIMGPU = s.BUILD / "bin" / "qgpu-simgpu"
WORKLOAD = s.BUILD / "bin" / "qgpu-workload"
ONLINE, OFFLINE, OFFLINE2 = 1, 2, 3


class Node:
    """A node of one simulated card."""

    def __init__(self, tmp_path: Path) -> None:
        self.sim = tmp_path / "sim"
        self.sim.mkdir()
        read, write = os.pipe()
        self.gpu = subprocess.Popen(
            [SIMGPU, "--dir", self.sim, "--node", "n1", "--ready-fd", str(write)],
            pass_fds=[write],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(write)
        assert os.read(read, 16), "the simulated card did not start"
        os.close(read)
        self.env = {"PATH": os.environ["PATH"], "QGPU_SIM_DIR": str(self.sim)}
        self.env["LD_LIBRARY_PATH"] = str(SIM.parent)
        self.uuid = self.alone("--requests", "1", "--iters", "1000")["uuid"]

    def alone(self, *args: str) -> dict[str, str]:
        """The summary of a workload without the shim."""
        done = subprocess.run(
            [WORKLOAD, "--json", *args], env=self.env, capture_output=True, text=True, check=True
        )
        return dict(json.loads(done.stdout.splitlines()[-1]))

    def grant(
        self, job: int, job_class: str, share: int, run_dir: Path, cap: int = 8 * s.GIB
    ) -> Grant:
        """A grant of this card."""
        return Grant(
            job_id=job,
            uid=os.getuid(),
            gid=os.getgid(),
            node="n1",
            state="active",
            job_class=job_class,  # type: ignore[arg-type]
            cards=(GrantCard(self.uuid, 0, 0, share, cap, 80 * s.GIB),),
            run_dir=str(run_dir),
            driver_path=str(SIM),
            shim_path=str(s.SHIM),
        )

    def start(self, grant: Grant, *args: str) -> subprocess.Popen[str]:
        """A workload as a task of the job."""
        fd = a.sealed(abi.pack_grant(grant))
        env = self.env | {"LD_PRELOAD": str(s.SHIM), "QGPU_GRANT_FD": str(fd)}
        process = subprocess.Popen(
            [WORKLOAD, "--json", "--iters", "100000", *args],
            env=env,
            pass_fds=[fd],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        os.close(fd)
        return process


def summary(process: subprocess.Popen[str]) -> tuple[dict[str, float], str]:
    """What a workload printed; fails if it did not end well."""
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, (process.returncode, out, err)
    return dict(json.loads(out.splitlines()[-1])), err


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    for product in (SIM, SIMGPU, WORKLOAD, a.ARBITER):
        if not product.exists():
            pytest.skip(f"{product.name} is not built")
    running = Node(tmp_path)
    yield running
    running.gpu.terminate()
    running.gpu.wait()


@contextlib.contextmanager
def governed(
    tmp_path: Path, node: Node, *jobs: tuple[int, str, int], **changes: int
) -> Iterator[tuple[a.Arbiter, list[Grant]]]:
    """An arbiter that knows the card, with these settings, and these (job, class, share)."""
    with a.arbiter(tmp_path) as arbiter:
        grants = [node.grant(*job, arbiter.run_dir) for job in jobs]
        tell(arbiter, node, grants, **changes)
        yield arbiter, grants


def tell(arbiter: a.Arbiter, node: Node, grants: list[Grant], **changes: int) -> None:
    """Gives the arbiter the full list."""
    with arbiter.link() as link:
        link.sync([a.settings(node.uuid, **changes)], grants)


def stats(arbiter: a.Arbiter) -> dict[int, TenantStats]:
    """Tenants by job."""
    with ArbiterLink(arbiter.run_dir, timeout=60) as link:
        return {tenant.job_id: tenant for tenant in link.stats()}


def test_solo_tenant_runs_as_without_us(tmp_path: Path, node: Node) -> None:
    with governed(tmp_path, node, (OFFLINE, "offline", 30)) as (arbiter, (grant,)):
        process = node.start(grant, "--requests", "2000", "--no-sync-each=64")
        result, error = summary(process)
        tenant = stats(arbiter)[OFFLINE]
    assert error == ""
    assert tenant.launches >= 2000
    assert 0.1 < tenant.busy_ns / 1e9 <= result["seconds"] * 1.3 + 0.2
    assert result["errors"] == 0


def test_cap_reaches_the_unchanged_program(tmp_path: Path, node: Node) -> None:
    with governed(tmp_path, node, (OFFLINE, "offline", 30)) as (arbiter, (grant,)):
        process = node.start(grant, "--requests", "10", "--alloc-past", "9GiB")
        _, error = summary(process)
        tenant = stats(arbiter)[OFFLINE]
    assert "refused: job 2 holds" in error
    assert error.count("qgpu: ") == 1
    assert 7 * s.GIB < tenant.mem_peak <= 8 * s.GIB
    assert tenant.mem_denied >= 1


def test_online_stops_offline_and_offline_comes_back(tmp_path: Path, node: Node) -> None:
    jobs = ((ONLINE, "online", 50), (OFFLINE, "offline", 50))
    # On a busy machine online may get no processor for the 100 ms after which it releases offline.
    never = {"idle_release_ms": 60_000}
    with governed(tmp_path, node, *jobs, **never) as (arbiter, (online, offline)):
        batch = node.start(offline, "--length", "600", "--no-sync-each=64")
        a.wait_for(lambda: stats(arbiter)[OFFLINE].launches > 100, "offline works")
        service = node.start(online, "--length", "600", "--no-sync-each=64")
        a.wait_for(lambda: stats(arbiter)[ONLINE].launches > 100, "online works")
        before = stats(arbiter)[OFFLINE].launches
        time.sleep(0.4)
        during = stats(arbiter)[OFFLINE].launches - before
        service.terminate()
        summary(service)
        tell(arbiter, node, [online, offline])
        stopped = stats(arbiter)[OFFLINE].launches
        a.wait_for(lambda: stats(arbiter)[OFFLINE].launches > stopped + 100, "offline resumes")
        batch.terminate()
        result, error = summary(batch)
        tenant = stats(arbiter)[OFFLINE]
    assert during <= 5, "offline gets nothing while online is busy"
    assert tenant.closed_preempted_ns > 4e8
    assert (result["errors"], error) == (0, "")


def test_window_holds_with_real_completion(tmp_path: Path, node: Node) -> None:
    """An idle online tenant puts offline into window mode; short kernels still get through."""
    jobs = ((ONLINE, "online", 50), (OFFLINE, "offline", 50))
    with governed(tmp_path, node, *jobs) as (arbiter, (online, offline)):
        service = node.start(online, "--requests", "2000", "--busy", "0.05", "--idle", "0.5")
        a.wait_for(lambda: stats(arbiter)[ONLINE].launches > 0, "online is registered")
        process = node.start(offline, "--length", "600", "--no-sync-each=64")
        a.wait_for(lambda: stats(arbiter)[OFFLINE].gate & s.WINDOW, "the window is set")
        before = stats(arbiter)[OFFLINE].launches
        a.wait_for(lambda: stats(arbiter)[OFFLINE].launches > before + 300, "kernels get through")
        process.terminate()
        result, error = summary(process)
        service.send_signal(signal.SIGKILL)
        service.communicate()
    assert (result["errors"], error) == (0, "")


def test_two_offline_tenants_share_by_weight(tmp_path: Path, node: Node) -> None:
    """Who has three times the share gets more; how near it comes is measured by the bench
    (shares).
    """
    jobs = ((OFFLINE, "offline", 60), (OFFLINE2, "offline", 20))
    with governed(tmp_path, node, *jobs) as (arbiter, grants):
        processes = [node.start(grant, "--length", "600", "--no-sync-each=32") for grant in grants]

        def weighed() -> bool:
            now = stats(arbiter)
            return now[OFFLINE].launches > 1.5 * now[OFFLINE2].launches > 1500

        a.wait_for(weighed, "the larger share launched more")
        for process in processes:
            process.terminate()
            assert summary(process)[0]["errors"] == 0


def test_jobs_survive_an_arbiter_that_is_killed(tmp_path: Path, node: Node) -> None:
    run_dir = tmp_path / "run"
    run_dir.mkdir(mode=0o755)
    arbiter = a.Arbiter(run_dir).start()
    grant = node.grant(OFFLINE, "offline", 50, run_dir)
    tell(arbiter, node, [grant])
    process = node.start(grant, "--length", "600", "--no-sync-each=64", "--memory", "2GiB")
    a.wait_for(lambda: stats(arbiter)[OFFLINE].launches > 100, "it works")
    arbiter.stop(signal.SIGKILL)
    arbiter.start()
    tell(arbiter, node, [grant])
    a.wait_for(lambda: stats(arbiter)[OFFLINE].procs == 1, "it registers again")
    assert stats(arbiter)[OFFLINE].mem_used == 2 * s.GIB
    a.wait_for(lambda: stats(arbiter)[OFFLINE].launches > 100, "it works again")
    process.terminate()
    result, error = summary(process)
    assert (result["errors"], error) == (0, "")
    arbiter.stop()
