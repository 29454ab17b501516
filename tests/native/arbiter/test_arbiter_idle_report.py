"""Online's word about the end of its work: never believed against what the arbiter saw, and
never for later work.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from arbiter_support import Arbiter, Tenant, arbiter, grant, settings, wait_for

pytestmark = pytest.mark.native
RELEASE_NS = 100_000_000
LOOKED_LATE_NS = 80_000_000


@contextlib.contextmanager
def two_tenants(tmp_path: Path) -> Iterator[tuple[Arbiter, Tenant, Tenant]]:
    """An arbiter, an online tenant that rests, and an offline one whose gate is open."""
    on, off = grant(1, "online"), grant(2, "offline")
    with arbiter(tmp_path) as one, one.link() as link:
        link.sync([settings()], [on, off])
        online, offline = Tenant(one.run_dir, on), Tenant(one.run_dir, off)
        wait_for(lambda: not offline.closed, "offline may run")
        yield one, online, offline


def tell(online: Tenant) -> int:
    """What the shim does when a call comes back that had waited for the last work."""
    online.slot.idle_ns = told = time.monotonic_ns()
    online.slot.idle_launches = online.slot.launches
    return told


def released_ns(offline: Tenant, changes: int) -> int:
    """When offline's gate opened, after so many changes of it."""
    wait_for(lambda: offline.gate.changes >= changes and not offline.closed, "offline released")
    return int(offline.gate.changed_ns)


@pytest.mark.parametrize("told", [True, False])
def test_brief_work_counts_despite_an_earlier_report(tmp_path: Path, told: bool) -> None:
    with two_tenants(tmp_path) as (_one, online, offline):
        for _ in range(4):
            before = offline.gate.changes
            assert online.begin()
            wait_for(lambda: offline.closed, "offline closed by the online launch")
            online.finish()
            since = tell(online)
            assert released_ns(offline, before + 2) - since >= RELEASE_NS
            before, since = offline.gate.changes, time.monotonic_ns()
            assert online.begin()
            online.finish()  # over before anybody looks, as a rule: the arbiter may see it at once
            if told:
                tell(online)
            assert released_ns(offline, before + 2) - since >= RELEASE_NS, (
                "counted from what was told before"
            )


@pytest.mark.parametrize("told", [True, False])
def test_a_reported_end_counts_rather_than_the_sample_that_finds_it(
    tmp_path: Path, told: bool
) -> None:
    """The arbiter is kept from looking when the work ends, so that its look comes far later than
    its timers are.
    """
    with two_tenants(tmp_path) as (one, online, offline):
        before = offline.gate.changes
        assert online.begin()
        wait_for(lambda: offline.closed, "offline closed by the online launch")
        one.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, one.process.pid, os.WSTOPPED)  # none of its threads looks any more
        ended = time.monotonic_ns()
        online.finish()
        if told:
            ended = tell(online)
        time.sleep(LOOKED_LATE_NS / 1e9)
        looked = time.monotonic_ns()
        one.process.send_signal(signal.SIGCONT)
        released = released_ns(offline, before + 2)
    assert released - (ended if told else looked) >= RELEASE_NS
    assert not told or released - looked < RELEASE_NS, "counted from the look"
