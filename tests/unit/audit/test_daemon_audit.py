"""The audit: NVML's view against grants and registrations, and the actions."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess

import pytest
from daemon_support import hook_env as env
from daemon_support import sampled

from enforcer.daemon.arbiter.port import ProcessUse
from enforcer.daemon.audit.action import send_action
from enforcer.daemon.audit.findings import Registered, audit
from enforcer.daemon.audit.mps import NAME, is_mps_server
from enforcer.daemon.audit.procs import stopped
from enforcer.daemon.node import NodeService
from enforcer.ledger.store import read_usage
from enforcer.nvml.port import CardUsage, GpuProcess
from gres.grant.store import Grant, GrantCard
from gres.trusted import distrust
from simulator.fakes import GIB, FakeNode

MIB = 1 << 20
U = "GPU-1"


def grant(job: int = 9, cap: int = 12 * GIB, state: str = "active", uid: int = 1000) -> Grant:
    card = GrantCard(U, 0, 0, 30, cap, 80 * GIB)
    return Grant(job, uid, uid, "n1", state, "online" if state == "active" else None, cards=(card,))  # type: ignore[arg-type]


def look(
    processes, registered=(), grants=None, used=None, dead=(), jobs=None, after=None, servers=()
):
    seen = [GpuProcess(pid, mem) for pid, mem in processes]
    total = sum(mem or 0 for _, mem in processes) if used is None else used
    listed = [ProcessUse(9, U, pid, mem) for pid, mem in registered]
    later = listed if after is None else [ProcessUse(9, U, pid, mem) for pid, mem in after]
    return audit(
        {U: CardUsage(tuple(seen), total)},
        [grant()] if grants is None else grants,
        Registered(listed, later, frozenset((U, pid) for pid in dead)),
        (jobs or dict.fromkeys(range(50, 60), 9)).get,
        512 * MIB,
        lambda job, uuid, found: 300 * MIB,
        servers.__contains__,
    )


def kinds(found) -> list[tuple[str, int | None]]:
    return sorted((finding.kind, finding.pid) for finding in found.findings)


def test_registered_processes_within_their_cap_are_nothing_to_say():
    found = look([(50, 3 * GIB), (51, GIB)], [(50, 2 * GIB), (51, GIB)])
    assert kinds(found) == [] and found.memory == {(9, U): 4 * GIB}


def test_process_that_never_registered_is_named():
    assert kinds(look([(50, GIB), (51, GIB)], [(50, GIB)])) == [("unregistered", 51)]


def test_a_server_of_mps_is_charged_and_compared_and_needs_no_shim():
    found = look([(50, GIB), (51, 400 * MIB)], [(50, GIB)], servers=[51])
    assert kinds(found) == [] and found.overhead == {(9, U): 400 * MIB}
    assert found.members == {(9, U): frozenset({50, 51})}, "its kernels count as the job's"


def test_a_server_of_mps_may_be_above_the_cap_by_one_context():
    cap, slack = 12 * GIB, 512 * MIB
    held = [(50, cap), (51, slack + 300 * MIB)]
    assert kinds(look(held, [(50, cap)], servers=[51])) == []
    assert kinds(look([held[0], (51, held[1][1] + 1)], [(50, cap)], servers=[51])) == [
        ("over", None)
    ]


def test_a_server_of_mps_outside_of_its_job_is_a_stranger():
    assert kinds(look([(77, GIB)], jobs={}, servers=[77])) == [("stranger", 77)]


def test_only_the_nodes_own_file_is_a_server_of_mps(tmp_path, monkeypatch):
    """Not a copy of that name, nor the node's file where others could change it."""
    place, own = tmp_path / "bin", tmp_path / "own"
    monkeypatch.setenv("PATH", str(place))
    assert not is_mps_server(os.getpid()), "the node has none"
    for directory in (place, own):
        directory.mkdir()
        shutil.copy("/bin/sleep", directory / NAME)
    with (
        subprocess.Popen([place / NAME, "600"]) as server,
        subprocess.Popen([own / NAME, "600"]) as b,
    ):
        try:
            trusted = distrust(place / NAME) is None
            assert (is_mps_server(server.pid), is_mps_server(b.pid)) == (trusted, False)
            assert trusted or os.geteuid() != 0
            (place / NAME).chmod(0o777)
            assert not is_mps_server(server.pid)
        finally:
            server.kill()
            b.kill()
    assert not is_mps_server(server.pid), "it ended"


def test_process_of_no_job_or_of_a_job_without_this_card_is_found():
    assert kinds(look([(77, None), (78, 5)], jobs={78: 10})) == [("stranger", 77), ("stranger", 78)]


def test_arbiters_word_names_the_job_of_a_process_that_proc_does_not():
    assert kinds(look([(70, GIB)], [(70, GIB)])) == [], (
        "a daemonised child of qgpu run has no ancestor left"
    )


def test_above_the_cap_counts_only_beyond_the_slack():
    assert kinds(look([(50, 12 * GIB + 500 * MIB)], [(50, 12 * GIB)])) == []
    (finding,) = look([(50, 7 * GIB), (51, 6 * GIB)], [(50, 7 * GIB), (51, 5 * GIB)]).findings
    assert (finding.kind, finding.job_id, finding.pids) == ("over", 9, (50, 51))
    assert finding.figures == {"mem": 13 * GIB, "mem_cap": 12 * GIB}


def test_whole_card_jobs_are_measured_but_not_judged():
    found = look([(50, 79 * GIB)], grants=[grant(cap=80 * GIB, state="whole")])
    assert kinds(found) == [] and found.memory == {(9, U): 79 * GIB} and found.overhead == {}


@pytest.mark.parametrize(
    ("used", "said"), [(2 * GIB, True), (100 * MIB, True), (GIB + 400 * MIB, False)]
)
def test_card_whose_total_is_not_the_sum_of_its_processes_is_said(used, said):
    assert kinds(look([(50, GIB)], [(50, GIB)], used=used)) == (
        [("unaccounted", None)] if said else []
    )


def test_total_is_not_compared_where_the_driver_hides_a_process():
    assert kinds(look([(50, None)], [(50, GIB)], used=5 * GIB)) == []


def test_overhead_is_what_no_shim_counts():
    assert look([(50, 3 * GIB)], [(50, 2 * GIB)]).overhead == {(9, U): GIB}
    assert look([(50, GIB)], [(50, 2 * GIB)]).overhead == {(9, U): 0}, "never negative"
    assert look([], [(50, GIB)]).overhead == {(9, U): 0}


def test_process_without_shim_is_charged_in_full_to_its_job():
    assert look([(50, 3 * GIB), (51, GIB)], [(50, 2 * GIB)]).overhead == {(9, U): 2 * GIB}


def test_moment_in_which_a_process_allocates_is_no_overhead():
    found = look([(50, 4 * GIB)], [(50, 2 * GIB)], after=[(50, 4 * GIB)])
    assert found.overhead == {}


@pytest.mark.parametrize("pending", [(10, 10), (10, 0), (0, 10)])
def test_an_allocation_under_way_is_no_overhead(pending: tuple[int, int]) -> None:
    """The driver lists 10 GiB of a call that has not returned, beside 2 GiB and a context."""
    lists = [[ProcessUse(9, U, 50, 2 * GIB, size * GIB)] for size in pending]
    seen = {U: CardUsage((GpuProcess(50, 12 * GIB + 300 * MIB),), 13 * GIB)}
    found = audit(seen, [grant()], Registered(*lists), {50: 9}.get, 0)
    assert found.overhead == {(9, U): 300 * MIB}


def test_dead_process_is_neither_a_finding_nor_overhead():
    found = look([(50, GIB), (51, GIB)], [(50, GIB)], dead=[51])
    assert kinds(found) == [] and found.overhead == {(9, U): 0}


def test_without_a_list_no_process_is_unregistered_and_nothing_charged():
    seen = {U: CardUsage((GpuProcess(50, GIB),), GIB)}
    found = audit(seen, [grant()], Registered(None, None), {50: 9}.get, 0)
    assert kinds(found) == [] and found.overhead == {}


# ---- as it runs ----------------------------------------------------------------------------------


@pytest.fixture
def service(service: NodeService) -> NodeService:
    service.prolog(env())
    return service


def uuid(node: FakeNode) -> str:
    return node.nvml.cards()[0].uuid


def test_unregistered_process_is_logged_once_after_three_samples(node, service, lines):
    node.jobs_of_pids.update({50: 9, 51: 9})
    node.arbiter.procs = [ProcessUse(9, uuid(node), 50, 2 * GIB)]
    node.nvml.put(uuid(node), GpuProcess(50, 3 * GIB), GpuProcess(51, GIB), busy={51: 40})
    for _ in range(2):
        sampled(service)
    assert lines("event=audit") == []
    for _ in range(10):
        sampled(service)
    (said,) = lines("event=audit")
    assert "audit-unregistered job=9" in said and "pid=51" in said and "busy_percent=40" in said
    (row,) = read_usage(node.directory / "state/ledger.sqlite", [9])
    assert row.nvml_mem_peak == 4 * GIB
    assert node.arbiter.overheads == {(9, uuid(node)): 2 * GIB}


def test_nothing_is_said_of_a_process_that_is_gone_already(node, service, lines):
    service.inspector.alive = lambda pid: False
    node.nvml.put(uuid(node), GpuProcess(77, GIB))
    for _ in range(5):
        sampled(service)
    assert lines("event=audit") == []


def test_overhead_is_sent_again_to_a_new_arbiter_and_for_a_repeated_job(node, service):
    node.jobs_of_pids[50] = 9
    node.arbiter.procs = [ProcessUse(9, uuid(node), 50, GIB)]
    node.nvml.put(uuid(node), GpuProcess(50, 2 * GIB))
    sampled(service)
    for again in (
        lambda: (node.arbiter.restart(), service.lose_arbiter("x"), service.reach_arbiter()),
        lambda: (service.epilog(env()), service.prolog(env())),
    ):
        node.arbiter.overheads.clear()
        sampled(service)
        assert node.arbiter.overheads == {}, "it was told already"
        again()
        sampled(service)
        assert node.arbiter.overheads == {(9, uuid(node)): GIB}


def test_lost_card_does_not_end_the_sample_of_the_others(node, service, lines):
    service.prolog(env(10) | {"SLURM_JOB_GPUS": "1"})
    other = node.nvml.cards()[1].uuid
    node.nvml.lose(uuid(node))
    node.nvml.put(other, GpuProcess(77, 1))
    for _ in range(3):
        sampled(service)
    assert len(lines("audit-stranger")) == 1 and lines("nvml-failed") == []


def test_stopped_process_cannot_register_with_a_new_arbiter_and_is_exempt(node, service, lines):
    """`scontrol suspend`, and meanwhile qgpu-arbiter is upgraded: patience begins when the job
    goes on.
    """
    stopped = {50}
    service.inspector.stopped = stopped.__contains__
    node.jobs_of_pids.update({50: 9, 51: 9})
    node.nvml.put(uuid(node), GpuProcess(50, GIB), GpuProcess(51, GIB), busy={51: 40})
    for _ in range(5):
        sampled(service)
    assert ["pid=51" in line for line in lines("audit-unregistered")] == [True]
    stopped.clear()
    for _ in range(2):
        sampled(service)
    assert len(lines("audit-unregistered")) == 1
    sampled(service)
    assert len(lines("audit-unregistered")) == 2, "it goes on without the shim"
    stopped.update((50, 51))
    for _ in range(2):
        sampled(service)
    stopped.clear()
    for _ in range(5):
        sampled(service)
    assert len(lines("audit-unregistered")) == 2, (
        "whom the administrator lets go on is not found again"
    )


def test_one_process_more_than_a_job_may_have_waits_and_is_exempt(node, service, lines):
    """The arbiter answers ENOSPC (registration.md): it has the shim, and no place yet."""
    node.jobs_of_pids.update(dict.fromkeys(range(1000, 1130), 9))
    node.arbiter.procs = [ProcessUse(9, uuid(node), pid, 0) for pid in range(1000, 1128)]
    node.nvml.put(uuid(node), *(GpuProcess(pid, MIB) for pid in range(1000, 1130)), busy={1129: 30})
    for _ in range(5):
        sampled(service)
    assert ["pid=1129" in line for line in lines("audit-unregistered")] == [True], (
        "and who is at work is found"
    )
    del node.arbiter.procs[0]
    for _ in range(3):
        sampled(service)
    assert any("pid=1128" in line for line in lines("audit-unregistered")), (
        "a place is free: it has no shim"
    )


def test_stopped_process_whose_kernels_run_on_is_found(node, service, lines):
    service.inspector.stopped = lambda pid: True
    node.jobs_of_pids[50] = 9
    node.nvml.put(uuid(node), GpuProcess(50, GIB), busy={50: 90})
    for _ in range(3):
        sampled(service)
    assert len(lines("audit-unregistered")) == 1


# ---- signals, to real processes ------------------------------------------------------------------


def child() -> subprocess.Popen[bytes]:
    return subprocess.Popen(["sleep", "60"])


def test_kill_reaches_only_the_jobs_process():
    mine, other, stranger = child(), child(), child()
    try:
        job = {mine.pid: 9, other.pid: 10}
        pids = (mine.pid, other.pid, stranger.pid, 1, 2**22 + 1)
        assert send_action("kill", pids, grant(uid=os.getuid()), job.get) == [mine.pid]
        assert mine.wait(60) == -signal.SIGKILL
        assert other.poll() is None and stranger.poll() is None
    finally:
        for process in (mine, other, stranger):
            process.kill()
            process.wait()


def test_process_of_another_user_is_left_alone_even_in_the_jobs_cgroup():
    process = child()
    try:
        assert (
            send_action("kill", [process.pid], grant(uid=os.getuid() + 1), {process.pid: 9}.get)
            == []
        )
        assert process.poll() is None
    finally:
        process.kill()
        process.wait()


def test_stop_stops_and_the_administrator_can_inspect():
    process = child()
    try:
        assert send_action("stop", [process.pid], grant(uid=os.getuid()), {process.pid: 9}.get) == [
            process.pid
        ]
        assert not stopped(os.getpid())
        _, status = os.waitpid(process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status) and stopped(process.pid)
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize(("action", "hit"), [("log", False), ("kill", True)])
def test_action_of_the_configuration_is_taken_once_and_said(node, tmp_path, lines, action, hit):
    service = node.service()
    settings = service.config.enforcer.audit.model_copy(update={"action": action})
    service.inspector.enforcer.settings = settings
    service.start()
    service.prolog(env() | {"SLURM_JOB_UID": str(os.getuid())})
    process = child()
    try:
        node.jobs_of_pids[process.pid], node.owners_of_pids[process.pid] = 9, os.getuid()
        node.nvml.put(uuid(node), GpuProcess(process.pid, GIB))
        for _ in range(4):
            sampled(service)
        (said,) = lines("audit-unregistered")
        assert (f"action=kill signalled={process.pid}" in said) is hit
        if hit:
            assert process.wait(60) == -signal.SIGKILL
        assert (process.poll() is not None) is hit
    finally:
        process.kill()
        process.wait()
