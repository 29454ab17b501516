"""view.sock is open to all users: silence, slow readers and many uids keep nobody waiting."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from arbiter_support import let_others_in
from test_arbiter_unknown_uids import Forked, Say, all_ended

from enforcer.ledger.store import Ledger, Sample
from enforcer.places import MAX_PER_UNKNOWN_UID, MAX_UNKNOWN, TOO_MANY_OPEN
from enforcer.reporting import viewserver
from enforcer.reporting.privacy import Privacy
from enforcer.reporting.state import NodeState
from enforcer.reporting.viewclient import ViewError, ask
from enforcer.reporting.viewserver import View, ViewServer
from gres.grant.store import Grant, GrantCard

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs other users to play")
HONEST, STRANGERS = 300_000, range(310_000, 310_040)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[ViewServer]:
    let_others_in(tmp_path)
    ledger = Ledger(tmp_path / "ledger.sqlite")
    card = GrantCard("GPU-00000000-0000-0000-0000-000000000001", 0, 0, 30, 1000, 4000)
    ledger.open_grant(
        Grant(1, HONEST, 100, "n1", "active", "online", 1, "", (card,), "/r", "/d", "/s")
    )
    ledger.record([Sample(1, card.uuid, 1, 5, busy_ns=7)], 10**9)
    state = NodeState("n1", 1.0, True)
    server = ViewServer(tmp_path / "view.sock", View(ledger.path, Privacy(), lambda: state))
    yield server
    server.close()


def silent(path: Path, most: int) -> Callable[[Say], object]:
    """Holds connections without a question, and makes new ones where they end."""

    def run(say: Say) -> None:
        held: list[socket.socket] = []
        for rounds in range(10**6):
            while len(held) < most:
                sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
                held.append(sock)
                if sock.connect_ex(str(path)):
                    held.pop().close()
                    break
            for sock in list(held):
                with contextlib.suppress(BlockingIOError):
                    with contextlib.suppress(ConnectionError):
                        sock.recv(1000)
                    held.remove(sock)
                    sock.close()
            if rounds == 5:
                say("pressing")
            time.sleep(0.02)

    return run


def asked(path: Path, times: int) -> Callable[[Say], object]:
    def run(say: Say) -> None:
        rows = [ask(path, {"ask": "usage", "jobs": [1]})["usage"][0][0] for _ in range(times)]
        say(rows)

    return run


def test_many_uids_that_hold_what_they_get_keep_no_user_with_a_job_waiting(served):
    """Each question of the others took half a second: 65536 sub-uids were hours of the thread."""
    floods = [Forked(uid, silent(served.path, MAX_PER_UNKNOWN_UID)) for uid in STRANGERS]
    with all_ended(*floods):
        assert {each.said() for each in floods} == {"pressing"}
        honest, another = (Forked(uid, asked(served.path, 5)) for uid in (HONEST, STRANGERS.stop))
        honest.patience = another.patience = 120
        with all_ended(honest, another):
            assert honest.said() == [1] * 5
            assert another.said() == [1] * 5, "who is not known is heard too"
        assert ask(served.path, {"ask": "state"})["node"] == "n1", "and root"
        assert len(served._clients) <= MAX_UNKNOWN + 2


def test_what_a_question_says_of_its_asker_counts_for_nothing(served, monkeypatch):
    """The connection says who asks, and a private ledger shows him his own rows alone."""
    monkeypatch.setattr(served._view, "_privacy", Privacy.of(["jobs", "usage"], []))

    def claim(say: Say) -> None:
        claims = {"uid": HONEST, "viewer": 0, "user": "root", "privacy": []}
        say(ask(served.path, {"ask": "usage", "jobs": [1], **claims})["usage"])

    stranger, honest = Forked(STRANGERS[0], claim), Forked(HONEST, claim)
    with all_ended(stranger, honest):
        assert stranger.said() == [] and len(honest.said()) == 1


def test_a_users_places_are_few_and_he_reads_why(served):
    def crowd(say: Say) -> None:
        with contextlib.ExitStack() as stack:
            for _ in range(MAX_PER_UNKNOWN_UID + 1):
                sock = stack.enter_context(socket.socket(socket.AF_UNIX))
                sock.settimeout(60)
                sock.connect(str(served.path))
            say(json.loads(sock.recv(1000)))

    uid = STRANGERS[0]
    with all_ended(one := Forked(uid, crowd)):
        most = MAX_PER_UNKNOWN_UID
        said = f"{most} connections of uid {uid} to qgpud are open, and at most {most} may be"
        assert one.said() == {"version": 1, "error": f"{said}; try again later", "again": True}


def test_uids_without_a_job_share_one_rate(served):
    """A sub-uid each gets as much as ten users with a job, all of them together."""

    def often(say: Say) -> None:
        heard = set[str]()
        for _ in range(40):
            with socket.socket(socket.AF_UNIX) as sock:
                sock.settimeout(60)
                sock.connect(str(served.path))
                sock.sendall(b'{"ask":"usage","since":0,"until":9}\n')
                heard.add(str(json.loads(sock.recv(100_000)).get("error")))
        say(sorted(heard))

    served._unknown_rate.worked(0, 10)  # as much as they took before
    with all_ended(*(all_of := [Forked(uid, often) for uid in STRANGERS[:3]])):
        shared = "too many questions of users without a job on this node; try again"
        for each in all_of:
            said = each.said()
            assert shared in said and "None" not in said
        honest = Forked(HONEST, asked(served.path, 1))
        with all_ended(honest):
            assert honest.said() == [1]


def test_answers_that_nobody_reads_are_dropped_not_kept(served, monkeypatch):
    monkeypatch.setattr(viewserver, "UNSENT", 3 << 20)
    monkeypatch.setattr(served._view, "answer", lambda uid, line: "x" * (1 << 20))
    socks = []
    for _ in range(5):
        sock = socket.socket(socket.AF_UNIX)
        sock.settimeout(60)
        sock.connect(str(served.path))
        sock.sendall(b"{}\n")
        assert sock.recv(1) == b"x", "its answer has begun"
        socks.append(sock)
    lengths = [1 + sum(map(len, iter(lambda s=sock: s.recv(1 << 16), b""))) for sock in socks]
    assert lengths[-1] == (1 << 20) + 1, "the newest gets all of it"
    assert lengths[0] < 1 << 20, "the oldest made room"
    for sock in socks:
        sock.close()


def test_a_busy_qgpud_is_asked_again(tmp_path: Path):
    """Its queue is full, it hangs up, it says that it is busy: then it answers."""
    path = tmp_path / "view.sock"
    busy = json.dumps({"error": TOO_MANY_OPEN, "again": True}).encode()

    def serve() -> None:
        for said in (b"", busy, b'{"node":"n1"}'):
            peer, _ = server.accept()
            with peer:
                peer.recv(1000)
                peer.sendall(said)

    with socket.socket(socket.AF_UNIX) as server, contextlib.ExitStack() as stack:
        server.bind(str(path))
        server.listen(0)
        first = stack.enter_context(socket.socket(socket.AF_UNIX))
        first.connect(str(path))  # fills the queue
        thread = threading.Thread(target=lambda: (server.accept()[0].close(), serve()))
        threading.Timer(0.5, thread.start).start()
        assert ask(path, {"ask": "state"}) == {"node": "n1"}
        thread.join()


def test_an_error_that_does_not_pass_is_said_at_once(served):
    with pytest.raises(ViewError, match="must be state or usage"):
        ask(served.path, {"ask": "x"})
