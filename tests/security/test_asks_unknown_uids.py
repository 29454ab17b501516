"""Many uids at qgpud.sock: authorised users and root always get in, others read why not."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from asks_support import NOBODY, as_nobody, connect, run_dir, status
from daemon_support import Serving

from enforcer.daemon.requests.protocol import SOCK_ASK, AskError, NoDaemonError, ask
from enforcer.places import MAX_PER_UNKNOWN_UID, MAX_PER_USER, MAX_UNKNOWN, TOO_MANY_OPEN
from simulator.fakes import FakeNode


@pytest.fixture
def node(served: Serving) -> FakeNode:
    return served.node


def callers(node: FakeNode, uids: range, each: int) -> list[int]:
    """Processes of many users that hold what they get without a question, and connect anew where
    it ends.
    """
    made = []
    ready, write = os.pipe()
    for uid in uids:
        pid = os.fork()
        if pid == 0:
            try:
                os.setgroups([])
                os.setgid(uid)
                os.setuid(uid)
                hold(node, each, lambda: os.write(write, b"."))
            finally:
                os._exit(0)
        made.append(pid)
    os.close(write)
    with os.fdopen(ready, "rb", 0) as pipe:
        said = b""
        while len(said) < len(uids):
            said += pipe.read(1) or b"!"
    assert said == b"." * len(uids)
    return made


def hold(node: FakeNode, each: int, ready: Callable[[], object]) -> None:
    held: list[socket.socket] = []
    for rounds in range(10**6):
        while len(held) < each:
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
            held.append(sock)
            if sock.connect_ex(str(run_dir(node) / SOCK_ASK)):
                held.pop().close()
                break
        for sock in list(held):
            try:
                sock.recv(1000)
            except BlockingIOError:
                continue
            except OSError:
                pass
            held.remove(sock)
            sock.close()
        if rounds == 10:
            ready()
        time.sleep(0.02)


@contextlib.contextmanager
def calling(node: FakeNode, uids: range, each: int) -> Iterator[None]:
    pids = callers(node, uids, each)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def asked(node: FakeNode, times: int = 10) -> list[str]:
    """What each question of this user came to."""
    said = []
    for _ in range(times):
        try:
            ask(run_dir(node), {"op": "cards"}, owner=0)
            said.append("yes")
        except AskError as error:
            said.append(str(error))
        time.sleep(0.06)
    return said


@pytest.mark.skipif(os.geteuid() != 0, reason="needs other users to play")
def test_unauthorised_uids_take_no_place_of_authorised_ones_or_root(node, served):
    asks = served.server._asks
    assert asks is not None
    asks._asks._users.add(NOBODY)
    with calling(node, range(400_000, 400_012), MAX_PER_USER):
        assert as_nobody(lambda: asked(node)) == ["yes"] * 10
        assert [status(node)["ok"] for _ in range(10)] == [True] * 10
        asks._asks._users.clear()
        said = as_nobody(lambda: asked(node))
        assert isinstance(said, list) and said.count("yes") >= 5, (
            "who is not known is heard too, if he asks at once"
        )
        assert set(said) <= {"yes", TOO_MANY_OPEN}
        assert len(asks._clients) <= MAX_UNKNOWN + 2


@pytest.mark.skipif(os.geteuid() != 0, reason="needs other users to play")
def test_authorised_users_share_their_places(node, served):
    asks = served.server._asks
    assert asks is not None
    asks._asks._users.update(range(400_000, 400_012), {NOBODY})
    with calling(node, range(400_000, 400_012), MAX_PER_USER):
        said = as_nobody(lambda: asked(node))
        assert isinstance(said, list) and said.count("yes") >= 8
        assert status(node)["ok"]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user to play")
def test_a_refused_connection_gets_the_reason_and_not_to_start_qgpud(node):
    def ask_beside_silence() -> list[str]:
        with contextlib.ExitStack() as stack:
            for _ in range(MAX_PER_UNKNOWN_UID):
                stack.enter_context(connect(node))
            return asked(node, 3)

    said = as_nobody(ask_beside_silence)
    most = MAX_PER_UNKNOWN_UID
    sentence = (
        f"{most} connections of uid {NOBODY} to qgpud are open, and at most {most} may be; "
        "try again later"
    )
    assert said == [sentence] * 3


def test_a_daemon_that_hangs_up_without_a_word_is_not_taken_for_none(tmp_path):
    """As one from before it said why: with the question unread, and before there was one."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        server.bind(str(tmp_path / SOCK_ASK))
        server.listen(1)
        thread = threading.Thread(target=lambda: [server.accept()[0].close() for _ in range(20)])
        thread.start()
        for _ in range(20):
            with pytest.raises(AskError) as caught:
                ask(tmp_path, {"op": "status"}, owner=os.geteuid())
            assert not isinstance(caught.value, NoDaemonError) and "systemctl" not in str(
                caught.value
            )
        thread.join()
