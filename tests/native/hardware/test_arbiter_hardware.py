"""The arbiter stops the groups of offline tenants by hardware: on the simulated control device,
with real ioctls.
"""

from __future__ import annotations

import signal
import time
from dataclasses import replace
from pathlib import Path

import arbiter_support as a
import pytest
from hardware_support import Node, Program, node

from enforcer.wire import abi

pytestmark = pytest.mark.native
# Of a kernel: a stop that comes late, on a busy machine, still finds it running.
LONG_US = 500_000


def runs_on(program: Program, seconds: float = 1.3 * LONG_US / 1e6) -> bool:
    """Whether the kernel is still unfinished after that time. The default is longer than the
    kernel takes, so it was stopped.
    """
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if not program.ask("peer.running()"):
            return False
        time.sleep(0.005)
    return True


def ends(program: Program) -> None:
    a.wait_for(lambda: not program.ask("peer.running()"), "the kernel ends")


def prepared(here: Node) -> tuple[Program, Program]:
    """An online and an offline tenant; hardware is ready for the latter."""
    here.sync((1, "online"), (2, "offline"))
    here.hardware()
    offline = here.job(2)
    here.becomes(2, "ready")
    online = here.job(1, "online", tell=False)
    return online, offline


def preempted(here: Node) -> tuple[Program, Program]:
    """The same in the middle of a long kernel of the latter, which was stopped for the former."""
    online, offline = prepared(here)
    offline.ask(f"peer.work({LONG_US})")
    online.ask("peer.tenant.begin() and peer.tenant.ring()")
    here.becomes(2, "stopped")
    return online, offline


@pytest.mark.parametrize("method", ["schedule", "disable", "timeslice", "auto"])
def test_a_kernel_that_already_runs_is_stopped_and_goes_on(tmp_path: Path, method: str) -> None:
    with node(tmp_path) as here:
        here.sync((1, "online"), (2, "offline"))
        here.hardware(method=method)
        offline, online = here.job(2), here.job(1, "online", tell=False)
        ready = here.becomes(2, "ready")
        assert (ready.actor, ready.method, ready.ngroups) == (
            "arbiter",
            "schedule" if method == "auto" else method,
            3,
        )
        offline.ask(f"peer.work({LONG_US})")
        online.ask("peer.tenant.begin(); peer.tenant.ring()".replace(";", " or"))
        stopped = here.becomes(2, "stopped")
        assert (stopped.stops, stopped.continues, sum(stopped.stop_hist)) == (1, 0, 1)
        if method != "timeslice":
            assert runs_on(offline), "the kernel went on although its groups are stopped"
        online.ask("peer.tenant.finish()")
        ready = here.becomes(2, "ready")
        ends(offline)
        assert (ready.stops, ready.continues, ready.failures) == (1, 1, 0)
        assert ready.stopped_ns >= 50e6 and 0 < ready.stop_max_ns < 5e9
        assert len(set(offline.ask("peer.slices()"))) == 1  # type: ignore[arg-type]


def test_who_has_no_work_is_not_stopped_until_it_shows_some(tmp_path: Path) -> None:
    with node(tmp_path) as here:
        online, offline = prepared(here)
        online.ask("peer.tenant.begin() and peer.tenant.ring()")
        a.wait_for(lambda: offline.ask("peer.tenant.closed"), "its gate is closed")
        time.sleep(0.02)
        assert here.tenant(2).stops == 0
        offline.ask("peer.cuda.launch(60000)")  # past the gate
        offline.ask("setattr(peer.tenant.slot.fences[0], 'submitted', 7)")
        here.becomes(2, "stopped")
        assert runs_on(offline)
        online.ask("peer.tenant.finish()")
        here.becomes(2, "ready")
        offline.ask("setattr(peer.tenant.slot.fences[0], 'done', 7)")
        ends(offline)


def test_groups_reported_while_the_tenant_is_stopped_are_stopped_too(tmp_path: Path) -> None:
    with node(tmp_path) as here:
        online, offline = preempted(here)
        first = here.tenant(2)
        for _ in range(3):
            offline.ask("peer.tell()")
        assert runs_on(offline)
        online.ask("peer.tenant.finish()")
        ready = here.becomes(2, "ready")
        ends(offline)
        assert (first.stops, ready.stops, ready.continues) == (1, 1, 1)
        a.wait_for(lambda: here.descriptors() == 1, "descriptors of former messages are closed")


def test_a_job_that_was_moved_here_has_gating_alone(tmp_path: Path) -> None:
    """Its older processes report nothing here, so STOP would stop a part of it. A process that is
    about to end a context still gets its answer.
    """
    with node(tmp_path) as here:
        here.sync((1, "online"))
        here.hardware()
        (card,) = a.grant(2, "offline", 50, 8 * a.GIB, *here.cards).cards
        moved = replace(card, home=a.CARD2, home_minor=5)
        here.link.grant(replace(a.grant(2, "offline"), cards=(moved,)))
        offline, online = here.job(2), here.job(1, "online", tell=False)
        for uuid in (here.cards[0], a.CARD2):
            offline.ask(f"peer.tell(uuid={uuid!r})")
            offline.ask(f"peer.tell({abi.GROUPS_LEAVE}, uuid={uuid!r})")
            assert offline.ask("peer.order()['action']") == abi.ACT_CONTINUE
        assert (here.tenant(2).state, here.tenant(2).ngroups) == ("none", 0)
        online.ask("peer.tenant.begin() and peer.tenant.ring()")
        a.wait_for(lambda: offline.ask("peer.tenant.closed"), "its gate is closed")
        assert (here.tenant(2).stops, here.tenant(2).failures) == (0, 0)
        assert here.descriptors() == 0


def test_the_groups_of_a_held_job_go_on(tmp_path: Path) -> None:
    """Its memory leaves the card when its work has ended, so that must not stay stopped; online is
    at work all the while.
    """
    with node(tmp_path) as here:
        _, offline = preempted(here)
        grant = a.grant(2, "offline", 50, 8 * a.GIB, *here.cards)

        def flags() -> int:
            return int(offline.ask("peer.tenant.flags"))  # type: ignore[call-overload]

        here.link.grant(grant, held=True)
        here.becomes(2, "ready")
        ends(offline)
        assert flags() & abi.GATE_WHY_MASK == abi.GATE_WHY_MEMORY
        here.link.grant(grant)
        a.wait_for(
            lambda: flags() & abi.GATE_WHY_PREEMPTED,
            "online has the card",
        )


def test_leaving_continues_and_is_answered(tmp_path: Path) -> None:
    with node(tmp_path) as here:
        online, offline = preempted(here)
        offline.ask("peer.tell(abi.GROUPS_LEAVE)")
        order = offline.ask("peer.order()")
        assert order == {
            "action": abi.ACT_CONTINUE,
            "method": 0,
            "serial": 0,
            "value": offline.ask("peer.client"),
        }
        ends(offline)
        assert here.tenant(2).state == "none" and here.descriptors() == 0
        offline.ask("peer.tell(abi.GROUPS_LEAVE)")  # of what nobody knows: answered all the same
        assert offline.ask("peer.order()") == order
        online.ask("peer.tenant.finish()")
        a.wait_for(lambda: not offline.ask("peer.tenant.closed"), "its gate opens again")
        offline.ask("peer.tell()")
        here.becomes(2, "ready")


def test_a_dead_process_is_released_at_once(tmp_path: Path) -> None:
    with node(tmp_path) as here:
        online, offline = preempted(here)
        assert here.descriptors() == 1
        offline.kill()
        a.wait_for(lambda: here.descriptors() == 0, "the descriptor of the dead process is closed")
        assert here.tenant(2).state == "none"
        online.ask("peer.tenant.finish()")
        again = here.job(2)
        here.becomes(2, "ready")
        again.ask("peer.work(1000)")
        ends(again)


def test_switching_it_off_continues_at_once_and_on_again_asks(tmp_path: Path) -> None:
    with node(tmp_path) as here:
        online, offline = preempted(here)
        here.hardware(enabled=False)
        ends(offline)
        assert here.tenant(2).state == "none"
        a.wait_for(lambda: here.descriptors() == 0, "nothing is kept while it is off")
        here.hardware()
        assert offline.ask("peer.order()") == {
            "action": abi.ACT_REPORT,
            "method": 0,
            "serial": 0,
            "value": 0,
        }
        offline.ask(f"peer.cuda.launch({LONG_US})")
        offline.ask("peer.tell()")
        here.becomes(2, "ready")
        online.ask("peer.tenant.finish()")


def test_the_end_of_the_job_continues_and_releases_groups(tmp_path: Path) -> None:
    with node(tmp_path) as here:
        _online, offline = preempted(here)
        here.link.revoke(2)
        ends(offline)
        a.wait_for(lambda: here.descriptors() == 0, "the descriptor is closed")
        offline.ask("peer.tell()")
        here.link.stats()
        a.wait_for(lambda: here.descriptors() == 0, "nothing is kept once its broker closed it")


def test_the_arbiter_continues_everything_before_it_ends(tmp_path: Path) -> None:
    with node(tmp_path) as here:
        _online, offline = preempted(here)
        assert here.arbiter.stop() == 0
        ends(offline)
        here.arbiter.start()


def test_a_successor_first_continues_what_its_predecessor_stopped(tmp_path: Path) -> None:
    with node(tmp_path) as here:
        _online, offline = preempted(here)
        here.arbiter.stop(signal.SIGKILL)
        assert runs_on(offline), "nobody continued it, as no shim is here"
        here.arbiter.start()
        here.link.close()
        here.sync((1, "online"), (2, "offline"))
        here.hardware()
        offline.ask("peer.register()")
        offline.ask("peer.tell()")
        ends(offline)
        here.becomes(2, "ready")


def test_both_cards_of_a_job_are_stopped_together(tmp_path: Path) -> None:
    with node(tmp_path, cards=2) as here:
        here.sync((1, "online"), (2, "offline"))
        here.hardware()
        first, second = here.job(2, card=0), here.job(2, card=1)
        online = here.job(1, "online", card=0, tell=False)
        for card, program in enumerate((first, second)):
            here.becomes(2, "ready", card)
            program.ask(f"peer.work({LONG_US})")
        online.ask("peer.tenant.begin() and peer.tenant.ring()")
        here.becomes(2, "stopped", 0)
        here.becomes(2, "stopped", 1)
        assert runs_on(second)
        online.ask("peer.tenant.finish()")
        ends(first)
        ends(second)


def test_quick_changes_end_in_the_right_state(tmp_path: Path) -> None:
    with node(tmp_path) as here:
        here.sync((1, "online"), (2, "offline"), idle_release_ms=1)
        here.hardware()
        offline, online = here.job(2), here.job(1, "online", tell=False)
        here.becomes(2, "ready")
        offline.ask("peer.work(300000)")
        for _ in range(150):
            online.ask("peer.tenant.begin() and peer.tenant.ring()")
            online.ask("peer.tenant.finish()")
        ready = here.becomes(2, "ready")
        ends(offline)
        assert ready.failures == 0 and ready.stops == ready.continues
        online.ask("peer.tenant.begin() and peer.tenant.ring()")
        offline.ask("peer.cuda.launch(60000)")
        offline.ask("setattr(peer.tenant.slot.fences[0], 'submitted', 99)")
        here.becomes(2, "stopped")
        assert runs_on(offline)


def test_weights_set_slices_by_share_and_open_the_gates(tmp_path: Path) -> None:
    with node(tmp_path) as here:
        uuid = here.cards[0]
        grants = [a.grant(2, "offline", 30, a.GIB, uuid), a.grant(3, "offline", 70, a.GIB, uuid)]
        here.link.sync([a.settings(uuid, grace_ms=0)], grants)
        here.hardware(weights=True, period_us=10_000)
        first, second = here.job(2, tell=False), here.job(3)
        before = first.ask("peer.slices()")
        first.ask("peer.tell()")
        a.wait_for(lambda: first.ask("peer.slices()") == [3000] * 3, "30 of 100")
        a.wait_for(lambda: second.ask("peer.slices()") == [7000] * 3, "70 of 100")
        for program in (first, second):
            program.ask("peer.tenant.begin()")
            program.ask("peer.tenant.begin()")
        a.wait_for(
            lambda: not first.ask("peer.tenant.closed") and not second.ask("peer.tenant.closed"),
            "no turns",
        )
        a.wait_for(
            lambda: first.ask("peer.tenant.gate.window_us") == 20_000, "two periods are in flight"
        )
        second.kill()
        a.wait_for(
            lambda: first.ask("peer.slices()") == [10_000] * 3,
            "alone it has the whole period",
        )
        here.hardware(weights=False)
        assert first.ask("peer.order()['action']") == abi.ACT_REPORT
        a.wait_for(lambda: first.ask("peer.slices()") == before, "as before")


def test_online_groups_are_kept_for_weights_alone(tmp_path: Path) -> None:
    with node(tmp_path) as here:
        here.sync((1, "online"))
        here.hardware()
        here.job(1, "online")
        assert here.tenant(1).state == "none"
        a.wait_for(lambda: here.descriptors() == 0, "what nobody needs is not kept")
