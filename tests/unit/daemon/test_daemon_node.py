"""The daemon's behaviour on a fake node: grants, restarts of either daemon, markers, audit. No
sockets.
"""

from __future__ import annotations

import os

import pytest
from daemon_support import hook_env as env

from enforcer.clock import FakeClock
from enforcer.daemon.granting.hookproto import Answer, Later
from enforcer.ledger.store import Usage, read_usage
from enforcer.nvml.port import GpuProcess
from enforcer.wire.abi import GRANT_CARD_MANAGED_RESIDENT, unpack_grant
from simulator.fakes import GIB, FakeNode


def rows(node: FakeNode, job: int = 9) -> list[Usage]:
    return read_usage(node.directory / "state/ledger.sqlite", [job])


def uuid(node: FakeNode, index: int = 0) -> str:
    return node.nvml.cards()[index].uuid


def files(node: FakeNode) -> set[str]:
    return {p.name for p in (node.directory / "run/grants").iterdir() if p.suffix != ".over"}


def test_prolog_writes_both_files_tells_the_arbiter_and_opens_the_ledger(node, service):
    assert service.prolog(env()) == Answer(0)
    assert files(node) == {"9.json", "9.grant"}
    blob = node.directory / "run/grants/9.grant"
    assert blob.stat().st_mode & 0o777 == 0o644
    page = unpack_grant(blob.read_bytes())
    assert (page.job_id, page.uid, page.cards[0].share, page.cards[0].mem_cap) == (
        9,
        1000,
        30,
        12 * GIB,
    )
    assert node.arbiter.grants[9].cards[0].share == 30
    (row,) = rows(node)
    assert (row.job_class, row.share, row.mem_cap, row.ended_at, row.busy_ns) == (
        "online",
        30,
        12 * GIB,
        None,
        None,
    )


def test_grant_carries_how_managed_memory_is_charged(node):
    enforcer = node.config.enforcer.model_copy(update={"managed": "resident"})
    node.config = node.config.model_copy(update={"enforcer": enforcer})
    service = node.service()
    service.start()
    service.prolog(env())
    page = unpack_grant((node.directory / "run/grants/9.grant").read_bytes())
    assert page.cards[0].flags == GRANT_CARD_MANAGED_RESIDENT


def test_refused_and_whole_jobs_are_files_but_no_tenants(node, service):
    assert service.prolog(env(1, "", "0")) == Answer(0)
    assert service.prolog(env(2, "qgpu/1 whole", "1")) == Answer(0)
    assert files(node) == {"1.json", "1.grant", "2.json", "2.grant"}
    assert node.arbiter.grants == {}
    assert rows(node, 1) == [] and rows(node, 2)[0].state == "whole"


def test_same_prolog_twice_changes_nothing(node, service):
    service.prolog(env())
    before = (node.directory / "run/grants/9.json").read_text()
    node.clock.advance(5)
    assert service.prolog(env()) == Answer(0)
    assert (node.directory / "run/grants/9.json").read_text() == before
    assert len(rows(node)) == 1


def test_requeued_job_gets_a_new_row(node, service):
    service.prolog(env())
    node.clock.advance(5)
    service.epilog(env())
    node.clock.advance(5)
    service.prolog(env())
    first, second = rows(node)
    assert first.ended_at is not None and second.ended_at is None
    assert second.granted_at - first.granted_at == 10 * 10**9


def test_prolog_with_another_promise_replaces_the_grant(node, service):
    service.prolog(env())
    node.clock.advance(1)
    service.prolog(env(comment="qgpu/1 class=offline share=50 mem=1024"))
    assert node.arbiter.grants[9].job_class == "offline"
    first, second = sorted(rows(node), key=lambda row: row.share)
    assert first.end_reason == "replaced" and second.ended_at is None


def test_broken_node_is_status_one_with_the_reason(node, service):
    node.nvml.lose(uuid(node))
    answer = service.prolog(env())
    assert answer is not None and answer.status == 1 and "card 0 (/dev/qgpufake0)" in answer.message
    assert files(node) == set()


def test_driver_that_is_gone_is_a_broken_node_but_not_for_jobs_without_card(node, service):
    node.nvml.fault = "the NVIDIA driver does not answer through NVML: Driver Not Loaded"
    assert service.prolog(env()) == Later(node.nvml.fault)
    assert service.broken(env(), node.nvml.fault) == Answer(1, node.nvml.fault)
    assert service.prolog(env(3, "text", "")) == Answer(0)


def test_an_error_that_may_pass_is_bridged_with_the_cards_of_the_last_answer(node, service, lines):
    assert service.prolog(env()) == Answer(0)
    node.nvml.failure = "the NVIDIA driver does not answer through NVML: Unknown Error"
    for job in (10, 11):
        assert service.prolog(env(job)) == Answer(0)
    assert node.arbiter.grants[10].cards == node.arbiter.grants[9].cards
    assert len(lines("event=nvml-failing")) == 1, "said once"
    node.nvml.failure = None
    assert service.prolog(env(12)) == Answer(0)
    node.nvml.failure = "again"
    node.clock.advance(10**6)  # how long it worked does not count against it
    assert service.prolog(env(13)) == Answer(0)
    assert len(lines("event=nvml-failing")) == 2
    node.clock.advance(301)
    assert service.prolog(env(14)) == Later("again"), (
        "what does not pass is a broken node in the end"
    )


def test_a_card_is_never_promised_twice_even_where_slurm_booked_too_little(node, service):
    """Whoever goes around job_submit can have 1 shard and a promise of 70 GiB; nobody else gets
    the same memory.
    """
    big, small = "qgpu/1 class=offline share=10 mem=71680", "qgpu/1 class=online share=30 mem=12288"
    node.jobs_with_step.add(9)
    assert service.prolog(env(9, big)) == Answer(0)
    assert service.prolog(env(10, small)) == Answer(0)
    refused = service.grants[10]
    assert (refused.state, node.arbiter.grants.keys()) == ("refused", {9})
    assert (
        "did not pass qgpu's job_submit plugin" in refused.message
        and "70G of its 80G belong to job 9." in refused.message
    )
    assert service.prolog(env(9, big)) == Answer(0), "the same Prolog again"
    assert service.grants[9].state == "active"
    assert service.prolog(env(11, small, "1")) == Answer(0) and service.grants[11].state == "active"
    service.epilog(env(9))
    assert service.prolog(env(12, small)) == Answer(0) and service.grants[12].state == "active"


def test_a_fault_that_does_not_pass_is_not_bridged(node, service):
    assert service.prolog(env()) == Answer(0)
    node.nvml.fault = "Driver/library version mismatch"
    assert service.prolog(env(10)) == Later(node.nvml.fault)


def test_missing_libcuda_is_a_broken_node(node, service):
    (node.directory / "libcuda.so.1").unlink()
    answer = service.prolog(env())
    assert answer is not None and answer.status == 1 and "driver.libcuda" in answer.message


def test_prolog_without_arbiter_waits_and_then_counts(node, service):
    node.arbiter.running = False
    assert service.prolog(env()) is None
    assert not service.connected and files(node) == {"9.json", "9.grant"}
    node.arbiter.running = True
    assert service.reach_arbiter()
    assert 9 in node.arbiter.grants


def test_abandoned_prolog_leaves_no_grant_and_names_the_arbiter(node, service):
    node.arbiter.running = False
    assert service.prolog(env()) is None
    answer = service.abandon(9)
    assert (
        answer.status == 1 and "qgpu-arbiter" in answer.message and "state=resume" in answer.message
    )
    assert files(node) == set() and rows(node)[0].end_reason == "failed"


def test_a_program_without_slurm_reads_nothing_of_resuming_a_node(node, service):
    node.arbiter.running = False
    assert service.prolog(env()) is None
    answer = service.abandon(9, "run the program again")
    assert answer.message.endswith("(systemctl start qgpu-arbiter), then run the program again")


def test_arbiter_that_restarted_unnoticed_gets_the_full_list_within_the_prolog(node, service):
    service.prolog(env(8))
    node.arbiter.restart()
    assert service.prolog(env(9)) == Answer(0)
    assert set(node.arbiter.grants) == {8, 9}


@pytest.mark.parametrize("connected", [True, False])
def test_grant_without_a_place_is_the_jobs_refusal_and_the_node_serves_on(node, service, connected):
    node.arbiter.refuses[9] = "the arbiter refused the grant of job 9: there is no room for more"
    node.arbiter.full = True
    if not connected:
        service.lose_arbiter("test")
    assert service.prolog(env()) == Answer(0)
    kept = service.grants[9]
    assert (kept.state, kept.cards) == ("refused", ())
    assert kept.message == f"job 9 has no place on n1: {node.arbiter.refuses[9]}. Submit it again."
    assert service.store.read(9) == kept, "SPANK shows it"
    assert service.prolog(env(10)) == Answer(0) and 10 in node.arbiter.grants


@pytest.mark.parametrize("connected", [True, False])
def test_grant_that_the_arbiter_refuses_is_a_broken_node(node, service, connected):
    node.arbiter.refuses[9] = "the arbiter refused the grant of job 9: a value is out of range"
    if not connected:
        service.lose_arbiter("test")
    answer = service.prolog(env())
    assert answer == Answer(1, node.arbiter.refuses[9])
    assert files(node) == set() and service.grants == {}
    assert service.prolog(env(10)) == Answer(0)


def test_cards_that_appear_after_the_start_are_sent_to_the_arbiter(node):
    cards, node.nvml._cards = node.nvml._cards, {}
    service = node.service()
    service.start()
    assert service.connected and node.arbiter.uuids == ()
    node.nvml._cards = cards
    assert service.prolog(env()) == Answer(0)
    assert node.arbiter.uuids == tuple(cards) and 9 in node.arbiter.grants


def test_epilog_takes_the_last_counters_before_it_revokes(node, service):
    service.prolog(env())
    node.arbiter.count(9, uuid(node), busy_ns=7, launches=3, mem_peak=5, denied=1)
    node.clock.advance(2)
    node.arbiter.calls.clear()
    assert service.epilog(env()) == Answer(0)
    assert node.arbiter.calls == ["stats", "revoke 9"]
    (row,) = rows(node)
    assert (row.busy_ns, row.launches, row.mem_peak, row.denied, row.preemptions) == (7, 3, 5, 1, 0)
    assert row.end_reason == "epilog" and row.wall_ns(0) == 2 * 10**9
    assert files(node) == set()


def test_epilog_works_without_the_arbiter_and_twice(node, service):
    service.prolog(env())
    node.arbiter.running = False
    assert service.epilog(env()) == Answer(0)
    assert service.epilog(env()) == Answer(0)
    assert rows(node)[0].end_reason == "epilog" and files(node) == set()
    node.arbiter.running = True
    service.reach_arbiter()
    assert node.arbiter.grants == {}


def test_epilog_with_nonsense_never_fails_a_node(service):
    answer = service.epilog({"SLURM_JOB_ID": "../7"})
    assert answer.status == 0 and "../7" in answer.message


def test_restart_of_qgpud_takes_the_grants_from_the_files(node, service):
    service.prolog(env())
    node.arbiter.count(9, uuid(node), busy_ns=100)
    service.poll_arbiter()
    node.arbiter.restart()
    again = node.service()
    again.start()
    assert set(again.grants) == {9} and set(node.arbiter.grants) == {9}
    node.arbiter.count(9, uuid(node), busy_ns=30)
    again.poll_arbiter()
    assert rows(node)[0].busy_ns == 130
    assert again.prolog(env()) == Answer(0) and len(rows(node)) == 1


def test_marker_of_an_epilog_without_daemon_ends_the_grant_at_start(node, service):
    service.prolog(env())
    began = node.clock.realtime_ns()
    node.arbiter.count(9, uuid(node), busy_ns=7)
    marker = node.directory / "run/grants/9.ended"
    marker.touch()
    os.utime(marker, ns=(began + 5 * 10**9, began + 5 * 10**9))
    node.clock.advance(60)
    again = node.service()
    again.start()
    assert again.grants == {} and files(node) == set() and node.arbiter.grants == {}
    (row,) = rows(node)
    assert (row.end_reason, row.wall_ns(0)) == ("marker", 5 * 10**9), (
        "it ended when the Epilog said so"
    )
    assert row.busy_ns == 7, "the arbiter still had the last counters"


def test_marker_of_an_earlier_run_does_not_end_the_requeued_job(node, service):
    service.prolog(env())
    (node.directory / "run/grants/9.ended").touch()
    node.clock.advance(1)
    assert service.prolog(env()) == Answer(0)
    service.take_markers()
    assert set(service.grants) == {9} and 9 in node.arbiter.grants
    assert [row.end_reason for row in rows(node)] == ["marker", None]


def test_grant_from_before_the_boot_is_ended(node, service):
    service.prolog(env())
    node.booted_ns = node.clock.realtime_ns() + 1
    again = node.service()
    again.start()
    assert again.grants == {} and rows(node)[0].end_reason == "boot"


def test_grant_from_after_the_boot_is_kept(node, service):
    node.booted_ns = node.clock.realtime_ns() - 1
    service.prolog(env())
    again = node.service()
    again.start()
    assert set(again.grants) == {9}


@pytest.mark.parametrize(
    "damage", [b"", b"{", b'{"version": 2}', b"\xff" * 50, b"[" * 60000, b"x" * 70000], ids=range(6)
)
def test_damaged_grant_is_set_aside_and_said_and_nothing_else_suffers(node, service, lines, damage):
    service.prolog(env(8))
    service.prolog(env(9))
    (node.directory / "run/grants/9.json").write_bytes(damage)
    again = node.service()
    again.start()
    assert set(again.grants) == {8}
    assert files(node) == {"8.json", "8.grant", "9.json.bad", "9.grant"}
    assert (node.directory / "run/grants/9.grant").stat().st_size == 0, (
        "SPANK must not start tasks on it"
    )
    (said,) = lines("event=grant-damaged")
    assert "job=9" in said
    again.epilog(env(9))
    assert files(node) == {"8.json", "8.grant"}


def test_half_written_files_of_a_killed_daemon_are_swept(node, service):
    (node.directory / "run/grants/.9.json.1.tmp").write_text("{")
    node.service().start()
    assert files(node) == set()


def test_full_disk_under_the_ledger_does_not_stop_a_job(node, service, lines):
    service.ledger.close()
    assert service.prolog(env()) == Answer(0)
    assert lines("event=ledger-failed")


def test_grants_directory_that_cannot_be_written_is_a_broken_node(node, service):
    (node.directory / "run/grants").chmod(0o777)
    answer = service.prolog(env())
    assert answer is not None and answer.status == 1 and "cannot be written" in answer.message
    assert service.grants == {}


def test_repeated_prolog_on_a_full_disk_leaves_the_running_jobs_grant(node, service, monkeypatch):
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    service.prolog(env())
    monkeypatch.setattr(service.store, "_put", full)
    assert service.prolog(env()) == Answer(0), "both files are there: nothing is to be written"
    (node.directory / "run/grants/9.grant").write_bytes(b"damaged")
    answer = service.prolog(env())
    assert answer is not None and answer.status == 1 and "No space left" in answer.message
    assert set(service.grants) == {9} and files(node) == {"9.json", "9.grant"}
    assert service.prolog(env(10)).status == 1 and files(node) == {"9.json", "9.grant"}


def test_failing_nvml_is_said_once_and_the_audit_goes_on_when_it_is_back(node, service, lines):
    service.prolog(env())
    node.nvml.failure = "gone"
    for _ in range(3):
        service.sample_cards()
    assert len(lines("event=nvml-failed")) == 1
    node.nvml.failure = None
    node.jobs_of_pids[50] = 9
    node.nvml.put(uuid(node), GpuProcess(50, GIB))
    service.sample_cards()
    assert rows(node)[0].nvml_mem_peak == GIB


def test_every_line_names_the_job_as_a_field(node, service, lines):
    service.prolog(env(comment="", gpus="0"))
    (said,) = lines("event=refused")
    assert said.startswith("event=refused job=9 uid=1000 why=") and "\n" not in said


def test_clock_of_the_fake_advances(node):
    assert isinstance(node.clock, FakeClock)
    before = node.clock.monotonic_ns()
    node.clock.advance(1.5)
    assert node.clock.monotonic_ns() - before == 1_500_000_000
