"""view.sock: who gets which answer, what hostile askers get, how often one may ask."""

from __future__ import annotations

import os
import socket
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from enforcer.ledger.schema import LedgerError, Usage
from enforcer.ledger.store import Ledger, Sample
from enforcer.rate import Rate
from enforcer.reporting.privacy import Privacy
from enforcer.reporting.state import NodeState, Watcher
from enforcer.reporting.viewclient import ViewError, ask
from enforcer.reporting.viewserver import View, ViewServer
from gres.grant.store import Grant, GrantCard

CARD = GrantCard("GPU-00000000-0000-0000-0000-000000000001", 0, 0, 30, 1000, 4000)
OPEN, CLOSED = Privacy(), Privacy.of(["jobs"], [7])


def grant(job: int, uid: int) -> Grant:
    return Grant(job, uid, 100, "n1", "active", "online", 100, "", (CARD,), "/r", "/d", "/s")


@pytest.fixture
def directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="qgpu-test-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture
def ledger(directory: Path) -> Ledger:
    ledger = Ledger(directory / "ledger.sqlite")
    for job, uid in ((1, 1000), (2, 65534)):
        ledger.open_grant(grant(job, uid))
        ledger.record([Sample(job, CARD.uuid, 1, 5, busy_ns=job)], 10**9)
    return ledger


def state() -> NodeState:
    return Watcher().sample("n1", [grant(1, 1000), grant(2, 65534)], [], (), 1, 1)


def view(ledger: Ledger, privacy: Privacy) -> View:
    return View(ledger.path, privacy, state)


@pytest.fixture
def server(ledger: Ledger, directory: Path) -> Iterator[ViewServer]:
    server = ViewServer(directory / "view.sock", view(ledger, CLOSED))
    yield server
    server.close()


def jobs(text: str) -> list[int]:
    import json

    return [Usage(*row).job_id for row in json.loads(text)["usage"]]


@pytest.mark.parametrize(
    ("privacy", "asker", "seen"),
    [
        (OPEN, 1000, [1, 2]),
        (CLOSED, 1000, [1]),
        (CLOSED, 3, []),
        (CLOSED, 7, [1, 2]),
        (CLOSED, 0, [1, 2]),
    ],
)
def test_rows_follow_the_asking_uid(ledger, privacy, asker, seen):
    one = view(ledger, privacy)
    assert jobs(one.answer(asker, b'{"ask":"usage","jobs":[1,2]}')) == seen
    assert jobs(one.answer(asker, b'{"ask":"usage","since":0,"until":1000}')) == seen
    tenants = NodeState.from_json(one.answer(asker, b'{"ask":"state"}')).cards[0].tenants
    assert [t.job_id for t in tenants] == seen


def test_series_come_when_asked_for(ledger):
    import json

    found = json.loads(view(ledger, OPEN).answer(0, b'{"ask":"usage","jobs":[2],"series":true}'))
    assert found["series"]["0"][0][2] == 2 and found["latency"] == {"0": None}


@pytest.mark.parametrize(
    "question",
    [
        b"",
        b"[]",
        b"{}",
        b"[" * 9000,
        b'{"ask":"usage"}',
        b'{"ask":"usage","jobs":["1"]}',
        b"\xff",
        b'{"ask":"usage","jobs":[-1]}',
        b'{"ask":"usage","jobs":[true]}',
        b'{"ask":"all"}',
        b'{"ask":"usage","since":1,"until":99999999999999999999}',
    ],
)
def test_question_that_is_none_is_a_sentence(ledger, question):
    with pytest.raises(ViewError):
        view(ledger, OPEN).answer(0, question)


def test_ledger_that_is_broken_is_a_sentence(directory):
    (directory / "ledger.sqlite").write_text("hello " * 500)
    with pytest.raises(LedgerError, match="cannot be read"):
        View(directory / "ledger.sqlite", OPEN, state).answer(0, b'{"ask":"usage","jobs":[1]}')


def test_before_the_first_sample_there_is_no_state(ledger):
    with pytest.raises(ViewError, match="not sampled its cards"):
        View(ledger.path, OPEN, lambda: None).answer(0, b'{"ask":"state"}')


def test_answer_over_the_socket(server):
    assert (
        NodeState.from_json(__import__("json").dumps(ask(server.path, {"ask": "state"}))) == state()
    )
    with pytest.raises(ViewError, match="must be state or usage"):
        ask(server.path, {"ask": "x"})


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user to play")
def test_another_user_gets_his_own_rows_and_cannot_read_the_file(server, ledger):
    pid = os.fork()
    if pid == 0:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
        try:
            rows = ask(server.path, {"ask": "usage", "jobs": [1, 2]})["usage"]
            readable = os.access(ledger.path, os.R_OK)
            os._exit(0 if [row[0] for row in rows] == [2] and not readable else 1)
        except BaseException:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_silent_and_huge_askers_do_not_keep_others_waiting(server):
    silent = socket.socket(socket.AF_UNIX)
    silent.connect(str(server.path))
    huge = socket.socket(socket.AF_UNIX)
    huge.connect(str(server.path))
    with pytest.raises(OSError):
        for _ in range(10_000):
            huge.sendall(b"x" * 65536)
    began = time.monotonic()
    assert ask(server.path, {"ask": "state"})["node"] == "n1"
    assert time.monotonic() - began < 30
    silent.close()
    huge.close()


def test_rate_is_per_user_and_comes_back():
    now = 0.0
    rate = Rate(10, lambda: now)
    assert [rate.allows(1) for _ in range(12)] == [True] * 10 + [False] * 2
    assert rate.allows(2)
    now = 0.15
    assert rate.allows(1) and not rate.allows(1)


def test_socket_of_a_killed_daemon_is_replaced_and_removed_at_the_end(ledger, directory):
    path = directory / "view.sock"
    socket.socket(socket.AF_UNIX).bind(str(path))
    server = ViewServer(path, view(ledger, OPEN))
    assert ask(path, {"ask": "state"})["node"] == "n1"
    server.close()
    assert not path.exists()
    with pytest.raises(ViewError, match="does not answer"):
        ask(path, {"ask": "state"})


def test_too_many_rows_are_cut_and_said(ledger, monkeypatch):
    import json

    from enforcer.reporting import viewserver

    monkeypatch.setattr(viewserver, "MAX_ROWS", 1)
    ledger.open_grant(replace(grant(3, 1000), created_ns=200))
    found = json.loads(view(ledger, OPEN).answer(0, b'{"ask":"usage","since":0,"until":1000}'))
    assert len(found["usage"]) == 1 and found["cut"] is True


def test_time_that_a_user_takes_counts_as_answers():
    now = 0.0
    rate = Rate(10, lambda: now, per_second_of_work=40)
    assert rate.allows(1)
    rate.worked(1, 0.5)
    assert not rate.allows(1) and rate.allows(2), "half a second of the only thread is 20 answers"
    now = 1.2
    assert rate.allows(1)
    assert not Rate(10, lambda: now, 40)._left


def test_accounts_of_thousands_of_users_are_bounded_and_spent_ones_kept():
    now = 0.0
    rate = Rate(1, lambda: now)
    assert [rate.allows(7) for _ in range(3)] == [True, False, False]
    for uid in range(10_000, 10_000 + 5000):
        now += 0.01
        rate.allows(uid)
    assert len(rate._left) <= 4096
