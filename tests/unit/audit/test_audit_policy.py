"""The audit's policy: unbooked work, repeated actions, and the length of exemptions."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator

import pytest
from daemon_support import hook_env as env

from enforcer.clock import FakeClock
from enforcer.daemon.arbiter.port import ProcessUse
from enforcer.daemon.audit.procs import stopped
from enforcer.daemon.node import NodeService
from enforcer.nvml.port import GpuProcess, NvmlError
from gres.config.enforcer import HardwareSettings
from simulator.fakes import GIB, FakeNode

TENTH = 10**8  # ns


@pytest.fixture
def clock(node: FakeNode) -> FakeClock:
    assert isinstance(node.clock, FakeClock)
    return node.clock


@pytest.fixture
def policed(node: FakeNode) -> Callable[[str], NodeService]:
    """A daemon with this action, and job 9 of our own user on card 0."""

    def make(action: str) -> NodeService:
        service = node.service()
        settings = service.config.enforcer.audit.model_copy(update={"action": action})
        service.inspector.enforcer.settings = settings
        service.start()
        service.prolog(env(uid=os.getuid()))
        return service

    return make


@pytest.fixture
def child(node: FakeNode) -> Iterator[Callable[[], int]]:
    """Makes a process of job 9."""
    made: list[subprocess.Popen[bytes]] = []

    def make() -> int:
        made.append(subprocess.Popen(["sleep", "60"]))
        node.jobs_of_pids[made[-1].pid], node.owners_of_pids[made[-1].pid] = 9, os.getuid()
        return made[-1].pid

    yield make
    for process in made:
        process.kill()
        process.wait()


def card(node: FakeNode, index: int = 0) -> str:
    return node.nvml.cards()[index].uuid


def looks(service: NodeService, clock: FakeClock, times: int, poll: bool = False) -> None:
    for _ in range(times):
        clock.advance(1)
        service.sample_cards()
        if poll:
            service.poll_arbiter()


def is_stopped(pid: int) -> bool:
    os.waitpid(pid, os.WUNTRACED)
    return stopped(pid)


def test_liar_is_said_with_both_figures_and_killed(node, clock, policed, child, lines):
    service, pid = policed("kill"), child()
    node.arbiter.procs = [ProcessUse(9, card(node), pid, GIB)]
    node.nvml.put(card(node), GpuProcess(pid, GIB), busy={pid: 40})
    for second in range(20):
        node.arbiter.count(9, card(node), busy_ns=second * TENTH)
        looks(service, clock, 1, poll=True)
    (said,) = lines("event=audit")
    assert "audit-busy job=9" in said and "busy_percent=40" in said and "booked_percent=1" in said
    assert f"action=kill signalled={pid}" in said
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL


def test_new_arbiter_that_knows_the_tenant_begins_a_new_window(node, clock, policed, child, lines):
    """It may have stood still for long before, and books little of that."""
    service, pid = policed("log"), child()
    node.arbiter.procs = [ProcessUse(9, card(node), pid, GIB)]
    node.nvml.put(card(node), GpuProcess(pid, GIB), busy={pid: 40})
    for second in range(12):
        node.arbiter.count(9, card(node), busy_ns=second * TENTH)
        looks(service, clock, 1, poll=True)
    service.inspector.forget()
    for second in range(12, 22):
        node.arbiter.count(9, card(node), busy_ns=second * TENTH)
        looks(service, clock, 1, poll=True)
    assert not lines("audit-busy")


def test_work_of_an_unregistered_process_is_that_findings_affair(
    node, clock, policed, child, lines
):
    service, pid = policed("log"), child()
    node.nvml.put(card(node), GpuProcess(pid, GIB), busy={pid: 90})
    for _ in range(30):
        node.arbiter.count(9, card(node), busy_ns=0)
        looks(service, clock, 1, poll=True)
    assert len(lines("audit-unregistered")) == 1 and not lines("audit-busy")


def test_busy_time_is_not_compared_where_the_card_weighs_by_itself(
    node, clock, policed, child, lines
):
    service, pid = policed("log"), child()
    weighs = {"hardware": HardwareSettings(weights=True)}
    service.inspector.settings = service.inspector.settings.model_copy(update=weighs)
    node.arbiter.procs = [ProcessUse(9, card(node), pid, GIB)]
    node.nvml.put(card(node), GpuProcess(pid, GIB), busy={pid: 90})
    for _ in range(30):
        node.arbiter.count(9, card(node), busy_ns=0)
        looks(service, clock, 1, poll=True)
    assert not lines("event=audit")


def test_job_above_its_cap_that_comes_again_with_new_processes_is_killed_again(
    node, clock, policed, child, lines
):
    service = policed("kill")
    for _ in range(3):
        pid = child()
        node.arbiter.procs = [ProcessUse(9, card(node), pid, GIB)]
        node.nvml.put(card(node), GpuProcess(pid, 40 * GIB))
        looks(service, clock, 2)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
    said = lines("audit-over")
    assert len(said) == 3 and all("action=kill" in line for line in said)


def test_killed_process_that_the_driver_still_lists_is_said_once(
    node, clock, policed, child, lines
):
    service, pid = policed("kill"), child()
    node.arbiter.procs = [ProcessUse(9, card(node), pid, GIB)]
    node.nvml.put(card(node), GpuProcess(pid, 40 * GIB))
    looks(service, clock, 10)
    assert len(lines("audit-over")) == 1


def test_above_the_cap_is_logged_once_whatever_its_processes(node, clock, policed, child, lines):
    service = policed("log")
    for _ in range(4):
        node.nvml.put(card(node), GpuProcess(child(), 40 * GIB))
        looks(service, clock, 2)
    assert len(lines("audit-over")) == 1


# ---- processes that were stopped -----------------------------------------------------------------


def held(node, clock, policed, child) -> tuple[NodeService, int]:
    service, pid = policed("stop"), child()
    node.nvml.put(card(node), GpuProcess(pid, GIB))
    looks(service, clock, 3)
    assert is_stopped(pid)
    return service, pid


def test_stopped_process_that_its_user_continues_is_stopped_again(
    node, clock, policed, child, lines
):
    service, pid = held(node, clock, policed, child)
    for times in range(1, 6):
        os.kill(pid, signal.SIGCONT)
        assert not stopped(pid)
        looks(service, clock, 1)
        assert is_stopped(pid) and len(lines("event=audit-again")) == times
    os.kill(pid, signal.SIGCONT)
    looks(service, clock, 1)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert status == -signal.SIGKILL, "the sixth time in a minute"
    assert "times=6 action=kill" in lines("event=audit-again")[-1]
    assert len(lines("audit-unregistered")) == 1


def test_who_lets_it_go_on_now_and_then_does_not_get_it_killed(node, clock, policed, child):
    service, pid = held(node, clock, policed, child)
    for _ in range(12):  # gang scheduling resumes each 30 s
        os.kill(pid, signal.SIGCONT)
        clock.advance(29)
        looks(service, clock, 1)
        assert is_stopped(pid)


def test_process_that_the_signal_has_not_reached_does_not_count_as_continued(
    node, clock, policed, child, lines
):
    """As in the kernel's hands (D), or thawed with the signal still pending."""
    service, _ = held(node, clock, policed, child)
    at_rest = False
    service.inspector.stopped = lambda pid: at_rest
    service.inspector.enforcer.stop_waits = lambda pid: True
    looks(service, clock, 20)
    assert not lines("event=audit-again")
    at_rest = True
    looks(service, clock, 1)
    at_rest = False
    looks(service, clock, 20)
    (said,) = lines("event=audit-again")
    assert "times=1 action=stop" in said, "seen at rest, and then not"


def test_process_continued_before_each_sample_is_killed(node, clock, policed, child, lines):
    service, pid = held(node, clock, policed, child)
    for _ in range(6):  # never seen at rest: its user sends SIGCONT all the time
        os.kill(pid, signal.SIGCONT)
        looks(service, clock, 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL


def test_administrator_pardons_a_job(node, clock, policed, child, lines):
    service, pid = held(node, clock, policed, child)
    grant = service.grants[9]
    assert service.inspector.pardon(grant) == [pid] and not stopped(pid)
    looks(service, clock, 10)
    assert not stopped(pid) and not lines("event=audit-again")
    other = child()
    node.nvml.put(card(node), GpuProcess(pid, GIB), GpuProcess(other, GIB))
    looks(service, clock, 4)
    assert not stopped(other) and f"pid={other}" in lines("audit-unregistered")[-1], (
        "said all the same"
    )
    service.epilog(env())
    service.prolog(env(uid=os.getuid()))
    looks(service, clock, 4)
    assert is_stopped(other), "a pardon ends with the grant"


def test_pardon_continues_processes_stopped_before_a_restart_of_qgpud(node, clock, policed, child):
    service, pid = policed("stop"), child()
    others, stranger, root, elsewhere = child(), child(), child(), child()
    node.jobs_of_pids[stranger] = 10
    node.owners_of_pids[root] = 4711  # qgpud takes it for nobody's
    for each in (pid, others, stranger, root, elsewhere):
        os.kill(each, signal.SIGSTOP)
    node.nvml.put(card(node), *(GpuProcess(each, GIB) for each in (pid, stranger, root)))
    node.nvml.put(card(node, 1), GpuProcess(others, GIB))
    assert all(is_stopped(each) for each in (pid, others, stranger, root, elsewhere))
    looks(service, clock, 1)
    assert service.inspector.pardon(service.grants[9]) == sorted([pid, others])
    assert not stopped(pid) and not stopped(others)
    assert stopped(stranger) and stopped(root), "another's"
    assert stopped(elsewhere), "not on a card: not the audit's affair"


def test_job_that_holds_no_more_than_its_cap_again_may_go_on(node, clock, policed, child):
    service, pid = policed("stop"), child()
    node.arbiter.procs = [ProcessUse(9, card(node), pid, GIB)]
    node.nvml.put(card(node), GpuProcess(pid, 40 * GIB))
    looks(service, clock, 2)
    assert is_stopped(pid)
    node.nvml.put(card(node), GpuProcess(pid, GIB))
    looks(service, clock, 1)
    os.kill(pid, signal.SIGCONT)
    looks(service, clock, 5)
    assert not stopped(pid)


def test_job_that_holds_too_much_a_second_time_is_stopped_a_second_time(
    node, clock, policed, child, lines
):
    service, pid = policed("stop"), child()
    node.arbiter.procs = [ProcessUse(9, card(node), pid, GIB)]
    for times in (1, 2, 3):
        node.nvml.put(card(node), GpuProcess(pid, 40 * GIB))
        looks(service, clock, 2)
        assert is_stopped(pid) and len(lines(f"signalled={pid}")) == times
        node.nvml.put(card(node), GpuProcess(pid, GIB))
        looks(service, clock, 1)
        os.kill(pid, signal.SIGCONT)
        looks(service, clock, 2)
        assert not stopped(pid), "within its cap it may go on"


# ---- cards that a job was not granted ------------------------------------------------------------


def test_job_on_a_card_that_it_was_not_granted_is_found_and_killed(
    node, clock, policed, child, lines
):
    service, pid = policed("kill"), child()
    stranger = child()
    del node.jobs_of_pids[stranger]
    node.nvml.put(card(node, 1), GpuProcess(pid, GIB), GpuProcess(stranger, GIB))
    looks(service, clock, 4)
    (said,) = lines("event=audit")
    assert (
        "audit-ungranted job=9" in said
        and f"card={card(node, 1)}" in said
        and f"signalled={pid}" in said
    )
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
    assert os.waitpid(stranger, os.WNOHANG) == (0, 0), (
        "on a card without grants strangers are nobody's business"
    )


def test_job_without_a_grant_here_is_found_on_granted_cards_only(
    node, clock, policed, child, lines
):
    service, pid = policed("kill"), child()
    node.jobs_of_pids[pid] = 4711  # of Slurm's, with a whole card that qgpu does not manage
    for index in (0, 1):
        node.nvml.put(card(node, index), GpuProcess(pid, GIB))
    looks(service, clock, 4)
    (said,) = lines("event=audit")
    assert "audit-stranger job=4711" in said and card(node) in said and "action" not in said
    assert os.waitpid(pid, os.WNOHANG) == (0, 0)


def test_nothing_is_asked_while_nothing_is_granted(node, clock, policed):
    service = policed("log")
    service.epilog(env())
    asked: list[int] = []
    node.nvml.before = lambda: asked.append(1)
    looks(service, clock, 5)
    assert not asked


def test_card_without_a_grant_that_fails_is_no_failure_of_the_audit(
    node, clock, policed, child, lines
):
    service, pid = policed("log"), child()
    usage = node.nvml.usage
    broken = card(node, 1)

    def failing(uuid: str, busy: bool = True):
        if uuid == broken:
            raise NvmlError("gone")
        return usage(uuid, busy)

    node.nvml.usage = failing
    node.nvml.put(card(node), GpuProcess(pid, GIB))
    looks(service, clock, 3)
    assert len(lines("audit-unregistered")) == 1 and not lines("nvml-failed")


# ---- excuses -------------------------------------------------------------------------------------


def excused_for(service: NodeService, clock: FakeClock, lines, most: int) -> int:
    for second in range(most):
        if lines("audit-unregistered"):
            return second
        looks(service, clock, 1)
    return most


def test_stopped_process_is_exempt_for_a_while_without_utilisation(
    node, clock, policed, child, lines
):
    service, pid = policed("log"), child()
    service.inspector.stopped = {pid}.__contains__
    node.nvml.put(card(node), GpuProcess(pid, GIB))
    assert excused_for(service, clock, lines, 900) == 900, "NVML says that it does nothing"
    node.nvml.tells_busy = False
    assert 300 <= excused_for(service, clock, lines, 900) < 310


def test_another_process_behind_decoys_has_no_exemption_of_its_own(node, clock, policed, lines):
    """A job with all the registered processes it may have: no new number excuses the 129th anew."""
    service = policed("log")
    node.nvml.tells_busy = False
    node.jobs_of_pids.update(dict.fromkeys(range(10_000, 20_000), 9))
    node.owners_of_pids.update(dict.fromkeys(range(10_000, 20_000), os.getuid()))
    decoys = range(10_000, 10_128)
    node.arbiter.procs = [ProcessUse(9, card(node), pid, 0) for pid in decoys]
    for second in range(340):
        more = 11_000 + second // 10  # a new process each ten seconds
        node.nvml.put(card(node), *(GpuProcess(pid, 1) for pid in (*decoys, more)))
        looks(service, clock, 1)
        assert not lines("audit-unregistered") or second > 300
    assert lines("audit-unregistered")


def test_new_arbiter_renews_the_exemption(node, clock, policed, child, lines):
    service, pid = policed("log"), child()
    node.nvml.tells_busy = False
    service.inspector.stopped = {pid}.__contains__
    node.nvml.put(card(node), GpuProcess(pid, GIB))
    looks(service, clock, 250)
    node.arbiter.restart()
    service.lose_arbiter("x")
    service.reach_arbiter()
    assert 300 <= excused_for(service, clock, lines, 900) < 310
