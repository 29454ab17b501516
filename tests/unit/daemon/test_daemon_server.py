"""The loop with a real hook.sock: who may ask, what is answered, what a restart and a missing
arbiter do.
"""

from __future__ import annotations

import math
import os
import random
import socket
import stat
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from daemon_support import SHARE, Serving, hook_env

from enforcer.clock import SystemClock
from enforcer.daemon.granting.hookproto import Answer, ProtocolError, format_answer, parse_request
from enforcer.daemon.packets import ServerError, listen
from enforcer.daemon.server import Server, guarded
from enforcer.daemon.timer import Timer, memoryless
from simulator.fakes import FakeNode


def question(kind: str, job: int = 9, comment: str = SHARE, gpus: str = "0") -> bytes:
    values = hook_env(job, comment, gpus)
    return b"".join(
        part.encode() + b"\0"
        for part in [f"qgpu-hook/1 {kind}", *(f"{k}={v}" for k, v in values.items())]
    )


def ask(path: Path, message: bytes, timeout: float = 10) -> bytes:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        sock.settimeout(timeout)
        sock.connect(str(path))
        sock.send(message)
        return sock.recv(70000)


def until(done: Callable[[], bool], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)


@pytest.fixture
def node(tmp_path: Path, nodes: Callable[..., FakeNode]) -> FakeNode:
    return nodes(tmp_path, deadline="3s", clock=SystemClock())


@pytest.fixture
def run(nodes: object) -> Iterator[Callable[..., Serving]]:
    """Has a node served; ends before the node does."""
    started: list[Serving] = []

    def start(node: FakeNode, owner: int = os.geteuid()) -> Serving:
        started.append(Serving(node, owner))
        return started[-1]

    yield start
    for item in started:
        item.stop()


def test_a_prolog_waits_for_a_driver_that_fails_for_a_moment_and_others_are_served(
    run, nodes, tmp_path
):
    node = nodes(tmp_path, deadline="30s", clock=SystemClock())
    node.nvml.fault = "Driver Not Loaded"
    running = run(node)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(ask, running.path, question("prolog"), 30)
        until(lambda: any(client.request for client in list(running.server._clients.values())))
        assert ask(running.path, question("prolog", 3, "text", "")) == format_answer(Answer(0))
        assert not waiting.done()
        node.nvml.fault = None
        assert waiting.result(30) == format_answer(Answer(0))
    assert 9 in node.arbiter.grants


def test_a_driver_that_does_not_come_back_is_a_broken_node_within_the_deadline(run, node):
    node.nvml.fault = "Driver Not Loaded"
    began = time.monotonic()
    assert ask(run(node).path, question("prolog")) == format_answer(Answer(1, "Driver Not Loaded"))
    assert time.monotonic() - began >= 2.7, "it was tried again until nine tenths of the deadline"


def test_prolog_and_epilog_over_the_socket(node, run):
    running = run(node)
    assert ask(running.path, question("prolog")) == b"qgpu-hook/1 0\0"
    assert 9 in node.arbiter.grants
    assert ask(running.path, question("epilog")) == b"qgpu-hook/1 0\0"
    assert node.arbiter.grants == {}


def test_socket_is_for_its_owner_alone(node, run):
    mode = run(node).path.stat().st_mode
    assert stat.S_ISSOCK(mode) and mode & 0o777 == 0o600


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user to play")
def test_another_user_is_turned_away_even_if_the_socket_lets_him(run, nodes):
    with tempfile.TemporaryDirectory(prefix="qgpu-test-") as name:
        Path(name).chmod(0o755)
        node = nodes(Path(name), clock=SystemClock())
        running = run(node)
        running.path.chmod(0o666)
        pid = os.fork()
        if pid == 0:
            os._exit(_as_nobody(running.path))
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        running.stop()
    assert code == 0, {1: "he was answered", 2: "he could not even connect"}.get(code, code)
    assert node.arbiter.grants == {}


def _as_nobody(path: Path) -> int:
    os.setgid(65534)
    os.setuid(65534)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        sock.connect(str(path))
    except OSError:
        return 2
    try:
        sock.send(question("prolog"))
        return 0 if sock.recv(100) == b"" else 1
    except OSError:
        return 0


@pytest.mark.parametrize(
    "message",
    [
        b"hello",
        b"qgpu-hook/2 prolog\0",
        b"qgpu-hook/1 prolog\0NOVALUE\0",
        b"qgpu-hook/1 prolog\0A=1\0A=2\0",
    ],
)
def test_nonsense_is_answered_with_status_one_and_a_sentence(node, run, message):
    answer = ask(run(node).path, message)
    assert answer.startswith(b"qgpu-hook/1 1\0") and len(answer) > 30


def test_prolog_waits_for_the_arbiter_and_goes_on_when_it_is_back(node, run):
    running = run(node)
    node.arbiter.restart()
    node.arbiter.running = False
    back = threading.Timer(0.3, lambda: setattr(node.arbiter, "running", True))
    back.start()
    began = time.monotonic()
    assert ask(running.path, question("prolog")) == b"qgpu-hook/1 0\0"
    assert time.monotonic() - began >= 0.25
    assert 9 in node.arbiter.grants


def test_others_are_served_while_a_prolog_waits(node, run):
    running = run(node)
    node.arbiter.restart()
    node.arbiter.running = False
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as waiting:
        waiting.connect(str(running.path))
        waiting.send(question("prolog"))
        assert (
            ask(running.path, question("prolog", 10, "qgpu/1 whole", "1"), timeout=2.4)
            == b"qgpu-hook/1 0\0"
        )


def test_an_arbiter_whose_end_only_a_swallowed_error_showed_gets_everything_again(node, run):
    running = run(node)
    assert ask(running.path, question("prolog")) == format_answer(Answer(0))
    node.arbiter.tenants = lambda: []  # the next poll finds nothing wrong either
    node.arbiter.restart()
    assert node.arbiter.grants == {}
    assert ask(running.path, question("prolog", 3, "text", "")) == format_answer(Answer(0)), (
        "it wakes the loop"
    )
    until(lambda: 9 in node.arbiter.grants)


def test_arbiter_that_stays_away_breaks_the_node_before_the_hooks_deadline(nodes, tmp_path, run):
    node = nodes(tmp_path, deadline="6s", clock=SystemClock())
    running = run(node)
    node.arbiter.restart()
    node.arbiter.running = False
    began = time.monotonic()
    answer = ask(running.path, question("prolog"))
    assert time.monotonic() - began < 6, "the client's deadline is 6 s"
    assert (
        answer.startswith(b"qgpu-hook/1 1\0")
        and b"qgpu-arbiter on this node does not answer" in answer
    )


def test_bug_in_one_hook_does_not_end_the_daemon(node, run):
    running = run(node)
    running.server.service.prolog = lambda env: 1 / 0  # type: ignore[assignment,return-value]
    assert b"qgpud failed in the prolog" in ask(running.path, question("prolog"))
    assert ask(running.path, question("epilog")) == b"qgpu-hook/1 0\0"


def test_counters_flow_into_the_ledger_by_themselves(node, run):
    from enforcer.ledger.store import read_usage

    running = run(node)
    ask(running.path, question("prolog"))
    node.arbiter.count(9, node.nvml.cards()[0].uuid, busy_ns=77)
    until = time.monotonic() + 10
    while True:
        (row,) = read_usage(node.directory / "state/ledger.sqlite", [9])
        if row.busy_ns == 77:
            break
        assert time.monotonic() < until, row
        time.sleep(0.02)


def test_second_server_takes_over_a_stale_socket(node, run):
    first = run(node)
    ask(first.path, question("prolog"))
    first.stop()
    assert not first.path.exists()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as stale:
        stale.bind(str(first.path))
    second = run(node)
    assert ask(second.path, question("prolog")) == b"qgpu-hook/1 0\0"
    assert set(second.server.service.grants) == {9}


def test_file_in_place_of_the_socket_is_not_removed(tmp_path):
    (tmp_path / "hook.sock").write_text("precious")
    with pytest.raises(ServerError, match="not a socket: remove it"):
        listen(tmp_path / "hook.sock")
    assert (tmp_path / "hook.sock").read_text() == "precious"


def test_request_keeps_values_with_signs_and_odd_bytes():
    request = parse_request(b"qgpu-hook/1 epilog\0SLURM_JOB_COMMENT=a=b\xff\0")
    assert (request.kind, request.env) == ("epilog", {"SLURM_JOB_COMMENT": "a=b�"})


def test_request_of_too_many_variables_is_refused():
    with pytest.raises(ProtocolError, match="more than 64"):
        parse_request(b"qgpu-hook/1 prolog\0" + b"".join(b"V%d=1\0" % i for i in range(65)))


def test_answer_holds_one_sentence_of_bounded_length():
    raw = format_answer(Answer(1, "ä" * 5000 + "\0hidden"))
    assert raw.startswith(b"qgpu-hook/1 1\0") and raw.count(b"\0") == 1
    assert len(raw) <= 2020 and raw.decode()


def test_guarded_gives_the_fallback():
    assert guarded(lambda: 1 // 0, 5) == 5
    assert guarded(lambda: 4, 5) == 4


def test_what_a_job_saw_of_one_sample_says_nothing_about_the_next():
    """Whatever passed since the last one, the next 50 ms are as likely to have it."""
    dice = random.Random(1)
    drawn = [memoryless(1000, dice.random()) for _ in range(40_000)]
    for begin in range(50, 900, 50):
        left = [one for one in drawn if one >= begin]
        part = sum(one < begin + 50 for one in left) / len(left)
        assert part == pytest.approx(1 - math.exp(-0.1), abs=0.015), begin
    assert min(drawn) == 20 and max(drawn) == 1000


def test_jobs_cannot_predict_when_the_cards_are_sampled(node):
    chances = iter([0.0, 0.5, 0.8, 1.0])
    looks = Timer(1000, lambda: None, chance=lambda: next(chances))
    due = []
    for _ in range(4):
        looks.next(10_300)
        due.append(looks.due_ns - 10_300)
    assert due == [20, 346, 804, 1000], "never later than the interval"
    plain = Timer(1000, lambda: None)
    plain.next(10_300)
    assert plain.due_ns == 11_000, "one wake for all of the same pace"
    server = Server(node.service(), SystemClock())
    server._add_timers()
    assert [t.action for t in server.timers if t.chance] == [server.service.sample_cards]
    assert len({server.chance() for _ in range(9)}) == 9
