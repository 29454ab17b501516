"""qgpud/1: live settings of cards and the class of running jobs, on a fake node."""

from __future__ import annotations

import pytest
from questions_support import ME, ask, env, peer, uuid

from enforcer.daemon.requests.answers import Asks
from enforcer.ledger.store import read_usage
from enforcer.wire.abi import unpack_grant
from simulator.fakes import GIB

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


def test_idle_release_changes_to_auto_and_back(node, asks):
    values = {"idle_release": "auto", "online_delay": "2ms"}
    body = ask(asks, "card-set", card="0", values=values)
    assert body["changed"] == [
        {"key": "idle_release", "before": "100ms", "after": "auto"},
        {"key": "online_delay", "before": "1ms", "after": "2ms"},
    ]
    assert [each.ms for each in node.arbiter.plans[uuid(node)].release()] == [100, 2]
    ask(asks, "card-set", card="0", values={"idle_release": "100ms"})
    assert [each.ms for each in node.arbiter.plans[uuid(node)].release()] == [100, 0]


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
    assert (
        str(service.plan(0, uuid(node)).slice) == "2ms"
        and service.live.saved.get(uuid(node), {}) == {}
    )


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
    for op in ("card-set", "card-reset", "job-pardon", "job-release"):
        body = ask(asks, op, peer(uid=1000), card="0", values={"slice": "1ms"}, job=9)
        assert body["ok"] is False and "only root may" in body["error"]
    assert ask(asks, "cards", peer(uid=1000))["ok"] and ask(asks, "status", peer(uid=1000))["ok"]


def test_damaged_file_of_saved_changes_is_set_aside(node, service, asks):
    ask(asks, "card-set", card="0", values={"slice": "1ms"}, save=True)
    for damage in (
        "",
        "{",
        '{"version": 9}',
        '{"version": 1, "cards": {"GPU-1": {"slice": "1h"}}}',
    ):
        service.live.path.write_text(damage)
        again = node.service()
        again.start()
        assert str(node.arbiter.plans[uuid(node)].slice) == "2ms"
        assert (
            not service.live.path.exists()
            and service.live.path.with_name("cards.json.bad").exists()
        )


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


# ---- the class of a running job ------------------------------------------------------------------


def test_a_running_job_changes_class_at_the_arbiter_and_for_later_steps(node, service, asks):
    assert service.prolog(env(9)).status == 0
    assert ask(asks, "job-class", job=9, job_class="offline") == {
        "ok": True,
        "before": "online",
        "after": "offline",
        "reached": True,
    }
    assert [grant.job_class for grant in node.arbiter.grants.values()] == ["offline"]
    assert service.store.read(9).job_class == "offline"
    assert unpack_grant((service.store.directory / "9.grant").read_bytes()).job_class == 2, (
        "offline"
    )
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
