"""fixed-share without an arbiter: no tenant launches beyond the budget of its open gate."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from bench.harness.node import MIB, Rig, wait_for
from enforcer.wire import abi
from simulator.sim import busy_ns

pytestmark = [
    pytest.mark.native,
    pytest.mark.skipif(os.getuid() != 0, reason="needs root: sealed grants"),
]
JOB, SHARE = 1, 30
ENDLESS = ("--length", "600", "--iters", "200000", "--no-sync-each=16")


def open_now(rig: Rig) -> bool:
    tenant = next(t for t in rig.link.stats() if t.job_id == JOB)
    return tenant.launches > 500 and not tenant.gate & abi.GATE_CLOSED


def stopped(rig: Rig, seconds: float) -> tuple[int, int]:
    """The arbiter stands still for so long, from a moment on in which the gate is open: from
    when to when.
    """
    wait_for("an open gate", lambda: open_now(rig))
    rig.arbiter.send_signal(signal.SIGSTOP)
    begun = time.monotonic_ns()
    time.sleep(seconds)
    over = time.monotonic_ns()
    rig.arbiter.send_signal(signal.SIGCONT)
    return begun, over


def used_ms(tmp_path: Path, policy: str, share: int, seconds: float, times: int) -> list[float]:
    """What the tenant executed in each of these times, in ms, but for those that the machine
    made longer.
    """
    with Rig(tmp_path, settings={"policy_offline": policy}) as rig:
        grant = rig.grant(JOB, "offline", share, mem_mib=1024)
        program = rig.workload(grant, *ENDLESS, "--memory", f"{MIB}")
        fair: list[tuple[int, int]] = []
        for _ in range(6 * times):
            if len(fair) == times:
                break
            begun, over = stopped(rig, seconds)
            if over - begun < 1.1e9 * seconds:
                fair.append((begun, over))
            now = next(t for t in rig.link.stats() if t.job_id == JOB).launches
            wait_for(
                "it goes on",
                lambda n=now: open_now(rig) and rig.link.stats()[0].launches > n + 200,
                10,
            )
        time.sleep(0.15)  # the trace is flushed each 0.1 s
        trace = rig.trace()
        used = [busy_ns(trace, *span).get(program.pid, 0) / 1e6 for span in fair]
        program.kill()
        program.communicate()
    return used


def test_a_limit_holds_while_the_arbiter_is_late(tmp_path: Path) -> None:
    """Of 80 ms no more than one turn is used, which a full budget of 50 ms allows at most.

    Once in six times a busy machine may hold up the program between its check of the gate and its
    launch.
    """
    used = sorted(used_ms(tmp_path, "fixed-share", SHARE, 0.08, 6))
    assert used[-2] < 60 and used[0] < 40, used


def test_without_a_limit_no_launch_waits_for_a_late_arbiter(tmp_path: Path) -> None:
    """The control of the test above."""
    used = used_ms(tmp_path, "burst-share", SHARE, 0.08, 4)
    assert max(used) > 65, used


def test_an_absent_arbiter_stops_no_tenant_for_long(tmp_path: Path) -> None:
    """Of some times: the gate may close just before the arbiter is stopped."""
    used = used_ms(tmp_path, "fixed-share", SHARE, 0.5, 5)
    assert max(used) > 250, used
