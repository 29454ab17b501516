"""Processes that the command of a `qgpu run` left behind, against a fake arbiter."""

from __future__ import annotations

from questions_support import ME, run, uuid

from enforcer.daemon.requests.answers import Asks
from enforcer.ledger.store import read_usage


def test_grant_ends_with_the_last_process_that_its_command_left_on_the_card(node, service):
    job = run(Asks(service, ME))["job_id"]
    node.arbiter.count(job, uuid(node), procs=1)
    node.clock.advance(2)
    service.program_ended(job)
    assert set(service.grants) == {job} and service.runs.pidfds == {}
    node.clock.advance(5)
    service.end_left()
    assert set(service.grants) == {job}
    node.arbiter.count(job, uuid(node), procs=0)
    service.processes_died()
    assert service.grants == {}
    (row,) = read_usage(node.directory / "state/ledger.sqlite", [job])
    assert row.end_reason == "exit"
