"""Floods of connections, messages and descriptors at the arbiter: others are served meanwhile."""

from __future__ import annotations

import array
import contextlib
import os
import resource
import signal
import socket
import struct
import time
from pathlib import Path

import pytest
from arbiter_support import (
    ARBITER_ASAN,
    Arbiter,
    arbiter,
    connect,
    exchange,
    grant,
    held_by_family,
    register_message,
    sealed,
    settings,
    wait_for,
)
from test_arbiter_hostile import cpu_seconds, descriptors, still_serves

from enforcer.wire import abi

pytestmark = pytest.mark.native


def test_flood_of_connections_and_messages(tmp_path: Path) -> None:
    with arbiter(tmp_path, "--log-level", "error", binary=ARBITER_ASAN) as one, one.link() as link:
        link.sync([settings()], [grant(1), grant(2)])
        held = []
        for _ in range(300):
            sock = connect(one.run_dir)
            sock.setblocking(False)
            held.append(sock)
        wait_for(
            lambda: any(hung_up(sock) for sock in held), "one user's silent connections are bounded"
        )
        assert descriptors(one) < 700
        for sock in held:
            sock.close()
        wait_for(lambda: registers(one, 2), "room again after the flood")
        with connect(one.run_dir) as sock:
            refused = 0
            for _ in range(500):
                try:
                    answer, _ = exchange(sock, register_message(99))
                    refused += answer.status != 0
                except (OSError, abi.AbiError):
                    break
            else:
                pytest.fail("500 messages at once were all answered")
            assert refused >= 32
        still_serves(one, 2)


def hung_up(sock: socket.socket) -> bool:
    """Did the arbiter close this connection?"""
    try:
        return sock.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True


def registers(one: Arbiter, job_id: int) -> bool:
    """Can the job register just now?"""
    proof = sealed(abi.pack_grant(grant(job_id)))
    try:
        with connect(one.run_dir) as sock:
            answer, fds = exchange(sock, register_message(job_id), (proof,))
    except (OSError, abi.AbiError):
        return False
    finally:
        os.close(proof)
    for fd in fds:
        os.close(fd)
    return answer.status == 0


def test_a_reader_that_never_reads_is_dropped(tmp_path: Path) -> None:
    with arbiter(tmp_path, "--log-level", "error", binary=ARBITER_ASAN) as one, one.link() as link:
        link.sync([settings()], [grant(1), grant(2)])
        with connect(one.run_dir) as sock:
            sock.setblocking(False)
            for _ in range(2000):
                try:
                    sock.send(register_message(1))
                except OSError:
                    break
            still_serves(one, 2)


@pytest.mark.parametrize("spare", [20, 21], ids=["in accept", "after it"])
def test_running_out_of_descriptors_neither_spins_nor_hangs(tmp_path: Path, spare: int) -> None:
    with arbiter(tmp_path, "--log-level", "error") as one, one.link() as link:
        link.sync([settings()], [grant(1), grant(2)])
        limit = descriptors(one) + spare
        resource.prlimit(one.process.pid, resource.RLIMIT_NOFILE, (limit, limit))
        held = [connect(one.run_dir) for _ in range(40)]
        for sock in held:
            sock.setblocking(False)
        wait_for(
            lambda: sum(hung_up(sock) for sock in held) >= 25,
            "callers beyond the limit are hung up on",
            3,
        )
        used = cpu_seconds(one)
        time.sleep(0.5)
        assert cpu_seconds(one) - used < 0.2, "it spins on the callers that it cannot accept"
        for sock in held:
            sock.close()
        wait_for(lambda: registers(one, 2), "service goes on")


def test_refusals_do_not_fill_the_log(tmp_path: Path) -> None:
    with arbiter(tmp_path) as one, one.link() as link:
        link.sync([settings()], [grant(1)])
        for _ in range(6):
            with connect(one.run_dir) as sock:
                for _ in range(60):
                    assert exchange(sock, register_message(9))[0].status != 0
        time.sleep(1.1)
        with connect(one.run_dir) as sock:
            exchange(sock, register_message(9))
        lines = one.log.read_text().splitlines()
    assert 20 <= sum("not registered" in line for line in lines) <= 100
    assert any("more refusals of uid" in line for line in lines)


def test_a_registration_writes_no_line_of_its_own(tmp_path: Path) -> None:
    with arbiter(tmp_path) as one, one.link() as link:
        link.sync([settings()], [grant(1)])
        before = one.log.read_text().count("\n")
        with connect(one.run_dir) as sock:
            answer, _ = exchange(sock, register_message(1, uuid="\x1b[2J\nqgpu-arbiter: \u202e"))
        assert answer.status != 0
        wait_for(lambda: "?[2J?qgpu-arbiter: ???" in one.log.read_text(), "the refusal in the log")
        assert one.log.read_text().count("\n") == before + 1


def lingering(seconds: int) -> tuple[socket.socket, socket.socket]:
    """A TCP connection whose close() waits: it has unsent data and a peer that does not read."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, seconds))
        peer, _ = server.accept()
    client.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while True:
            client.send(b"x" * 65536)
    return client, peer


@pytest.mark.parametrize("how", ["one", "too many", "hung up", "hung up before accept"])
def test_descriptors_whose_close_waits_delay_no_other(tmp_path: Path, how: str) -> None:
    """The last close() of what a user sent waits as long as he likes; others must not wait with
    it.
    """
    with (
        arbiter(tmp_path, "--log-level", "error", binary=ARBITER_ASAN) as one,
        one.link() as link,
        contextlib.ExitStack() as kept,
    ):
        link.sync([settings()], [grant(1), grant(2)])
        before, numbers = descriptors(one), list[int]()
        for _ in range(3):
            pairs = [lingering(60) for _ in range(9 if how == "too many" else 1)]
            numbers += [os.fstat(mine.fileno()).st_ino for mine, _ in pairs]
            fds = array.array("i", [mine.fileno() for mine, _ in pairs])
            sock = connect(one.run_dir)
            if how == "hung up":
                still_serves(one, 2)  # so it is accepted
            # else we might be the last to close them, and wait
            os.kill(one.process.pid, signal.SIGSTOP)
            if how.endswith("before accept"):
                sock.close()
                sock = connect(one.run_dir)
            sock.sendmsg([register_message(99)], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)])
            for mine, peer in pairs:
                mine.close()
                kept.enter_context(peer)
            if how.startswith("hung up"):
                sock.close()
            kept.enter_context(sock)
            os.kill(one.process.pid, signal.SIGCONT)
            began = time.monotonic()
            still_serves(one, 2)
            assert time.monotonic() - began < 20, (
                "another job waited for the end of this one's descriptors"
            )
        sent = {f"socket:[{number}]" for number in numbers}
        wait_for(
            lambda: not sent & held_by_family(one), "what was sent is closed, linger or not", 3
        )
        few = "three connections, and what tells of this user's brokers, are left"
        wait_for(
            lambda: descriptors(one) <= before + 9, few, 3
        )  # the last caller's are closed a moment after his answer
