"""What stays when the arbiter or qgpud starts again, and where no arbiter may start at all."""

from __future__ import annotations

import signal
import subprocess
import time
from pathlib import Path

import pytest
from arbiter_support import Arbiter, Tenant, arbiter, grant, settings, tenant_stats, wait_for

from enforcer.wire import abi
from enforcer.wire.link import ArbiterGone

pytestmark = pytest.mark.native


def test_restart_keeps_gates_and_offline_waits_for_online(tmp_path: Path) -> None:
    on, off = grant(1, "online"), grant(2)
    with arbiter(tmp_path) as one, one.link() as link:
        boot = link.sync([settings(grace_ms=5000)], [on, off])
        online, offline = Tenant(one.run_dir, on), Tenant(one.run_dir, off)
        assert online.begin()
        wait_for(lambda: offline.closed, "preempted")
        assert one.stop(signal.SIGKILL) == -signal.SIGKILL
        time.sleep(0.05)
        assert offline.closed and not online.closed, "gates stay as they are"
        with pytest.raises(ArbiterGone):
            link.stats()
        one.start()
        assert link.sync([settings(grace_ms=5000)], [on, off]) != boot
        back = Tenant(one.run_dir, off)
        assert back.closed and back.flags & abi.GATE_WHY_RECOVERY
        online_again = Tenant(one.run_dir, on)
        wait_for(lambda: not back.closed, "online came back idle: nothing to wait for", 3)
        assert not online_again.closed


def test_online_that_comes_back_has_time_to_show_its_work(tmp_path: Path) -> None:
    """When it registers nothing tells whether it is at work: it may stand between two launches."""
    on, off = grant(1, "online"), grant(2)
    with arbiter(tmp_path) as one, one.link() as link:
        link.sync([settings(grace_ms=60_000)], [on, off])
        offline = Tenant(one.run_dir, off)
        begin = time.monotonic_ns()
        online = Tenant(one.run_dir, on)
        wait_for(lambda: not offline.closed, "it shows no work, so offline runs in the end", 30)
        assert offline.gate.changed_ns - begin > 200_000_000, (
            "that was before its next launch could be seen"
        )
        assert not online.closed


def test_online_that_comes_back_shows_what_it_left_on_the_card(tmp_path: Path) -> None:
    """A shim that takes over new pages with work under way rings, and no launch is needed to see
    that work.
    """
    on, late, off = grant(1, "online"), grant(2, "online"), grant(3)
    with arbiter(tmp_path) as one, one.link() as link:
        link.sync([settings(grace_ms=60_000, idle_release_ms=60_000)], [on, late, off])
        offline = Tenant(one.run_dir, off)
        assert offline.flags & abi.GATE_WHY_RECOVERY

        def comes_back() -> bool:
            """Again where the machine stalls: such work is believed for 100 ms."""
            online = Tenant(one.run_dir, on)
            online.slot.unfenced = 1
            online.ring()
            return bool(offline.flags & abi.GATE_WHY_PREEMPTED)

        wait_for(comes_back, "offline waits for online's work, no longer for the other tenant")
        assert offline.closed and not offline.gate.changes


def test_recovery_ends_after_the_grace_time(tmp_path: Path) -> None:
    on, off = grant(1, "online"), grant(2)
    with arbiter(tmp_path) as one, one.link() as link:
        link.sync([settings(grace_ms=300)], [on, off])
        begin = time.monotonic()
        offline = Tenant(one.run_dir, off)
        assert offline.flags & abi.GATE_WHY_RECOVERY
        wait_for(lambda: not offline.closed, "online never came back")
        assert 0.2 < time.monotonic() - begin < 30


def test_daemon_restart_moves_no_gate(tmp_path: Path) -> None:
    on, off = grant(1, "online"), grant(2)
    with arbiter(tmp_path) as one:
        with one.link() as link:
            boot = link.sync([settings()], [on, off])
            online, offline = Tenant(one.run_dir, on), Tenant(one.run_dir, off)
            wait_for(lambda: not offline.closed, "open")
        changes = (online.gate.changes, offline.gate.changes)
        with one.link() as link:
            assert link.sync([settings()], [on, off]) == boot
            assert tenant_stats(link, 2).procs == 1
        assert (online.gate.changes, offline.gate.changes) == changes


def test_second_arbiter_in_the_same_directory_refuses(tmp_path: Path) -> None:
    with arbiter(tmp_path) as one:
        second = subprocess.run(
            [one.binary, "--run-dir", one.run_dir], capture_output=True, text=True, timeout=60
        )
        assert second.returncode == 1 and "another qgpu-arbiter serves" in second.stderr
        assert one.link().hello()


def test_run_dir_that_others_can_write_is_refused(tmp_path: Path) -> None:
    open_dir = tmp_path / "open"
    open_dir.mkdir()
    open_dir.chmod(0o777)
    link = tmp_path / "link"
    link.symlink_to(tmp_path)
    for bad in (open_dir, link):
        done = subprocess.run(
            [Arbiter(bad).binary, "--run-dir", bad], capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 1 and "no other user can write" in done.stderr
