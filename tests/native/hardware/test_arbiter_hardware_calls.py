"""What the arbiter calls, as the control device saw it: a fixed list of commands, the tenant's
own groups, in order.
"""

from __future__ import annotations

from pathlib import Path

import arbiter_support as a
import pytest
import sim_rm
from hardware_support import Node, node
from test_arbiter_hardware import LONG_US, ends

from simulator.simcontrol import ControlCall, acts, read_control_log, trespasses

pytestmark = pytest.mark.native
ALLOWED = {
    sim_rm.HANDLE_INFO,
    sim_rm.GET_GID,
    sim_rm.GET_TIMESLICE,
    sim_rm.SET_TIMESLICE,
    sim_rm.SCHEDULE,
    sim_rm.PREEMPT,
    sim_rm.DISABLE,
}


def calls(here: Node, log: Path) -> list[ControlCall]:
    """Of the arbiter."""
    return [call for call in read_control_log(log) if call.pid == here.arbiter.process.pid]


@pytest.mark.parametrize("method", ["schedule", "disable", "timeslice"])
def test_only_commands_of_the_list_and_only_own_handles(tmp_path: Path, method: str) -> None:
    log = tmp_path / "control.log"
    with node(tmp_path, extra=("--control-log", str(log))) as here:
        here.sync((1, "online"), (2, "offline"), (3, "offline"))
        here.hardware(method=method)
        offline, idle, online = here.job(2), here.job(3), here.job(1, "online", tell=False)
        here.becomes(2, "ready")
        here.becomes(3, "ready")
        offline.ask(f"peer.work({LONG_US})")
        begun = len(calls(here, log))
        online.ask("peer.tenant.begin() and peer.tenant.ring()")
        here.becomes(2, "stopped")
        online.ask("peer.tenant.finish()")
        here.becomes(2, "ready")
        ends(offline)
        made = calls(here, log)
        assert {call.call for call in made} == {"control"}
        assert {call.cmd for call in made} <= ALLOWED and not any(call.status for call in made)
        assert not [
            call
            for call in trespasses(read_control_log(log))
            if call.pid == here.arbiter.process.pid
        ]
        acted = acts(made[begun:])
        assert acted and {call.owner for call in acted} == {offline.pid}, (
            "who is idle, or online, is left alone"
        )
        groups, channels = offline.ask("peer.groups"), offline.ask("[h for h, _ in peer.channels]")
        client, subdevice = offline.ask("peer.client"), offline.ask("peer.subdevice")
        assert {call.client for call in acted} == {client}
        objects = {call.object for call in acted}
        assert objects <= {*groups, subdevice}  # type: ignore[misc]
        named = {pair for call in acted for pair in call.channels}
        assert named <= {(client, channel) for channel in channels}  # type: ignore[attr-defined]
        assert bool(named) == (method == "disable")
        idle.ask("1")


def test_compute_is_stopped_before_copies_and_continued_once(tmp_path: Path) -> None:
    log = tmp_path / "control.log"
    with node(tmp_path, extra=("--control-log", str(log))) as here:
        here.sync((1, "online"), (2, "offline"))
        here.hardware(method="schedule")
        offline, online = here.job(2), here.job(1, "online", tell=False)
        here.becomes(2, "ready")
        offline.ask(f"peer.work({LONG_US})")
        begun = len(calls(here, log))
        online.ask("peer.tenant.begin() and peer.tenant.ring()")
        here.becomes(2, "stopped")
        online.ask("peer.tenant.finish()")
        here.becomes(2, "ready")
        ends(offline)
        graphics, *copies = offline.ask("peer.groups")  # type: ignore[misc]
        done = [(call.name, call.object, call.params[0]) for call in acts(calls(here, log)[begun:])]
        off = [("schedule", group, 0) for group in copies]
        assert done[:2] == [("schedule", graphics, 0), ("preempt", graphics, 1)]
        assert done[2:4] == off and [name for name, *_ in done[4:6]] == ["preempt", "preempt"]
        assert done[6:] == [("schedule", group, 1) for group in (graphics, *copies)]


def test_however_quickly_gates_move_every_group_ends_up_running(tmp_path: Path) -> None:
    log = tmp_path / "control.log"
    with node(tmp_path, extra=("--control-log", str(log), "--control-us", "500")) as here:
        here.sync((1, "online"), (2, "offline"), idle_release_ms=1)
        here.hardware(method="schedule")
        offline, online = here.job(2), here.job(1, "online", tell=False)
        here.becomes(2, "ready")
        offline.ask("peer.work(400000)")
        for _ in range(150):
            online.ask("peer.tenant.begin() and peer.tenant.ring()")
            online.ask("peer.tenant.finish()")
        ends(offline)
        ready = here.becomes(2, "ready")
        a.wait_for(
            lambda: here.tenant(2).stops == here.tenant(2).continues, "the last stop was undone"
        )
        assert ready.stops > 0
        last = {call.object: call.params[0] for call in calls(here, log) if call.name == "schedule"}
        assert set(last.values()) == {1}
