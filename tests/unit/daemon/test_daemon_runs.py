"""Grants for programs without Slurm (`qgpu run`), on a fake node."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from questions_support import ME, ask, env, peer, run, uuid

from enforcer.daemon.requests.answers import Asks
from enforcer.daemon.requests.reply import Peer
from enforcer.daemon.requests.runs import allowed_ids, may_run, next_job_id
from enforcer.ledger.store import read_usage
from enforcer.wire.abi import unpack_grant
from gres.grant.store import RUN_BASE
from simulator.fakes import GIB


def test_grant_of_a_run_is_sealed_and_as_a_jobs(node, service, asks):
    reply = asks.answer(
        {"op": "run", "share": 30, "class": "online", "mem": 2048, "card": "1"}, peer()
    )
    assert reply.body["ok"] and reply.fd is not None
    page = unpack_grant(os.read(reply.fd, 65536) if os.lseek(reply.fd, 0, 0) == 0 else b"")
    with pytest.raises(PermissionError):
        os.write(reply.fd, b"x")
    os.close(reply.fd)
    job = reply.body["job_id"]
    assert job >= RUN_BASE and page.job_id == job and page.uid == ME
    assert (page.cards[0].share, page.cards[0].mem_cap) == (30, 2 * GIB)
    assert page.cards[0].uuid.decode() == uuid(node, 1) == reply.body["uuid"]
    assert node.arbiter.grants[job].job_class == "online"
    assert Path(reply.body["path"]).read_bytes()


def test_numbers_are_never_used_twice():
    first = next_job_id(10**18, [])
    assert (
        next_job_id(10**18, [first, 7]) == first + 1
        and next_job_id(2 * 10**18, [first]) > first + 1
    )


def test_without_a_card_the_one_with_most_memory_left_is_taken(node, service, asks):
    service.prolog(env())
    assert run(asks)["index"] == 1
    assert [run(asks, mem=30 * 1024)["index"] for _ in range(3)] == [1, 1, 0]


@pytest.mark.parametrize(
    ("question", "sentence"),
    [
        ({"mem": 100 * 1024}, "100G of memory do not fit: card 0 has 78G of 78G left"),
        (
            {"mem": 40 * 1024, "card": "0"},
            "card 0 has 38G of 78G left beside 1 grant(s); write --mem 38G or less",
        ),
        (
            {"share": 50, "class": "online", "card": "0"},
            "--share 50 does not fit: card 0 has 40 percent left",
        ),
        ({"card": "5"}, "--card 5 is no card of this node; it has 0 (GPU-"),
        ({"share": 0}, "--share 0 is outside 1 to 100 percent; write for example --share 30"),
        ({"share": True}, "share is True"),
        ({"mem": 10}, "--mem 10M is below the least, 512M"),
        ({"mem": "8G"}, "mem is '8G'"),
        ({"class": "batch"}, "class is 'batch', but must be one of online, offline"),
        ({"card": 0}, "card must be an index or a UUID"),
    ],
)
def test_what_does_not_fit_is_refused_with_what_would(node, service, asks, question, sentence):
    service.prolog(env())
    before = dict(service.grants)
    if "card" not in question and question.get("mem") == 100 * 1024:
        service.epilog(env())
        before = {}
    body = run(asks, **question)
    assert body["ok"] is False and sentence in body["error"]
    assert service.grants == before


def test_sum_of_caps_never_exceeds_the_card(node, service, asks):
    given = 0
    while (body := run(asks, mem=7 * 1024, card="0"))["ok"]:
        given += body["mem_cap"]
    assert given == 77 * GIB and "1G of 78G left" in body["error"]


def test_whole_card_job_leaves_nothing(service, asks):
    service.prolog(env(9, "qgpu/1 whole"))
    assert "card 0 belongs to a job as a whole" in run(asks, card="0")["error"]


def test_user_without_permission_reads_what_to_do(service):
    asks = Asks(service, 0)
    body = run(asks, peer(uid=12345))
    assert (
        body["ok"] is False
        and "sbatch --gres=qgpu:30" in body["error"]
        and "run.allow_users" in body["error"]
    )


def test_permission_is_by_user_or_by_any_of_his_groups():
    assert may_run(0, [], set(), set())
    assert may_run(7, [8], {7}, set()) and may_run(7, [8, 9], set(), {9})
    assert not may_run(7, [8], {8}, {7})
    assert allowed_ids(["a", "b"], {"a": 1}.__getitem__, "user") == {1}, (
        "an unknown name is left out"
    )


def test_program_inside_a_job_is_turned_away(node, asks):
    node.jobs_of_pids[os.getpid()] = 77
    assert "you are inside job 77" in run(asks)["error"]


def test_setuid_program_is_turned_away(service):
    asks = Asks(service, 4242)
    body = run(asks, peer(uid=4242))
    assert body["error"] == "a setuid program may not ask for a grant"
    assert service.grants == {}


def test_program_that_is_gone_gets_nothing(service, asks):
    gone = Peer(2**22 + 5, ME, 0, frozenset(), lambda: os.pidfd_open(2**22 + 5))
    assert run(asks, gone)["error"] == "the program that asked is gone" and service.grants == {}


def test_without_the_arbiter_nothing_is_granted(node, service, asks):
    node.arbiter.running = False
    service.lose_arbiter("x")
    body = run(asks)
    assert body["ok"] is False and "qgpu-arbiter" in body["error"]
    assert service.grants == {} and service.runs.pidfds == {}
    assert [p.name for p in service.store.directory.iterdir()] == []


def test_end_of_the_program_ends_its_row_and_leaves_no_file(node, service, asks):
    job = run(asks)["job_id"]
    service.end(job, "exit")
    (row,) = read_usage(node.directory / "state/ledger.sqlite", [job])
    assert row.end_reason == "exit" and node.arbiter.grants == {}
    assert list(service.store.directory.iterdir()) == [] and service.runs.pidfds == {}


def test_restart_of_qgpud_keeps_living_programs_and_ends_the_others(node, service, asks):
    kept, gone = run(asks)["job_id"], run(asks)["job_id"]
    file = service.store.directory / f"{gone}.run"
    # the number is another's now
    file.write_text(json.dumps(json.loads(file.read_text()) | {"start": 1}))
    again = node.service()
    again.start()
    assert set(again.runs.pidfds) == {kept}
    again.end_left()
    assert set(again.grants) == {kept, gone}, "what it left may not be back at the arbiter yet"
    node.clock.advance(2)
    again.end_left()
    assert set(again.grants) == {kept} == set(again.runs.pidfds)
    assert {p.name for p in service.store.directory.iterdir()} == {
        f"{kept}{s}" for s in (".json", ".grant", ".run")
    }


def test_isolation_none_gives_a_run_the_whole_card(node, service, asks):
    ask(asks, "card-set", card="0", values={"isolation": "none"})
    for _ in range(3):
        assert run(asks, card="0")["mem_cap"] == 80 * GIB
    body = ask(asks, "cards")["cards"][0]
    assert (body["grants"], body["mem_left"]) == (3, 78 * 1024), "nothing is booked, all share"


def test_job_that_slurm_puts_beside_a_program_it_does_not_know_is_warned_of(service, asks, caplog):
    import logging

    logging.getLogger("qgpud").propagate = True
    run(asks, mem=60 * 1024, card="0")
    assert not any("event=card-crowded" in r.getMessage() for r in caplog.records)
    service.prolog(env())
    (said,) = [r.getMessage() for r in caplog.records if "event=card-crowded" in r.getMessage()]
    assert "job=9" in said and "runs=1" in said
