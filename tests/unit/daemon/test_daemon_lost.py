"""Grants that no Epilog ended: squeue's answer, the Prolog that they are in the way of, release."""

from __future__ import annotations

import itertools
import os
import socket
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from daemon_support import Serving
from daemon_support import hook_env as env
from questions_support import peer

from enforcer.clock import SystemClock
from enforcer.daemon.granting.hookproto import Answer, Later
from enforcer.daemon.granting.jobshere import FIELDS, JobsHere, Question, Told, parse
from enforcer.ledger.store import read_usage
from simulator.fakes import FakeNode

BIG = "qgpu/1 class=offline share=80 mem=63897"
HALF = "qgpu/1 class=offline share=50 mem=39936"
HEAD = "JOBID               ST                  END_TIME                                \n"


class Slurmctld:
    """Answers as the test says; None: not yet."""

    def __init__(self) -> None:
        self.said: Told | str | None = None
        self.asked = 0

    def ask(self) -> Question:
        self.asked += 1
        return self

    def answer(self) -> Told | str | None:
        return self.said

    def drop(self) -> None:
        self.said = "dropped"


@pytest.fixture
def slurmctld(node: FakeNode) -> Slurmctld:
    node.controller = Slurmctld()
    return node.controller


@pytest.fixture
def alice(node: FakeNode, slurmctld: Slurmctld):
    """A node on which job 9 has most of a card, and no step."""
    service = node.service()
    service.start()
    assert service.prolog(env(9, BIG)) == Answer(0)
    return service


def row(node: FakeNode, job: int = 9):
    (found,) = read_usage(node.directory / "state/ledger.sqlite", [job])
    return found


# ---- what squeue says ---------------------------------------------------------------------------


def line(job: int, state: str, end: str = "N/A") -> str:
    return f"{job:<20}{state:<20}{end:<40}\n"


def test_states_that_hold_the_node_and_those_that_do_not():
    rows = [line(1, "R"), line(2, "CG"), line(3, "S"), line(4, "CF"), line(5, "XX")]
    over = [line(11, "CD", "2026-01-02T03:04:05"), line(12, "PD"), line(13, "NF", "Unknown")]
    told = parse(HEAD + "".join(rows + over))
    assert told is not None and told.here == {1, 2, 3, 4, 5} and list(told.ended) == [11]
    assert parse(HEAD) == Told(frozenset())


@pytest.mark.parametrize(
    "text", ["", "\n", line(1, "R"), HEAD[:-1], HEAD + "1 R\n", HEAD + "1 R N/A", HEAD + "x R N\n"]
)
def test_what_is_no_whole_answer_is_none(text):
    assert parse(text) is None


def squeue(directory: Path, script: str) -> JobsHere:
    path = directory / "squeue"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return JobsHere(str(directory / "scontrol"), "n1")


def result(question: Question) -> Told | str:
    while (answer := question.answer()) is None:
        os.sched_yield()
    return answer


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: only a program of root is run")
def test_squeue_is_asked_about_this_node_alone(trusted_tmp):
    here = squeue(trusted_tmp, f'echo "$@" >"$0.args"\nprintf "%s" "{HEAD}{line(7, "R")}"')
    assert result(here.ask()) == Told(frozenset({7}))
    words = (trusted_tmp / "squeue.args").read_text().split()
    assert words[words.index("-w") + 1] == "n1" and words[-1] == FIELDS
    failing = squeue(trusted_tmp, f'printf "%s" "{HEAD}"\necho no controller >&2\nexit 1')
    assert result(failing.ask()) == "squeue failed: no controller"
    assert "did not answer as expected" in str(result(squeue(trusted_tmp, "true").ask()))
    (trusted_tmp / "squeue").unlink()
    assert "was not run" in str(result(here.ask()))


@pytest.fixture
def trusted_tmp():
    """A directory that no other user could replace."""
    path = Path(f"/var/lib/qgpu-test-{os.getpid()}")
    path.mkdir(mode=0o755)
    yield path
    for entry in path.iterdir():
        entry.unlink()
    path.rmdir()


# ---- a grant that no Epilog ended ---------------------------------------------------------------


def test_prolog_waits_for_slurmctld_before_it_is_refused(node, alice, slurmctld):
    assert isinstance(alice.prolog(env(10, HALF)), Later) and slurmctld.asked == 1
    assert isinstance(alice.prolog(env(10, HALF)), Later) and slurmctld.asked == 1
    slurmctld.said = Told(frozenset({10}), {9: node.clock.realtime_ns() - 1})
    alice.end_lost()
    assert alice.grants == {} and not node.arbiter.grants
    assert alice.prolog(env(10, HALF)) == Answer(0)
    assert alice.grants[10].state == "active" and node.arbiter.grants.keys() == {10}
    assert row(node).end_reason == "lost" and row(node).ended_at is not None
    assert (node.directory / "run/grants/9.over").exists(), "no task starts in it any more"


def refusal(service, slurmctld: Slurmctld, said: Told | str) -> str:
    """The sentence for a job in whose way another one is."""
    assert isinstance(service.prolog(env(10, HALF)), Later)
    slurmctld.said = said
    service.end_lost()
    assert service.prolog(env(10, HALF)) == Answer(0)
    assert service.grants[10].state == "refused" and 9 in service.grants
    return service.grants[10].message


def test_job_that_slurm_has_here_keeps_its_grant_and_is_named(alice, slurmctld):
    text = refusal(alice, slurmctld, Told(frozenset({9, 10})))
    assert "belong to job 9. A job's gres did not pass" in text


def test_without_an_answer_nothing_is_concluded_and_nobody_blamed(alice, slurmctld):
    text = refusal(alice, slurmctld, "squeue failed")
    assert "job 9. Nothing of job 9 runs there" in text and "job_submit" not in text


def test_prolog_does_not_wait_beyond_half_of_its_deadline(node, alice):
    assert isinstance(alice.prolog(env(10, HALF)), Later)
    node.clock.advance(5)
    assert alice.prolog(env(10, HALF)) == Answer(0) and alice.grants[10].state == "refused"


def test_job_with_a_slurmstepd_is_not_asked_about(node, alice, slurmctld):
    node.jobs_with_step.add(9)
    assert alice.prolog(env(10, HALF)) == Answer(0) and alice.grants[10].state == "refused"
    node.clock.advance(7200)
    alice.lost.look(alice.grants)
    assert slurmctld.asked == 0


def test_slurmctld_is_asked_after_a_minute_and_ever_less_often(node, alice, slurmctld):
    slurmctld.said, when = Told(frozenset({9})), []
    for second in range(0, 8000, 15):
        before = slurmctld.asked
        alice.lost.look(alice.grants)
        alice.end_lost()
        when += [second] * (slurmctld.asked - before)
        node.clock.advance(15)
    waits = [b - a for a, b in itertools.pairwise(when)]
    assert when[0] == 60 and waits[:4] == [120, 240, 480, 960] and set(waits[4:]) == {960}
    slurmctld.said = Told(frozenset())
    node.clock.advance(960)
    alice.lost.look(alice.grants)
    alice.end_lost()
    assert alice.grants == {} and row(node).end_reason == "lost"


def test_waiting_prolog_of_a_served_node_gets_its_place(node, slurmctld, talk: Callable[..., str]):
    node.clock = SystemClock()
    slurmctld.said = Told(frozenset({10}))
    serving = Serving(node)
    try:
        assert talk(serving, env(9, BIG)) == "0" and talk(serving, env(10, HALF)) == "0"
        assert set(node.arbiter.grants) == {10}
    finally:
        serving.stop()


@pytest.fixture
def talk() -> Callable[..., str]:
    """Sends a Prolog to a server; the status that it answers."""

    def send(serving: Serving, variables: dict[str, str]) -> str:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
            sock.settimeout(30)
            sock.connect(str(serving.path))
            text = "".join(f"{key}={value}\0" for key, value in variables.items())
            sock.send(f"qgpu-hook/1 prolog\0{text}".encode())
            return sock.recv(65536).partition(b"\0")[0].decode().split()[-1]

    return send


# ---- root's way ---------------------------------------------------------------------------------


def test_root_releases_a_grant_whose_job_is_gone(node, asks, service):
    service.prolog(env(9, BIG))
    node.jobs_with_step.add(9)
    refused = asks.answer({"op": "job-release", "job": 9}, peer()).body
    assert not refused["ok"] and "job 9 still runs" in refused["error"]
    node.jobs_with_step.clear()
    assert asks.answer({"op": "job-release", "job": 9}, peer()).body["ok"]
    assert service.grants == {} and row(node).end_reason == "released"
    again = asks.answer({"op": "job-release", "job": 9}, peer()).body
    assert "no grant of a job 9" in again["error"]
