"""How long before its turn work stands on the card, where an online tenant may come: in the whole chain."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bench.rig import Rig
from bench.scene import kernels
from enforcer import evaluate as ev

pytestmark = [pytest.mark.native, pytest.mark.skipif(os.getuid() != 0, reason="needs root: sealed grants")]
ONLINE, OFFLINE = 1, 2
LEARNING, COUNTED = 200, 1200  # kernels
AHEAD_US = 300.0  # 40 by the rules, and what a thread is early or late


@pytest.mark.parametrize("kernel_us, pause_us", [(1000, 800), (2000, 1700)])
def test_what_a_program_queues_between_pieces_of_other_work_does_not_come_sooner_and_sooner(
    tmp_path: Path, kernel_us: int, pause_us: int
) -> None:
    """Nobody looks when its kernels end, and what is guessed of one end is built upon for the next."""
    with Rig(tmp_path) as node:
        node.grant(ONLINE, "online")
        grant = node.grant(OFFLINE, "offline")
        pauses = ("--no-sync-each=1000000", "--gap", f"{pause_us / 1e6:g}")
        process = node.workload(grant, *kernels(kernel_us), *pauses, "--requests", str(LEARNING + COUNTED))
        node.summary(process)
        spans = sorted(span for span in node.trace() if span.pid == process.pid)
    ahead = [(span.t_start - span.t_submit) / 1e3 for span in spans][LEARNING:]
    assert len(ahead) >= COUNTED
    assert ev.percentile(ahead, 90) < AHEAD_US
