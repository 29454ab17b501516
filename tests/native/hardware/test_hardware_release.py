"""Nothing stays stopped, and no descriptor stays open, when those who act on groups go or change
their minds.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import arbiter_support as a
import pytest
from hardware_support import Node, node
from test_arbiter_hardware_faults import fault
from test_hardware_stack import LONG_US, Governed, ends, finishes, grant, keeps_running, serve

from enforcer.wire import abi

pytestmark = pytest.mark.native
OTHERS = range(3, 11)


def stopped(here: Node, **hardware: object) -> tuple[Governed, Governed]:
    """An online job at work, and job 2, whose kernel stands still under these settings."""
    here.link.close()
    jobs = [grant(here, 1, "online"), *(grant(here, job, "offline") for job in (2, *OTHERS))]
    cards = [a.settings(uuid, idle_release_ms=50, grace_ms=0, lease_ms=2000) for uuid in here.cards]
    here.link.sync(cards, jobs)
    here.hardware(**hardware)
    offline, online = Governed(here, 2, "offline"), Governed(here, 1, "online")
    here.becomes(2, "ready")
    offline.ask(f"cuda.launch({LONG_US})")
    # answered when the last one is in flight
    online.send("[cuda.launch(20000) for _ in range(100)]")
    here.becomes(2, "stopped")
    assert keeps_running(offline, 1.3 * LONG_US / 1e6)
    return online, offline


@pytest.mark.parametrize("actor", ["arbiter", "shim"])
@pytest.mark.parametrize("how", ["off", "other settings", "revoked"])
def test_the_actor_releases_the_groups(tmp_path: Path, actor: str, how: str) -> None:
    with node(tmp_path) as here:
        online, offline = stopped(here, actor=actor)
        assert here.tenant(2).actor == actor
        if how == "off":
            here.hardware(enabled=False)
        elif how == "revoked":
            here.link.revoke(2)
        else:
            here.hardware(actor="arbiter", method="disable")
            finishes(online)
        ends(offline)


def test_a_card_whose_driver_hangs_leaves_no_tenant_stopped(tmp_path: Path) -> None:
    with node(tmp_path) as here:
        _, offline = stopped(here)
        fault(here, "block call=rm.get_gid")  # hangs for the arbiter alone
        for job in OTHERS:
            here.job(job)
        a.wait_for(
            lambda: "control calls of the driver hang" in here.log(), "it is switched off", 60
        )
        ends(offline)  # its shim was told to continue it


def test_another_program_in_the_same_process_has_its_memory_back(tmp_path: Path) -> None:
    """exec: the driver's files are closed with the old program, and the arbiter lets go of its
    copies.
    """
    with node(tmp_path) as here:
        serve(here)
        program = Governed(here, 2, "offline")
        here.becomes(2, "ready")
        assert here.descriptors() == 1
        body = "print(2, flush=True); input()"
        program.send(
            f"__import__('os').execve({sys.executable!r}, ['python', '-c', {body!r}], {{}})"
        )
        assert program.answer() == 2
        a.wait_for(lambda: here.descriptors() == 0, "its descriptor is closed")
        assert here.tenant(2).state == "none"


def asked_to_stop(here: Node) -> dict[str, int]:
    """A process of job 2 that is the actor itself, and has got the order to stop."""
    here.sync((1, "online"), (2, "offline"))
    here.hardware(actor="shim", method="schedule")
    online, offline = here.job(1, "online", tell=False), here.job(2)
    offline.ask("peer.acted(peer.order())")
    here.becomes(2, "ready")
    offline.ask("peer.work(60000)")
    online.ask("peer.tenant.begin() and peer.tenant.ring()")
    order = offline.ask("peer.order()")
    assert isinstance(order, dict) and order["action"] == abi.ACT_STOP
    return order


def test_an_order_that_meets_a_dying_context_is_no_failure(tmp_path: Path) -> None:
    """The shim refuses to stop what a thread is about to destroy, and says next that it leaves."""
    with node(tmp_path) as here:
        order = asked_to_stop(here)
        offline = here.programs[-1]
        offline.ask(f"peer.acted({order}, status=0x40, do=False)")
        offline.ask("peer.tell(abi.GROUPS_LEAVE)")
        a.wait_for(lambda: here.tenant(2).state == "none", "its groups are forgotten")
        assert here.tenant(2).failures == 0


def test_an_order_to_a_process_that_is_gone_is_no_failure(tmp_path: Path) -> None:
    with node(tmp_path) as here:
        here.sync((1, "online"), (2, "offline"))
        here.hardware(actor="shim", method="schedule")
        online, offline, sibling = here.job(1, "online", tell=False), here.job(2), here.job(2)
        for program in (offline, sibling):
            program.ask("peer.acted(peer.order())")
        here.becomes(2, "ready")
        offline.ask("peer.work(60000)")
        sibling.ask(
            "peer.tenant.sock.shutdown(socket.SHUT_RD)"
        )  # what it is sent comes back as a broken pipe
        online.ask("peer.tenant.begin() and peer.tenant.ring()")
        offline.ask("peer.acted(peer.order())")
        sibling.kill()
        here.becomes(2, "stopped")
        assert here.tenant(2).failures == 0


@pytest.mark.parametrize("times", ["times=3", ""], ids=["once", "always"])
def test_a_refused_continue_is_tried_again_and_then_left_to_the_process(
    tmp_path: Path, times: str
) -> None:
    with node(tmp_path) as here:
        online, offline = stopped(here)
        fault(here, f"error call=rm.schedule code=0x65 {times}")
        finishes(online)
        a.wait_for(lambda: here.tenant(2).state == "failed", "it is left to its gate")
        assert "refused to continue" in here.tenant(2).why
        ends(offline)


def test_a_refusal_does_not_keep_the_shim_from_continuing(tmp_path: Path) -> None:
    """The arbiter is killed and never comes back, and the driver refuses the process's first
    attempts.
    """
    with node(tmp_path) as here:
        _, offline = stopped(here)
        here.sim.control(f"error call=rm.schedule code=0x65 times=30 pid={offline.pid}")
        here.arbiter.stop(signal.SIGKILL)
        ends(offline)
        here.arbiter.start()
