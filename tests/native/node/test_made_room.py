"""A program whose job ended makes room for another job: its gate stays closed, under the shim."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import arbiter_support as a
import pytest
import shim_support as s
from test_shim_stack import OFFLINE, Node, node, stats, summary

from enforcer.wire.link import CardSettings
from simulator.policy_layout import MAX_TENANTS

pytestmark = pytest.mark.native
__all__ = ["node"]
LEASE_MS = 200


def test_a_program_that_made_room_waits_beyond_its_lease_and_goes_on_with_a_grant(
    tmp_path: Path, node: Node
) -> None:
    """It keeps a page without a heartbeat, which must not let it go on after the lease."""
    with a.arbiter(tmp_path) as one, one.link() as link:
        mine = node.grant(OFFLINE, "offline", 50, one.run_dir, 8 * s.GIB)
        link.sync([CardSettings(node.uuid, grace_ms=300, lease_ms=LEASE_MS)], [mine])
        process = node.start(mine, "--requests", "10000")  # two seconds of work
        a.wait_for(lambda: stats(one)[OFFLINE].launches > 10, "it works")
        process.send_signal(signal.SIGSTOP)  # else it may end before it has lost its place
        link.revoke(OFFLINE)
        others = range(100, 100 + MAX_TENANTS)
        for job in others:
            link.grant(node.grant(job, "offline", 1, one.run_dir, s.GIB))
        assert OFFLINE not in stats(one)
        process.send_signal(signal.SIGCONT)
        a.wait_for(lambda: "has no grant on card" in one.log.read_text(), "it asks and hears it")
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(20 * LEASE_MS / 1000)
        link.revoke(others[0])
        link.grant(mine)
        summary(process)
