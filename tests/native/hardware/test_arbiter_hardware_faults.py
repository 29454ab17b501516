"""Hardware preemption when something is wrong: the driver refuses or hangs, handles vanish, the
shim has to act.
"""

from __future__ import annotations

import errno
import time
from pathlib import Path

import arbiter_support as a
import pytest
from hardware_support import Node, Program, node
from test_arbiter_hardware import LONG_US, ends, prepared, runs_on

from enforcer.wire import abi
from enforcer.wire.link import ArbiterError, HardwareSettings

pytestmark = pytest.mark.native


def fault(here: Node, text: str) -> None:
    """Of calls that the arbiter makes, not of those of the programs."""
    here.sim.control(f"{text} pid={here.arbiter.process.pid}")


def failed(here: Node, job: int, why: str) -> None:
    """The tenant is left to its gate, with one line in the log, and nothing of it is kept."""
    a.wait_for(lambda: here.tenant(job).state == "failed", f"job {job} fails")
    tenant = here.tenant(job)
    assert why in tenant.why and tenant.failures >= 1, tenant
    lines = [
        line
        for line in here.log().splitlines()
        if f"job {job} is not stopped by hardware any more" in line
    ]
    assert len(lines) == 1 and why in lines[0], lines
    a.wait_for(lambda: here.descriptors() == 0, "its descriptor is closed")


def closed_by(online: Program, offline: Program) -> None:
    """Online works, and the gate of offline is closed for it."""
    online.ask("peer.tenant.begin() and peer.tenant.ring()")
    a.wait_for(lambda: offline.ask("peer.tenant.closed"), "the gate of offline is closed")


def test_a_refused_stop_leaves_the_tenant_to_its_gate(tmp_path: Path) -> None:
    with node(tmp_path) as here:
        online, offline = prepared(here)
        fault(here, "error call=rm.preempt code=0x65")
        offline.ask(f"peer.work({LONG_US})")
        closed_by(online, offline)
        failed(here, 2, "refused to stop")
        ends(offline)  # the group that was stopped before the refusal goes on
        assert here.tenant(2).last_status == 0x65
        offline.ask("peer.tell()")
        a.wait_for(lambda: here.descriptors() == 0, "nothing is kept of a tenant that failed")
        assert here.tenant(2).state == "failed"
        offline.kill()
        here.sim.control("clear")
        here.job(2)
        here.becomes(2, "ready")  # the next process gets another chance


def test_auto_takes_the_first_method_that_passes(tmp_path: Path) -> None:
    with node(tmp_path) as here:
        here.sync((1, "online"), (2, "offline"))
        here.hardware()
        fault(here, "error call=rm.schedule code=0x56")
        offline, online = here.job(2), here.job(1, "online", tell=False)
        assert here.becomes(2, "ready").method == "disable"
        offline.ask(f"peer.work({LONG_US})")
        online.ask("peer.tenant.begin() and peer.tenant.ring()")
        here.becomes(2, "stopped")
        assert runs_on(offline)
        online.ask("peer.tenant.finish()")
        ends(offline)


def test_where_the_arbiter_cannot_act_the_process_is_asked_to(tmp_path: Path) -> None:
    with node(tmp_path) as here:
        here.sync((1, "online"), (2, "offline"))
        here.hardware()
        # "not your client": no passed descriptors here
        fault(here, "error call=rm.control code=0x23")
        online, offline = here.job(1, "online", tell=False), here.job(2)
        order = offline.ask("peer.order()")
        assert (order["action"], order["method"]) == (abi.ACT_CONTINUE, abi.HW_SCHEDULE)  # type: ignore[index]
        offline.ask(f"peer.acted({order}, status=0x56, do=False)")
        order = offline.ask("peer.order()")
        assert (order["action"], order["method"]) == (abi.ACT_CONTINUE, abi.HW_DISABLE)  # type: ignore[index]
        offline.ask(f"peer.acted({order})")
        ready = here.becomes(2, "ready")
        assert (ready.actor, ready.method) == ("shim", "disable")
        offline.ask(f"peer.work({LONG_US})")
        online.ask("peer.tenant.begin() and peer.tenant.ring()")
        stop = offline.ask("peer.order()")
        assert (stop["action"], stop["serial"] > order["serial"]) == (abi.ACT_STOP, True)  # type: ignore[index]
        assert here.tenant(2).state == "ready", "it is not stopped before it says so"
        offline.ask(f"peer.acted({stop})")
        here.becomes(2, "stopped")
        assert runs_on(offline)
        online.ask("peer.tenant.finish()")
        offline.ask("peer.acted(peer.order())")
        ends(offline)
        assert here.becomes(2, "ready").continues == 1


@pytest.mark.parametrize("answer", ["nothing", "an error"])
def test_a_process_that_does_not_act_is_left_to_its_gate(tmp_path: Path, answer: str) -> None:
    with node(tmp_path) as here:
        here.sync((1, "online"), (2, "offline"))
        here.hardware(actor="shim", method="schedule")
        online, offline = here.job(1, "online", tell=False), here.job(2)
        a.wait_for(lambda: here.descriptors() == 0, "what is not needed is not kept")
        offline.ask("peer.acted(peer.order())")
        here.becomes(2, "ready")
        offline.ask(f"peer.work({LONG_US})")
        online.ask("peer.tenant.begin() and peer.tenant.ring()")
        if answer == "an error":
            offline.ask("peer.acted(peer.order(), status=0x40, do=False)")
            failed(here, 2, "could not carry out")
        else:
            failed(here, 2, "did not answer")
            assert offline.ask("peer.order()['action']") == abi.ACT_STOP
        assert offline.ask("peer.order()['action']") == abi.ACT_CONTINUE


def test_a_call_that_hangs_costs_only_its_own_tenant(tmp_path: Path) -> None:
    with node(tmp_path) as here:
        here.sync((1, "online"), (2, "offline"), (3, "offline"))
        here.hardware()
        hanging, other = here.job(2), here.job(3)
        online = here.job(1, "online", tell=False)
        here.becomes(2, "ready")
        here.becomes(3, "ready")
        here.sim.control(f"block call=rm.preempt pid={hanging.pid}")
        for program in (hanging, other):
            program.ask("peer.tenant.begin() or peer.tenant.slot.launches")
            program.ask(f"peer.cuda.launch({3 * LONG_US})")
            program.ask("setattr(peer.tenant.slot.fences[0], 'submitted', 3)")
        closed_by(online, other)
        a.wait_for(lambda: here.tenant(2).state == "failed", "the hanging one is given up")
        assert "did not answer" in here.tenant(2).why
        here.becomes(3, "stopped")
        assert here.link.stats(), "the arbiter answers"
        # the call returns at last; what it did is undone, and the file let go of
        here.sim.control("clear")
        a.wait_for(lambda: here.descriptors() == 1, "the given up worker lets go")
        a.wait_for(lambda: not hanging.ask("peer.running()"), "its kernel goes on and ends")
        assert runs_on(other, 0.1)


def test_the_end_of_the_arbiter_does_not_wait_for_a_driver_that_hangs(tmp_path: Path) -> None:
    with node(tmp_path) as here:
        online, offline = prepared(here)
        fault(here, "block call=rm.preempt")
        offline.ask(f"peer.work({3 * LONG_US})")
        closed_by(online, offline)
        begin = time.monotonic()
        assert here.arbiter.stop() == 0
        assert time.monotonic() - begin < 30
        here.arbiter.start()


def test_a_handle_that_vanished_may_be_explained(tmp_path: Path) -> None:
    with node(tmp_path) as here:
        online, offline = prepared(here)
        offline.ask("peer.rm.free(peer.client, peer.groups[2], peer.device)")
        offline.ask("setattr(peer.tenant.slot.fences[0], 'submitted', 5)")
        closed_by(online, offline)
        offline.ask("peer.learn()")
        offline.ask("peer.tell()")
        assert here.becomes(2, "stopped").ngroups == 2


def test_a_handle_that_stays_away_is_a_failure(tmp_path: Path) -> None:
    with node(tmp_path) as here:
        online, offline = prepared(here)
        offline.ask("peer.rm.free(peer.client, peer.groups[2], peer.device)")
        offline.ask("setattr(peer.tenant.slot.fences[0], 'submitted', 5)")
        closed_by(online, offline)
        failed(here, 2, "does not exist")


def test_more_than_can_be_followed_is_a_failure(tmp_path: Path) -> None:
    with node(tmp_path) as here:
        _, offline = prepared(here)
        offline.ask("peer.tell(abi.GROUPS_LOST)")
        failed(here, 2, "more groups than can be followed")


def test_a_job_that_continues_its_own_groups_is_stopped_again_and_then_given_up(
    tmp_path: Path,
) -> None:
    with node(tmp_path) as here:
        online, offline = prepared(here)
        offline.ask(f"peer.work({3 * LONG_US})")
        closed_by(online, offline)
        here.becomes(2, "stopped")
        offline.ask("[peer.rm.schedule(peer.client, g, True) for g in peer.groups]")
        offline.ask("setattr(peer.tenant.slot.fences[1], 'done', 1)")  # progress
        before = offline.ask("peer.rm.fd")
        assert before is not None
        a.wait_for(lambda: runs_on(offline, 0.05), "it is stopped again")
        assert here.tenant(2).stops == 1
        offline.ask(
            "threading.Thread(target=lambda: [(setattr(peer.tenant.slot.fences[1], 'done', i), "
            "time.sleep(0.005))"
            " for i in range(3000)], daemon=True).start()"
        )
        failed(here, 2, "continues its own groups")


@pytest.mark.parametrize(
    "changes",
    [
        {"driver_major": 534},
        {"driver_major": 596},
        {"uuid": "MIG-00000000-0000-0000-0000-000000000001"},
    ],
)
def test_unknown_drivers_and_mig_are_refused(tmp_path: Path, changes: dict[str, object]) -> None:
    uuid = str(changes.get("uuid", a.CARD))
    values = {"uuid": uuid, "enabled": True, "driver_major": 580, "ctl_rdev": 5, **changes}
    with a.arbiter(tmp_path) as one, one.link() as link:
        link.sync([a.settings(uuid)], [a.grant(1, "offline", 50, 1 << 30, uuid)])
        with pytest.raises(ArbiterError, match="cannot be preempted by hardware") as refused:
            link.hardware(HardwareSettings(**values))  # type: ignore[arg-type]
        assert refused.value.errno == errno.ENOTSUP
        assert [t.state for t in link.hardware_tenants()] == ["none"]
        link.hardware(HardwareSettings(uuid))


def test_an_arbiter_built_without_it_serves_tenants_and_refuses_to_switch_it_on(
    tmp_path: Path,
) -> None:
    mine = a.grant(1, "offline", 50, 1 << 30)
    with a.arbiter(tmp_path, binary=a.ARBITER_NOHW) as one, one.link() as link:
        link.sync([a.settings()], [mine])
        with pytest.raises(ArbiterError, match="cannot be preempted by hardware") as refused:
            link.hardware(HardwareSettings(a.CARD, enabled=True, driver_major=580, ctl_rdev=5))
        assert refused.value.errno == errno.ENOTSUP
        link.hardware(HardwareSettings(a.CARD))
        assert link.hardware_tenants() == []
        tenant = a.Tenant(one.run_dir, mine)
        assert tenant.begin() and a.tenant_stats(link, 1).procs == 1
        leave = abi.Groups(
            head=abi.head(abi.MSG_GROUPS, abi.Groups), job_id=1, flags=abi.GROUPS_LEAVE
        )
        leave.uuid, leave.client = a.CARD.encode(), 77
        tenant.sock.sendall(bytes(leave))
        answer = abi.parse(abi.Act, tenant.sock.recv(4096), "answer")
        assert (answer.action, answer.value) == (abi.ACT_CONTINUE, 77)


@pytest.mark.parametrize(
    "changes", [{"ctl_rdev": 0}, {"weights": True, "period_us": 10}, {"uuid": "GPU-unknown"}]
)
def test_settings_out_of_range_are_refused(tmp_path: Path, changes: dict[str, object]) -> None:
    values = {"uuid": a.CARD, "enabled": True, "driver_major": 580, "ctl_rdev": 5, **changes}
    with a.arbiter(tmp_path) as one, one.link() as link:
        link.sync([a.settings()], [])
        with pytest.raises(ArbiterError) as refused:
            link.hardware(HardwareSettings(**values))  # type: ignore[arg-type]
        assert refused.value.errno in (errno.EINVAL, errno.ENODEV)


def test_a_driver_that_hangs_for_everybody_is_left_alone(tmp_path: Path) -> None:
    with node(tmp_path) as here:
        jobs = range(2, 10)
        here.sync((1, "online"), *((job, "offline") for job in jobs))
        here.hardware()
        fault(here, "block call=rm.get_gid")
        programs = [here.job(job) for job in jobs]
        a.wait_for(
            lambda: "control calls of the driver hang" in here.log(), "it is switched off", 60
        )
        (card,) = here.link.hardware_use()[1]
        assert (card.uuid, card.ordered, card.on) == (here.cards[0], True, False) and card.hung >= 8
        assert {here.tenant(job).state for job in jobs} == {"failed"}
        with pytest.raises(ArbiterError, match="hang") as refused:
            here.hardware()
        assert refused.value.errno == errno.EBUSY
        closed_by(here.job(1, "online", tell=False), programs[0])  # gates go on as ever
        here.sim.control("clear")
        a.wait_for(lambda: here.descriptors() == 0, "the given up workers let go")
        here.hardware()
        assert programs[0].ask("peer.order()['action']") == abi.ACT_REPORT
        programs[0].ask("peer.tell()")
        here.becomes(2, "ready")
