"""MPS in a share: a server of the node's own is the job's, what only has its name is found."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from node_support import BUILD, end, until, work
from test_audit_hostile import audited, run, said

from enforcer.daemon.audit.mps import NAME
from simulator.sim import SimConfig, SimError, Simulator

MIB = 1 << 20
MPS = Path(__file__).parents[2] / "support/node/mps.py"
# A context, 64 MiB, and a kernel now and then.
QUIET = ("--memory", "64M", "--period", "1", "--duty", "0.1", "--length", "600", "--progress")
KERNELS = ("--memory", "64M", "--iters", "2000000", "--length", "600", "--progress")

pytestmark = [
    pytest.mark.native,
    pytest.mark.skipif(os.geteuid() != 0, reason="makes device nodes"),
    pytest.mark.timeout(180),
]


@pytest.fixture
def node(start, monkeypatch):
    """A node whose driver has a server of MPS."""
    chain = start()
    place = chain.directory / "driver"
    place.mkdir(mode=0o755)
    shutil.copy(chain.opt / "bin/qgpu-workload", place / NAME)
    monkeypatch.setenv("PATH", f"{place}:{os.environ['PATH']}")
    return chain


def mps(chain, server: Path, options: tuple[str, ...], name: str) -> subprocess.Popen[str]:
    """A job of 30 % and 1 GiB with a control daemon and one client."""
    pipes = chain.directory / name
    pipes.mkdir()
    words = f"{sys.executable} {MPS}"
    server_words = " ".join((str(server), *options))
    busy = ("--memory", "256M", "--period", "1", "--duty", "10", "--length", "600")
    client = " ".join(work(chain, *busy))
    script = (
        f"export CUDA_MPS_PIPE_DIRECTORY={pipes}; {words} control {server_words} & "
        f"{words} client {client} & echo $!; wait"
    )
    return run(chain, 30, "sh", "-c", script)


def listed_as_client(chain, job: subprocess.Popen[str]) -> None:
    """NVML lists the job's client as one of MPS."""
    pid = int(job.stdout.readline())
    fault = Simulator(SimConfig(chain.directory / "sim", "n1"), BUILD, chain.qgpud).control

    def told() -> bool:
        try:
            fault(f"list pid={pid} as=mps")
        except SimError:
            return False  # its context is still to come
        return True

    until(told)


def running(path: Path) -> list[int]:
    """The processes that run a file."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if os.path.samestat((process / "exe").stat(), path.stat()):
                found.append(int(process.name))
        except OSError:
            continue
    return found


def finish(chain, *jobs: subprocess.Popen[str]) -> None:
    for path in (chain.directory / "driver" / NAME, chain.directory / "own" / NAME):
        for pid in running(path) if path.exists() else ():
            os.kill(pid, 9)
    for job in jobs:
        subprocess.run(["pkill", "-9", "-P", str(job.pid)], check=False)  # its own children alone
        end(job)


def test_the_nodes_server_is_let_be_and_charged_and_another_of_that_name_is_killed(node):
    own = node.directory / "own"
    own.mkdir()
    shutil.copy(node.directory / "driver" / NAME, own / NAME)
    audited(node, "action: kill")
    job = mps(node, node.directory / "driver" / NAME, QUIET, "a")
    other = None
    try:
        listed_as_client(node, job)
        (server,) = running(node.directory / "driver" / NAME)
        charged = 364 * MIB  # a context of 300 MiB and what the server holds beside it
        # The server's by the audit, the client's own by its shim.

        def held(tenant) -> bool:
            by_audit, by_shim = tenant.mem_extra, tenant.mem_used
            return charged <= by_audit < 2 * charged and 556 * MIB <= by_shim < 600 * MIB

        until(lambda: any(held(t) for t in node.tenants()))
        (tenant,) = [t for t in node.tenants() if held(t)]
        other = mps(node, own / NAME, QUIET, "b")
        until(lambda: said(node, "audit-unregistered"))
        (line,) = said(node, "audit-unregistered")
        assert f"job={tenant.job_id} " not in line and "action=kill signalled=" in line
        until(lambda: not running(own / NAME))
        # The first server was there in all the samples that the other one needed.
        assert running(node.directory / "driver" / NAME) == [server]
    finally:
        finish(node, job, *([other] if other else []))


def test_kernels_of_a_server_beyond_what_its_clients_booked_are_found(node):
    audited(node, "action: log, busy_window: 4s")
    job = mps(node, node.directory / "driver" / NAME, KERNELS, "a")
    try:
        until(lambda: said(node, "audit-busy"))
        (line,) = said(node, "audit-busy")
        told, booked = (
            int(re.search(rf"{word}_percent=(\d+)", line)[1]) for word in ("busy", "booked")
        )
        assert told > booked + 4
        assert not said(node, "audit-unregistered")
    finally:
        finish(node, job)
