"""Memory limits that the driver refuses: by card, by cgroup, briefly or
for good, and the messages.
"""

from __future__ import annotations

import logging
import os

import pytest
from daemon_support import hook_env as env
from memory_support import Picky, service_of, tree

from cli.doctor.checks.node import memory as checks_memory
from cli.doctor.known import Known
from cli.doctor.result import Check
from enforcer.daemon.granting.hookproto import Answer
from enforcer.daemon.limits.backend import STUBBORN, MemoryBackend
from enforcer.daemon.requests.answers import Asks
from enforcer.daemon.requests.reply import Peer
from gres.grant.store import RUN_BASE, Grant, GrantCard
from simulator.fakes import GIB, UNLIMITED, FakeNode

PEER = Peer(os.getpid(), 0, 0, frozenset(), lambda: os.pidfd_open(os.getpid()))


@pytest.fixture
def picky(node: FakeNode) -> Picky:
    node.nvml = Picky.with_cards(2, 80 * GIB)
    assert isinstance(node.nvml, Picky)
    return node.nvml


def of_jobs(uuid: str, cgroup: str) -> bool:
    """Of a job, not of qgpud itself: the probe passes."""
    return "job_" in cgroup


def test_probe_leaves_what_it_found(node, picky, tmp_path):
    cards = [card.uuid for card in picky.cards()]
    picky.limits[cards[0], str(tmp_path)] = (0, 3 * GIB)
    service_of(node, tmp_path)
    assert picky.sets == [(cards[0], str(tmp_path), 3 * GIB), (cards[1], str(tmp_path), UNLIMITED)]
    assert picky.limits == {(cards[0], str(tmp_path)): (0, 3 * GIB)}


def test_each_card_speaks_for_itself(node, picky, tmp_path):
    good, bad = (card.uuid for card in picky.cards())
    picky.refuses = lambda uuid, cgroup: uuid == bad
    service = service_of(node, tmp_path, "nvml")
    assert service.memory.strength == "cooperative"
    assert f"card {bad}: driver 615.12.01 refuses" in service.memory.why
    assert service.prolog(env()) == Answer(0), "on the good card"
    refused = service.prolog(env(10, gpus="1"))
    assert (
        refused is not None
        and refused.status == 1
        and "is nvml, but driver 615.12.01" in refused.message
    )
    leaf = tree(tmp_path, 9)
    service.limit_memory()
    assert picky.limits == {(good, str(leaf)): (0, 12 * GIB)}
    told = service.memory.describe(service.grants.values())
    (row,) = told["memory_jobs"]
    assert (told["memory"], row["strength"], row["why"]) == ("cooperative", "hard", None)


def test_card_without_limits_is_not_bothered_with_jobs(node, picky, tmp_path):
    bad = picky.cards()[0].uuid
    picky.refuses = lambda uuid, cgroup: uuid == bad
    service = service_of(node, tmp_path)
    assert service.prolog(env()) == Answer(0)
    tree(tmp_path, 9)
    picky.sets.clear()
    service.limit_memory()
    assert picky.sets == []
    grant = service.grants[9]
    said = service.memory.describe([grant])
    assert (said["memory"], said["memory_jobs"]) == ("cooperative", []) and "Not Supported" in str(
        said["memory_why"]
    )


def test_card_that_learns_to_take_limits_is_asked_again_by_a_prolog_each_minute(
    node, picky, tmp_path
):
    picky.refuses = lambda uuid, cgroup: True
    service = service_of(node, tmp_path)
    service.prolog(env())
    tree(tmp_path, 9)
    picky.refuses = lambda uuid, cgroup: False
    picky.sets.clear()
    service.prolog(env())
    assert picky.sets == [], "not so soon"
    node.clock.advance(61)
    service.prolog(env(10))
    service.limit_memory()
    assert service.memory.strength == "hard" and len(picky.limits) == 1, "job 9 has it too"


def test_node_is_not_drained_for_what_passed_meanwhile(node, picky, tmp_path):
    picky.refuses = lambda uuid, cgroup: True
    service = service_of(node, tmp_path, "nvml")
    picky.refuses = lambda uuid, cgroup: False
    assert service.prolog(env()) == Answer(0)


def test_refused_limit_is_tried_again_ever_more_rarely(node, picky, tmp_path, caplog):
    logging.getLogger("qgpud").propagate = True
    caplog.set_level(logging.INFO, "qgpud")
    service = service_of(node, tmp_path)
    service.prolog(env())
    tree(tmp_path, 9)
    picky.refuses = of_jobs
    picky.sets.clear()
    assert service.memory.strength == "hard"
    for _ in range(4 * 60):
        service.limit_memory()
        node.clock.advance(0.25)
    assert len(picky.sets) == 7, "at 0, 0.5, 1.5, 3.5, 7.5, 15.5 and 31.5 s"
    assert service.memory.strength == "cooperative" and "Not Supported" in service.memory.why
    grant = service.grants[9]
    assert "limit of job 9" in service.memory.why
    assert service.memory.describe([grant])["memory_jobs"] == [], "the node says the same"
    picky.refuses = lambda uuid, cgroup: False
    node.clock.advance(60)
    service.limit_memory()
    assert service.memory.strength == "hard" and len(picky.limits) == 1
    said = [r.getMessage() for r in caplog.records]
    for event in ("memory-limit-failed", "memory-limit-missing", "memory-limit-late"):
        assert sum(f"event={event}" in line for line in said) == 1, event


def test_step_that_starts_after_a_refusal_gets_its_limit_at_once(node, picky, tmp_path):
    service = service_of(node, tmp_path)
    service.prolog(env())
    first = tree(tmp_path, 9, "step_0/user/task_0") / "step_0/user/task_0"
    picky.refuses = lambda uuid, cgroup: cgroup == str(first)
    service.limit_memory()
    later = tree(tmp_path, 9, "step_1/user/task_0") / "step_1/user/task_0"
    service.limit_memory()
    limited = {cgroup for _, cgroup in picky.limits}
    assert str(later) in limited and str(first) not in limited
    assert service.memory.strength == "cooperative"
    first.rmdir()
    service.limit_memory()
    assert service.memory.strength == "hard", "nothing that is there lacks its limit"


def test_demanded_limit_that_stays_refused_keeps_other_jobs_away(node, picky, tmp_path, caplog):
    logging.getLogger("qgpud").propagate = True
    service = service_of(node, tmp_path, "nvml")
    assert service.prolog(env()) == Answer(0), (
        "its cgroup is not there yet: nothing shows that it will be refused"
    )
    tree(tmp_path, 9)
    picky.refuses = of_jobs
    for _ in range(STUBBORN):
        assert service.prolog(env(10)) == Answer(0), "may pass"
        service.limit_memory()
        node.clock.advance(61)
    answer = service.prolog(env(11))
    assert answer is not None and answer.status == 1
    assert (
        f"refused the limit of job 9 {STUBBORN} times" in answer.message
        and "restart qgpud" in answer.message
    )
    assert service.prolog(env(12, gpus="1")) == Answer(0), "the other card refused nothing"
    assert any("so no other job starts there" in r.getMessage() for r in caplog.records)
    service.epilog(env())
    assert service.memory.strength == "cooperative", "the end of that job repairs nothing"
    picky.refuses = lambda uuid, cgroup: False
    tree(tmp_path, 10)
    service.limit_memory()
    assert service.prolog(env(11)) == Answer(0), "a limit was taken"


def test_program_of_qgpu_run_never_has_the_limit(node, picky, tmp_path):
    service = service_of(node, tmp_path)
    grant = Grant(
        job_id=RUN_BASE + 1,
        uid=0,
        gid=0,
        node="n1",
        state="active",
        job_class="offline",
        cards=(GrantCard(node.nvml.cards()[0].uuid, 0, 0, 30, GIB, 80 * GIB),),
    )
    told = service.memory.describe([grant])
    (row,) = told["memory_jobs"]
    assert row["strength"] == "cooperative"
    assert "qgpu run stays in its user's cgroup" in told["memory_reasons"][row["why"]]
    assert service.memory.run_fault() == ""
    demanded = MemoryBackend("nvml", service.nvml, tmp_path, service.steps)
    assert "submit it as a job" in demanded.run_fault()


def test_doctor_says_what_the_driver_says(node, picky, tmp_path):
    service = service_of(node, tmp_path)
    service.prolog(env())
    known = Known(shim=True)

    def look() -> Check:
        known.daemon = Asks(service, 0).answer({"op": "status"}, PEER).body
        return checks_memory(known)

    assert look().text.endswith(", except job 9: 1 with the shim alone now"), "not there yet"
    tree(tmp_path, 9)
    picky.refuses = of_jobs
    service.limit_memory()
    found = look()
    assert found.status == "warn" and "the limit of job 9 on card GPU-" in found.text
    picky.refuses = lambda uuid, cgroup: False
    node.clock.advance(1)
    service.limit_memory()
    assert look().text.startswith("hard: ") and look().text.endswith("a program does")


def test_limit_below_what_the_job_holds_says_nothing_of_the_card(node, picky, tmp_path):
    service = service_of(node, tmp_path, "nvml")
    service.prolog(env())
    tree(tmp_path, 9)
    picky.refuses, picky.used = of_jobs, 30 * GIB  # it was faster than the limit
    for _ in range(2 * STUBBORN):
        service.limit_memory()
        node.clock.advance(61)
    assert service.memory.strength == "cooperative" and service.prolog(env(10)) == Answer(0)
    picky.refuses = lambda uuid, cgroup: False
    service.limit_memory()
    assert service.memory.strength == "hard"
