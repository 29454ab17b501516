"""Real programs that hold a turn and do nothing with it: others work on, and they have their
turns again after.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from bench.harness.node import Rig, wait_for
from bench.harness.scene import endless
from enforcer.wire.link import TenantStats

pytestmark = [
    pytest.mark.native,
    pytest.mark.skipif(os.getuid() != 0, reason="needs root: sealed grants"),
]
ODD, OTHER = 1, 2
STOPPED = "stopped"


def stats(node: Rig, job: int) -> TenantStats:
    return next(s for s in node.link.stats() if s.job_id == job)


def works(node: Rig, job: int, what: str) -> None:
    """It launches on."""
    before = stats(node, job).launches
    wait_for(what, lambda: stats(node, job).launches > before + 500)


def bring_to_rest(node: Rig, pid: int, way: str) -> None:
    """By a signal, or by a driver call of this name that does not return."""
    if way == STOPPED:
        os.kill(pid, signal.SIGSTOP)
    else:
        node.fault(f"block call={way} pid={pid}")


def let_go_on(node: Rig, pid: int, way: str) -> None:
    if way == STOPPED:
        os.kill(pid, signal.SIGCONT)
    else:
        node.fault(f"clear pid={pid}")


def rests(node: Rig, way: str) -> bool:
    """A call is no work; of who is stopped at the gate the arbiter knows after a while."""
    found = stats(node, ODD)
    return not found.busy or (way == STOPPED and found.passed_over)


@pytest.mark.parametrize("way", ["cuLaunchKernel", "cuStreamWriteValue32", "cuEventQuery", STOPPED])
def test_who_does_nothing_is_passed_over_and_comes_back(tmp_path: Path, way: str) -> None:
    with Rig(tmp_path) as node:
        odd, _other = (
            node.workload(node.grant(job, "offline"), *endless(200), "--length", "600")
            for job in (ODD, OTHER)
        )
        works(node, ODD, "its turns")
        wait_for("turns", lambda: stats(node, OTHER).closed_share_ns > 0)
        bring_to_rest(node, odd.pid, way)
        wait_for("it is known to do nothing", lambda: rests(node, way))
        works(node, OTHER, "the other one's work")
        wait_for("it is still known", lambda: rests(node, way))
        let_go_on(node, odd.pid, way)
        works(node, ODD, "its turns again")
