"""Hardware preemption with all parts in place: unchanged programs under the real shim, the real
arbiter, the simulated control device. Arbiter and jobs are killed while groups stand still.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import arbiter_support as a
import pytest
import shim_support as s
import sim_tools
from hardware_support import Node, Program, node

from enforcer.wire import abi
from gres.grant.store import Grant, GrantCard

pytestmark = pytest.mark.native
LONG_US = 300_000
SHIM_NOHW = s.BUILD / "test/shim-nohw/libcuda.so.1"  # make HW=0
SERVE = """
import ctypes as c, json, sys
from sim_client import Cuda
cuda = Cuda()
def running():
    status = cuda.raw("cuStreamQuery", None)
    assert status in (0, 600), status
    return status == 600
for line in sys.stdin:
    try:
        answer = eval(line)
    except SyntaxError:
        answer = exec(line, globals())
    print(json.dumps(answer), flush=True)
"""


class Governed(Program):
    """A program with a context, under the shim, as a task of the job."""

    def __init__(self, here: Node, job: int, kind: str, shim: Path = s.SHIM) -> None:
        self.proof = a.sealed(abi.pack_grant(grant(here, job, kind)))
        env = sim_tools.client_env(here.sim, QGPU_GRANT_FD=str(self.proof), LD_PRELOAD=str(shim))
        self.process = subprocess.Popen(
            [sys.executable, "-c", SERVE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=env,
            pass_fds=[self.proof],
        )
        os.close(self.proof)
        here.programs.append(self)
        assert self.ask("1") == 1


def grant(here: Node, job: int, kind: str) -> Grant:
    cards = tuple(
        GrantCard(uuid, i, i, 50, 8 * a.GIB, 80 * a.GIB) for i, uuid in enumerate(here.cards)
    )
    driver, run_dir = str(s.BUILD / "sim/libcuda.so.1"), str(here.arbiter.run_dir)
    return Grant(
        job_id=job,
        uid=os.getuid(),
        gid=os.getgid(),
        node="n1",
        state="active",
        job_class=kind,  # type: ignore[arg-type]
        cards=cards,
        run_dir=run_dir,
        driver_path=driver,
        shim_path=str(s.SHIM),
    )


def serve(here: Node) -> None:
    """What qgpud tells an arbiter that has just started."""
    here.link.close()
    jobs = [grant(here, 1, "online"), grant(here, 2, "offline")]
    # the lease is short, so that a shim soon stops to wait for an arbiter that is gone
    here.link.sync(
        [a.settings(u, idle_release_ms=50, grace_ms=0, lease_ms=2000) for u in here.cards], jobs
    )
    here.hardware()


def keeps_running(program: Program, seconds: float) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if not program.ask("running()"):
            return False
        time.sleep(0.01)
    return True


def stopped(here: Node) -> tuple[Governed, Governed]:
    """An online job at work, and an offline one whose kernel stands still."""
    serve(here)
    offline, online = Governed(here, 2, "offline"), Governed(here, 1, "online")
    here.becomes(2, "ready")
    offline.ask(f"cuda.launch({LONG_US})")
    # answered when the last one is in flight
    online.send("[cuda.launch(20000) for _ in range(100)]")
    here.becomes(2, "stopped")
    return online, offline


def ends(program: Program) -> None:
    a.wait_for(lambda: not program.ask("running()"), "the kernel ends")


def finishes(online: Program) -> None:
    """It has launched all that it wanted to, and that has ended."""
    online.answer(60)
    ends(online)


def test_a_kernel_stands_still_while_online_works(tmp_path: Path) -> None:
    with node(tmp_path) as here:
        online, offline = stopped(here)
        assert keeps_running(offline, 2 * LONG_US / 1e6)
        finishes(online)
        here.becomes(2, "ready")
        ends(offline)
        tenant = here.tenant(2)
        assert tenant.failures == 0 and tenant.stops == tenant.continues >= 1


def test_a_shim_built_without_it_has_the_gate_and_reports_no_groups(tmp_path: Path) -> None:
    with node(tmp_path) as here:
        serve(here)
        offline, online = Governed(here, 2, "offline", SHIM_NOHW), Governed(here, 1, "online")
        online.send("[cuda.launch(20000) for _ in range(100)]")
        a.wait_for(
            lambda: a.tenant_stats(here.link, 2, here.cards[0]).gate & abi.GATE_CLOSED,
            "the gate of job 2 closes",
        )
        offline.send("cuda.launch(1000)")
        finishes(online)
        offline.answer(60)
        ends(offline)
        tenant = here.tenant(2)
        assert (tenant.state, tenant.stops, tenant.failures) == ("none", 0, 0)


def test_the_shim_continues_when_the_arbiter_was_killed(tmp_path: Path) -> None:
    with node(tmp_path) as here:
        online, offline = stopped(here)
        here.arbiter.stop(signal.SIGKILL)
        ends(offline)
        here.arbiter.start()
        serve(here)
        a.wait_for(lambda: len(here.link.processes()) == 2, "both registered again")
        a.wait_for(
            lambda: here.tenant(2).state in ("ready", "stopped"), "its groups are told again"
        )
        finishes(online)
        offline.ask("cuda.launch(1000)", 60)
        ends(offline)
        assert here.tenant(2).failures == 0


def test_a_job_that_is_killed_while_it_stands_still_leaves_nothing(tmp_path: Path) -> None:
    with node(tmp_path) as here:
        online, offline = stopped(here)
        offline.kill()
        a.wait_for(lambda: here.descriptors() == 0, "its descriptor is closed")
        assert [p.job_id for p in here.link.processes()] == [1]
        finishes(online)
        again = Governed(here, 2, "offline")
        here.becomes(2, "ready")
        again.ask("cuda.launch(1000)")
        ends(again)


def test_a_context_can_be_destroyed_while_it_stands_still(tmp_path: Path) -> None:
    with node(tmp_path) as here:
        online, offline = stopped(here)
        offline.send("cuda.call('cuDevicePrimaryCtxReset_v2', 0)")
        offline.answer(60)
        finishes(online)
        assert here.tenant(2).state != "failed", here.tenant(2)


def test_the_end_of_a_program_is_not_held_up(tmp_path: Path) -> None:
    with node(tmp_path) as here:
        _, offline = stopped(here)
        assert offline.process.stdin
        offline.process.stdin.close()
        offline.process.stdin = None
        assert offline.process.wait(60) == 0
        assert here.tenant(2).state != "failed", here.tenant(2)


def test_switched_on_while_jobs_run(tmp_path: Path) -> None:
    with node(tmp_path) as here:
        serve(here)
        here.hardware(enabled=False)
        Governed(here, 2, "offline")
        a.wait_for(lambda: len(here.link.processes()) == 1, "it registers")
        assert here.tenant(2).state == "none"
        here.hardware()
        here.becomes(2, "ready")
