"""qgpud.sock is open to all users: floods, nonsense and silence harm none; a false qgpud is not
trusted.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import threading
import time
from dataclasses import replace

import pytest
from asks_support import NOBODY, as_nobody, connect, run_dir, status
from daemon_support import Serving, sampled

from enforcer.daemon.arbiter.port import ProcessUse
from enforcer.daemon.audit import enforcer
from enforcer.daemon.requests.answers import MAX_RUNS, Asks
from enforcer.daemon.requests.protocol import MAX_MESSAGE, SOCK_ASK, AskError, NoDaemonError, ask
from enforcer.daemon.requests.reply import Peer
from enforcer.daemon.requests.server import PER_SECOND, _Client
from enforcer.nvml.port import GpuProcess
from enforcer.places import MAX_CLIENTS, MAX_PER_USER, ROOT_PLACES
from gres.grant.store import RUN_BASE, Grant, GrantCard
from simulator.fakes import FakeNode


@pytest.fixture
def node(served: Serving) -> FakeNode:
    return served.node


def prolog(node: FakeNode, job: int) -> bytes:
    text = (
        "qgpu-hook/1 "
        f"prolog\0SLURM_JOB_ID={job}\0SLURM_JOB_UID=1000\0SLURM_JOB_GID=100\0SLURMD_NODENAME=n1\0"
    )
    text += "SLURM_JOB_GPUS=0\0SLURM_JOB_COMMENT=qgpu/1 class=online share=1 mem=128\0"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        sock.settimeout(10)
        sock.connect(str(run_dir(node) / "hook.sock"))
        sock.send(text.encode())
        return sock.recv(70000)


@pytest.mark.parametrize(
    "message",
    [
        b"x",
        b"[]",
        b"null",
        b"{}",
        b"[" * 60000,
        b'{"protocol": "qgpud/2", "op": "status"}',
        b'{"protocol": "qgpud/1"}',
        b'{"protocol": "qgpud/1", "op": {"a": 1}}',
        b'{"protocol": "qgpud/1", "op": "run", "share": 1e309, "class": [], "mem": -1}',
        b'{"protocol": "qgpud/1", "op": "card-set", "card": {"x": []}, "values": {"slice": null}}',
        b"\xff" * 100,
        b"a" * (MAX_MESSAGE + 1),
    ],
    ids=range(12),
)
def test_nonsense_is_answered_or_dropped_and_others_are_served(node, message):
    with connect(node) as sock:
        sock.send(message)
        answer = json.loads(sock.recv(70000))
    assert answer["ok"] is False and answer["error"]
    assert status(node)["ok"] and prolog(node, 9) == b"qgpu-hook/1 0\0"


def test_one_users_connections_are_limited_and_silence_costs_nothing(node):
    with contextlib.ExitStack() as stack:
        silent = [stack.enter_context(connect(node)) for _ in range(MAX_PER_USER)]
        late = stack.enter_context(connect(node))
        assert "at most 16 may be; try again" in json.loads(late.recv(1000))["error"]
        assert late.recv(10) == b"", "turned away"
        assert prolog(node, 9) == b"qgpu-hook/1 0\0", "hooks are not concerned"
        silent.pop().close()
        limit = time.monotonic() + 10
        while True:
            try:
                assert status(node)["ok"]
                break
            except AskError:
                assert time.monotonic() < limit


def test_flood_of_questions_does_not_keep_a_prolog_waiting(node):
    stop = threading.Event()

    def flood() -> None:
        while not stop.is_set():
            with contextlib.suppress(OSError, AskError):
                ask(run_dir(node), {"op": "cards"}, owner=os.geteuid())

    threads = [threading.Thread(target=flood, daemon=True) for _ in range(8)]
    for thread in threads:
        thread.start()
    try:
        for job in range(9, 29):
            assert prolog(node, job) == b"qgpu-hook/1 0\0"
    finally:
        stop.set()
        for thread in threads:
            thread.join(10)
    assert set(node.arbiter.grants) == set(range(9, 29))


def test_limits_leave_room_for_hooks_and_for_several_users():
    assert MAX_PER_USER * 4 <= MAX_CLIENTS


def test_client_that_leaves_without_reading_is_no_trouble(node):
    for _ in range(50):
        with connect(node) as sock:
            sock.send(b'{"protocol": "qgpud/1", "op": "cards"}')
    assert status(node)["ok"]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user to play")
def test_another_user_may_read_but_change_and_run_nothing(node):
    def ask_all() -> list[str]:
        said = []
        for question in (
            {"op": "cards"},
            {"op": "card-set", "card": "0", "values": {"slice": "1ms"}, "uid": 0},
            {"op": "card-reset", "card": "0"},
            {"op": "run", "share": 30, "class": "online", "mem": 1024, "card": None, "uid": 0},
        ):
            try:
                ask(run_dir(node), question)
                said.append("yes")
            except AskError as error:
                said.append(str(error))
        return said

    said = as_nobody(ask_all)
    assert isinstance(said, list)
    assert said[0] == "yes"
    assert said[1:3] == [
        f"only root may {word} a card; uid {NOBODY} asked" for word in ("change", "reset")
    ]
    assert said[3].startswith(f"uid {NOBODY} may not run programs without Slurm")
    assert node.arbiter.grants == {} and str(next(iter(node.arbiter.plans.values())).slice) == "2ms"


def test_socket_of_another_user_is_not_trusted(tmp_path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        server.bind(str(tmp_path / SOCK_ASK))
        server.listen(1)
        with pytest.raises(AskError, match=r"is not root's; nothing was asked"):
            ask(tmp_path, {"op": "run"}, owner=os.geteuid() + 1)
        peer, _ = server.accept()
        assert peer.recv(100) == b"", "not even the question was sent"
        peer.close()


def test_no_listener_is_a_sentence(tmp_path):
    with pytest.raises(NoDaemonError, match="start it with systemctl start qgpud"):
        ask(tmp_path, {"op": "status"})


# ---- what one user may cost the others ---------------------------------------------------------


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user to play")
def test_a_users_questions_have_a_rate_and_roots_have_none(node):
    def ask_often() -> list[str]:
        said = []
        for _ in range(3 * PER_SECOND):
            try:
                ask(run_dir(node), {"op": "cards"})
                said.append("yes")
            except AskError as error:
                said.append(str(error))
        return said

    said = as_nobody(ask_often)
    assert isinstance(said, list)
    assert said[: PER_SECOND // 4] == ["yes"] * (PER_SECOND // 4), (
        "the time that they took counts as well"
    )
    assert any("ask less often" in text for text in said)
    assert [status(node)["ok"] for _ in range(3 * PER_SECOND)] == [True] * 3 * PER_SECOND


def test_places_are_kept_for_root_whatever_users_hold(node, served):
    asks = served.server._asks
    assert asks is not None
    peer = Peer(1, NOBODY, NOBODY, frozenset(), lambda: -1)
    with contextlib.ExitStack() as stack:
        for number in range(MAX_CLIENTS - ROOT_PLACES):
            sock = stack.enter_context(socket.socket())
            asks._clients[-1 - number] = _Client(sock, peer, time.monotonic_ns(), True)
        assert status(node)["ok"], "the administrator is served"
        asks._clients.clear()


def test_programs_without_slurm_are_counted(tmp_path, nodes):
    node = nodes(tmp_path)
    service = node.service()
    service.start()
    asks = Asks(service, owner=0)
    grants = [replace(run_grant(RUN_BASE + n), uid=NOBODY) for n in range(MAX_RUNS // 2)]
    service.grants.update({grant.job_id: grant for grant in grants})
    user = Peer(os.getpid(), NOBODY, NOBODY, frozenset(), lambda: os.pidfd_open(os.getpid()))
    asks._users.add(NOBODY)
    question = {"op": "run", "share": 5, "class": "offline", "mem": 512, "card": None}
    refusal = asks.answer(question, user).body
    assert refusal["error"] == (
        f"{MAX_RUNS // 2} programs without Slurm run on n1, {MAX_RUNS // 2} of them yours;"
        f" {MAX_RUNS} may, nobody more than are free: wait until one ends"
    )
    other = replace(user, uid=NOBODY - 1)
    asks._users.add(NOBODY - 1)
    assert "nobody more than" not in str(asks.answer(question, other).body.get("error"))
    full = [run_grant(RUN_BASE + 1000 + n) for n in range(MAX_RUNS)]
    service.grants.update({grant.job_id: grant for grant in full})
    root = replace(user, uid=0, gid=0)
    assert f"{MAX_RUNS} may, nobody more" in str(asks.answer(question, root).body["error"])


def run_grant(job: int) -> Grant:
    card = GrantCard("GPU-fa4e0000-0000-0000-0000-000000000000", 0, 0, 5, 1 << 29, 80 << 30)
    return Grant(job, 1000, 100, "n1", "active", "offline", 1, "", (card,), "/r", "/d", "/s")


@pytest.mark.skipif(os.geteuid() != 0, reason="a process of root's own is what asks")
def test_an_ended_program_gets_no_grant_though_its_pid_is_in_use(tmp_path, nodes):
    node = nodes(tmp_path)
    service = node.service()
    service.start()
    child = subprocess.Popen(["sleep", "60"])
    pidfd = os.pidfd_open(child.pid)
    child.kill()
    child.wait()
    # The number now "belongs" to this test, as after a reuse; the descriptor still is the dead
    # one's.
    peer = Peer(os.getpid(), 0, 0, frozenset(), lambda: pidfd)
    question = {"op": "run", "share": 5, "class": "offline", "mem": 512, "card": None}
    answer = Asks(service, owner=0).answer(question, peer).body
    assert answer["error"] == "the program that asked is gone" and service.grants == {}
    with pytest.raises(OSError):
        os.fstat(pidfd)


def test_a_users_cgroup_named_like_a_job_is_neither_charged_nor_acted_upon(
    tmp_path, nodes, monkeypatch
):
    node = nodes(tmp_path)
    service = node.service()
    service.start()
    env = {
        "SLURM_JOB_ID": "9",
        "SLURM_JOB_UID": "1000",
        "SLURM_JOB_GID": "100",
        "SLURMD_NODENAME": "n1",
        "SLURM_JOB_GPUS": "0",
        "SLURM_JOB_COMMENT": "qgpu/1 class=online share=30 mem=1024",
    }
    service.prolog(env)
    uuid = node.nvml.cards()[0].uuid
    settings = service.config.enforcer.audit.model_copy(update={"action": "kill"})
    service.inspector.enforcer.settings = settings
    acted_upon: list[int] = []
    monkeypatch.setattr(
        enforcer, "send_action", lambda action, pids, *_: acted_upon.extend(pids) or list(pids)
    )
    node.jobs_of_pids |= {50: 9, 51: 9}  # 51 sits in a cgroup .../user@2000.service/job_9
    node.owners_of_pids |= {50: 1000, 51: 2000}
    node.arbiter.procs = [ProcessUse(9, uuid, 50, 1 << 30)]
    node.nvml.put(uuid, GpuProcess(50, 1 << 30), GpuProcess(51, 70 << 30))
    for _ in range(6):
        sampled(service)
    assert acted_upon == [], (
        "the victim's processes are not killed for the memory of another user's"
    )
    assert node.arbiter.overheads.get((9, uuid), 0) == 0
    assert service.sampler.driver_memory == {(9, uuid): 1 << 30}
