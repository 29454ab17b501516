"""qgpud/1: live settings of cards, and grants for programs without Slurm, on a fake node."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from daemon_support import hook_env

from enforcer.daemon.node import NodeService
from enforcer.daemon.requests.answers import Asks, Peer, Reply
from enforcer.daemon.requests.runs import allowed_ids, may_run, next_job_id
from enforcer.ledger.store import read_usage
from enforcer.wire.abi import unpack_grant
from gres.grant.store import RUN_BASE
from simulator.fakes import GIB, FakeNode

ROOT = 0
ME = os.getuid()


def peer(uid: int = ME, groups: frozenset[int] = frozenset(), pid: int | None = None) -> Peer:
    number = os.getpid() if pid is None else pid
    return Peer(number, uid, os.getgid(), groups, lambda: os.pidfd_open(number))


@pytest.fixture
def asks(service: NodeService) -> Asks:
    return Asks(service, ME)


def uuid(node: FakeNode, index: int = 0) -> str:
    return node.nvml.cards()[index].uuid


def ask(asks: Asks, op: str, who: Peer | None = None, **question: Any) -> dict[str, Any]:
    reply: Reply = asks.answer({"op": op, **question}, who or peer())
    if reply.fd is not None:
        os.close(reply.fd)
    return reply.body


def run(asks: Asks, who: Peer | None = None, **question: Any) -> dict[str, Any]:
    return ask(asks, "run", who, **({"share": 30, "class": "offline", "mem": 1024, "card": None} | question))


def env(job: int = 9, comment: str = "qgpu/1 class=online share=60 mem=40960") -> dict[str, str]:
    return hook_env(job, comment)


# ---- cards ---------------------------------------------------------------------------------------


def test_change_reaches_the_arbiter_and_says_before_and_after(node, asks):
    body = ask(asks, "card-set", card="1", values={"slice": "1ms", "policy.offline": "fixed-share"})
    assert body["ok"] and body["reached"]
    assert body["changed"] == [
        {"key": "slice", "before": "2ms", "after": "1ms"},
        {"key": "policy.offline", "before": "burst-share", "after": "fixed-share"},
    ]
    plan = node.arbiter.plans[uuid(node, 1)]
    assert str(plan.slice) == "1ms" and plan.policy["offline"] == "fixed-share"
    assert str(node.arbiter.plans[uuid(node, 0)].slice) == "2ms", "the other card is as it was"


def test_same_value_again_changes_nothing(asks):
    assert ask(asks, "card-set", card="0", values={"slice": "2ms"})["changed"] == []


def test_change_survives_the_arbiter_but_not_qgpud_unless_it_is_saved(node, service, asks):
    ask(asks, "card-set", card="0", values={"slice": "1ms"})
    ask(asks, "card-set", card="0", values={"window": "300us"}, save=True)
    node.arbiter.restart()
    service.lose_arbiter("x")
    service.reach_arbiter()
    plan = node.arbiter.plans[uuid(node)]
    assert (str(plan.slice), str(plan.window)) == ("1ms", "300us")
    again = node.service()
    again.start()
    plan = node.arbiter.plans[uuid(node)]
    assert (str(plan.slice), str(plan.window)) == ("2ms", "300us")


def test_saving_a_key_replaces_its_live_value(node, service, asks):
    ask(asks, "card-set", card="0", values={"slice": "1ms"})
    ask(asks, "card-set", card="0", values={"slice": "3ms"}, save=True)
    assert str(service.plan(0, uuid(node)).slice) == "3ms"


def test_reset_goes_back_to_the_configuration_for_ever(node, asks):
    ask(asks, "card-set", card=uuid(node), values={"slice": "1ms"}, save=True)
    ask(asks, "card-set", card="0", values={"window": "400us"})
    body = ask(asks, "card-reset", card="0")
    assert {row["key"] for row in body["changed"]} == {"slice", "window"}
    again = node.service()
    again.start()
    assert str(node.arbiter.plans[uuid(node)].slice) == "2ms"


def test_change_without_an_arbiter_is_sent_when_it_is_back(node, service, asks):
    node.arbiter.running = False
    service.lose_arbiter("x")
    assert ask(asks, "card-set", card="0", values={"slice": "1ms"})["reached"] is False
    node.arbiter.running = True
    service.reach_arbiter()
    assert str(node.arbiter.plans[uuid(node)].slice) == "1ms"


def test_change_that_the_arbiter_refuses_is_undone(node, service, asks, monkeypatch):
    from enforcer.daemon.arbiter.port import ArbiterRefusedError

    def no(*_: object) -> None:
        raise ArbiterRefusedError("the arbiter refused it")

    monkeypatch.setattr(node.arbiter, "card", no)
    body = ask(asks, "card-set", card="0", values={"slice": "1ms"}, save=True)
    assert body == {"ok": False, "error": "the arbiter refused it; nothing was changed"}
    assert str(service.plan(0, uuid(node)).slice) == "2ms" and service.live.saved.get(uuid(node), {}) == {}


@pytest.mark.parametrize(
    ("question", "sentence"),
    [
        ({"card": "7", "values": {"slice": "1ms"}}, "'7' is no card of n1; it has 0 (GPU-"),
        ({"card": "0", "values": {"slise": "1ms"}}, "there is no setting 'slise'"),
        ({"card": "0", "values": {"slice": "1h"}}, "1h is outside 100us to 1s"),
        ({"card": "0", "values": {}}, "nothing to change"),
        ({"card": "0", "values": ["slice"]}, "values must be an object"),
        ({"card": "0", "values": {"slice": 5}}, "values must be an object"),
        ({"values": {"slice": "1ms"}}, "'' is no card"),
    ],
)
def test_bad_change_is_refused_with_a_sentence(asks, question, sentence):
    body = ask(asks, "card-set", **question)
    assert body["ok"] is False and sentence in body["error"]


def test_only_root_may_change_a_card_and_all_users_may_read(service):
    asks = Asks(service, 0)
    for op in ("card-set", "card-reset", "job-pardon"):
        body = ask(asks, op, peer(uid=1000), card="0", values={"slice": "1ms"}, job=9)
        assert body["ok"] is False and "only root may" in body["error"]
    assert ask(asks, "cards", peer(uid=1000))["ok"] and ask(asks, "status", peer(uid=1000))["ok"]


def test_damaged_file_of_saved_changes_is_set_aside(node, service, asks):
    ask(asks, "card-set", card="0", values={"slice": "1ms"}, save=True)
    for damage in ("", "{", '{"version": 9}', '{"version": 1, "cards": {"GPU-1": {"slice": "1h"}}}'):
        service.live.path.write_text(damage)
        again = node.service()
        again.start()
        assert str(node.arbiter.plans[uuid(node)].slice) == "2ms"
        assert not service.live.path.exists() and service.live.path.with_name("cards.json.bad").exists()


def test_unknown_question_is_answered(asks):
    assert "does not know 'dance'" in ask(asks, "dance")["error"]


def test_isolation_none_gives_the_whole_memory_and_stays_accounted(node, service, asks):
    ask(asks, "card-set", card="0", values={"isolation.online": "none"})
    assert node.arbiter.plans[uuid(node)].isolation == {"online": "none", "offline": "governed"}
    service.prolog(env(9))
    service.prolog(env(10, "qgpu/1 class=offline share=30 mem=1024"))
    assert node.arbiter.grants[9].cards[0].mem_cap == 80 * GIB
    assert node.arbiter.grants[10].cards[0].mem_cap == GIB
    node.arbiter.count(9, uuid(node), busy_ns=5)
    service.poll_arbiter()
    (row,) = read_usage(node.directory / "state/ledger.sqlite", [9])
    assert row.busy_ns == 5 and row.mem_cap == 80 * GIB


# ---- programs without Slurm ----------------------------------------------------------------------


def test_grant_of_a_run_is_sealed_and_as_a_jobs(node, service, asks):
    reply = asks.answer({"op": "run", "share": 30, "class": "online", "mem": 2048, "card": "1"}, peer())
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
    assert next_job_id(10**18, [first, 7]) == first + 1 and next_job_id(2 * 10**18, [first]) > first + 1


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
        ({"mem": 10}, "--mem 10M is below the least, 64M"),
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
    assert allowed_ids(["a", "b"], {"a": 1}.__getitem__, "user") == {1}, "an unknown name is left out"


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
    file.write_text(json.dumps(json.loads(file.read_text()) | {"start": 1}))  # the number is another's now
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


# ---- the class of a running job --------------------------------------------------------------------


def test_a_running_job_changes_class_at_the_arbiter_and_for_later_steps(node, service, asks):
    assert service.prolog(env(9)).status == 0
    assert ask(asks, "job-class", job=9, job_class="offline") == {
        "ok": True, "before": "online", "after": "offline", "reached": True,
    }  # fmt: skip
    assert [grant.job_class for grant in node.arbiter.grants.values()] == ["offline"]
    assert service.store.read(9).job_class == "offline"
    assert unpack_grant((service.store.directory / "9.grant").read_bytes()).job_class == 2, "offline"
    assert ask(asks, "job-class", job=9, job_class="online")["before"] == "offline"
    assert [row.end_reason for row in read_usage(service.ledger.path, [9])] == [None], (
        "the books stay as granted"
    )


def test_root_pardons_a_job_that_has_a_grant(service, asks):
    assert service.prolog(env(9)).status == 0
    assert ask(asks, "job-pardon", job=9) == {"ok": True, "continued": []}
    assert "no grant of a job 10 stands on n1" in ask(asks, "job-pardon", job=10)["error"]
    assert "no grant of a job 'x'" in ask(asks, "job-pardon", job="x")["error"]


def test_a_class_that_promises_more_than_was_booked_needs_force(service, asks):
    offline = "qgpu/1 class=offline share=60 mem=1024"
    assert service.prolog(env(9, offline)).status == 0
    said = ask(asks, "job-class", job=9, job_class="online")
    assert not said["ok"] and "booked with 2 % of its card and online needs 60 %" in said["error"]
    assert service.grants[9].job_class == "offline"
    assert ask(asks, "job-class", job=9, job_class="online", force=True)["ok"]
    assert service.grants[9].job_class == "online"


@pytest.mark.parametrize(
    ("question", "says"),
    [
        ({"job": 8, "job_class": "offline"}, "job 8 has no share of a card on n1"),
        ({"job": 10, "job_class": "offline"}, "its grant is whole"),
        ({"job": 9, "job_class": "other"}, "online or offline"),
        ({"job": True, "job_class": "offline"}, "a job's number"),
    ],
)
def test_classes_that_cannot_be_changed(service, asks, question, says):
    assert service.prolog(env(9)).status == 0
    assert service.prolog(env(10, "qgpu/1 whole") | {"SLURM_JOB_GPUS": "1"}).status == 0
    said = ask(asks, "job-class", **question)
    assert not said["ok"] and says in said["error"]


def test_only_root_changes_a_class(service, asks):
    assert service.prolog(env(9)).status == 0
    assert not ask(asks, "job-class", peer(ME + 1), job=9, job_class="offline")["ok"]
    assert service.grants[9].job_class == "online"
