"""How long before its turn work stands on the card, where an online tenant may come: in the whole chain."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest

from bench.rig import Rig, wait_for
from bench.scene import kernels
from enforcer import evaluate as ev

pytestmark = [pytest.mark.native, pytest.mark.skipif(os.getuid() != 0, reason="needs root: sealed grants")]
ONLINE, OFFLINE = 1, 2
LEARNING, COUNTED = 200, 1200  # kernels
STALL_NS = 200_000_000  # for certain over
AHEAD_US = 300.0  # 40 by the rules, and what a thread is early or late


def queues(node: Rig, kernel_us: int, pause_us: int) -> subprocess.Popen[str]:
    """A program that launches without ever waiting, and does something else between, where online may come."""
    node.grant(ONLINE, "online")
    options = (
        "--no-sync-each=1000000",
        "--gap",
        f"{pause_us / 1e6:g}",
        "--requests",
        str(LEARNING + COUNTED),
    )
    return node.workload(node.grant(OFFLINE, "offline"), *kernels(kernel_us), *options)


def ahead_us(node: Rig, pid: int, since_ns: int = 0) -> list[float]:
    """How long each kernel that was launched since then stood on the card before it began."""
    spans = sorted(span for span in node.trace() if span.pid == pid and span.t_submit >= since_ns)
    return [(span.t_start - span.t_submit) / 1e3 for span in spans]


@pytest.mark.parametrize("kernel_us, pause_us", [(1000, 800), (2000, 1700)])
def test_what_a_program_queues_between_pieces_of_other_work_does_not_come_sooner_and_sooner(
    tmp_path: Path, kernel_us: int, pause_us: int
) -> None:
    """Nobody looks when its kernels end, and what is guessed of one end is built upon for the next."""
    with Rig(tmp_path) as node:
        process = queues(node, kernel_us, pause_us)
        node.summary(process)
        ahead = ahead_us(node, process.pid)[LEARNING:]
    assert len(ahead) >= COUNTED
    assert ev.percentile(ahead, 90) < AHEAD_US


@pytest.mark.parametrize("kernel_us, pause_us", [(1000, 0), (1000, 800), (2000, 1700)])
def test_one_call_that_stalled_does_not_bring_all_that_follows_too_soon(
    tmp_path: Path, kernel_us: int, pause_us: int
) -> None:
    """It lasted 50 ms more than its estimate, and the next end is not looked for where that says."""
    with Rig(tmp_path) as node:
        process = queues(node, kernel_us, pause_us)
        wait_for("it is known", lambda: max(t.launches for t in node.link.stats()) >= LEARNING)
        node.fault(f"delay call=cuLaunchKernel us=50000 times=1 pid={process.pid}")
        begun = time.monotonic_ns()
        node.summary(process)
        ahead = ahead_us(node, process.pid, begun + STALL_NS)
    assert len(ahead) > COUNTED / 2
    assert ev.percentile(ahead, 90) < AHEAD_US
