"""Clients that send garbage to the device side of the simulated driver, which runs under
sanitizers here.
"""

from __future__ import annotations

import os
import random
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from hostile import answer, connect, request, sanitized
from sim_tools import run, spawn, until

from simulator import layout
from simulator.sim import Simulator

pytestmark = pytest.mark.native

HEAD = layout.Shared.head.offset


@pytest.fixture
def sim(tmp_path: Path) -> Iterator[Simulator]:
    with sanitized(tmp_path) as running:
        yield running


def test_garbage_on_the_socket(sim: Simulator) -> None:
    rng = random.Random(7)
    for _ in range(200):
        sock = connect(sim)
        try:
            for _ in range(rng.randint(1, 4)):
                sock.send(rng.randbytes(rng.choice([1, 16, 47, 48, 49, 4000])))
        except OSError:
            pass
        sock.close()


def test_wrong_magic_size_version_and_type_end_the_connection(sim: Simulator) -> None:
    bad = (
        request(2, magic=1),
        request(2, size=47),
        request(2, version=9),
        request(99),
        request(0),
        b"x",
    )
    for message in bad:
        sock = connect(sim)
        sock.send(message)
        assert sock.recv(4096) == b""
        sock.close()


def test_foreign_and_absurd_arguments_are_refused(sim: Simulator) -> None:
    owner = spawn(
        sim, "g = Cuda(); print(g.alloc(1 << 20).value, flush=True); sys.stdin.readline()"
    )
    assert owner.stdout
    owner.stdout.readline()
    sock = connect(sim)
    for kind in (4, 5, 6):
        for a in (0, 1, 2, 2**32, 2**32 + 1, 2**64 - 1):
            sock.send(request(kind, a, 1))
            assert answer(sock).status == 201  # not its own context
    for a in (1, 16, 2**63):
        sock.send(request(3, a))
        assert answer(sock).status == 101
    for a in (0, 999, 2**32, 2**64 - 1):
        for b in (0, 4096, 2**64 - 1):
            sock.send(request(14, a, b))  # a place in a stream: one that is none was reached
            told = answer(sock)
            assert (told.status, told.a) == (0, 1)
    sock.send(request(3, 0))
    data, fds, *_ = socket.recv_fds(sock, 8192, 4)
    ctx = layout.Rep.from_buffer_copy(data).a
    for size in (0, 2**63, 2**64 - 1, 2**64 - 4096):
        sock.send(request(5, ctx, size))
        assert answer(sock).status in (1, 2)
    for fd in fds:
        os.close(fd)
    sock.close()
    owner.communicate("\n", timeout=60)


def shared_context(sim: Simulator) -> tuple[socket.socket, int, int]:
    sock = connect(sim)
    sock.send(request(3, 0))
    _, fds, *_ = socket.recv_fds(sock, 8192, 4)
    return sock, fds[0], fds[1]


def thrown_out(sock: socket.socket) -> bool:
    try:
        return sock.recv(64) == b""
    except TimeoutError:
        return False


def test_the_shared_memory_cannot_be_resized(sim: Simulator) -> None:
    sock, memory, bell = shared_context(sim)
    for size in (0, 4096, 1 << 30):
        with pytest.raises(PermissionError):
            os.ftruncate(memory, size)
    for fd in (memory, bell):
        os.close(fd)
    sock.close()


@pytest.mark.parametrize("head", [1025, 2**32, 2**63, 2**64 - 1])
def test_an_impossible_ring_head_ends_the_client(sim: Simulator, head: int) -> None:
    sock, memory, bell = shared_context(sim)
    os.pwrite(memory, struct.pack("<Q", head), HEAD)
    os.write(bell, struct.pack("<Q", 1))
    assert thrown_out(sock)
    for fd in (memory, bell):
        os.close(fd)


def test_random_commands(sim: Simulator) -> None:
    rng = random.Random(11)
    for _ in range(150):
        sock, memory, bell = shared_context(sim)
        count = rng.randint(1, 64)
        for slot in range(count):
            wild = rng.random() < 0.1
            op = (
                rng.randrange(2**32)
                if wild
                else rng.choice([1, 2, 3, 4, 5, 16, 17, 18, 19, 20, 21, 22])
            )
            stream = (
                rng.choice([0, 1, 17, 4094, 4095, 4096, 2**31])
                if wild
                else rng.choice([0, 17, 18, 4095])
            )
            words = [rng.choice([0, 1, 5, 4096, 2**47, 2**64 - 1]) for _ in range(4)]
            command = bytes(layout.Cmd(op, stream, rng.randrange(4), 0, *words))
            os.pwrite(memory, command, layout.Shared.ring.offset + len(command) * slot)
        os.pwrite(memory, struct.pack("<Q", count), HEAD)
        os.write(bell, struct.pack("<Q", 1))
        if rng.random() < 0.3:
            os.pwrite(memory, rng.randbytes(4096), 0)
            os.write(bell, struct.pack("<Q", 1))
        for fd in (memory, bell):
            os.close(fd)
        sock.close()


def test_a_drained_and_overfull_doorbell_harms_only_its_owner(sim: Simulator) -> None:
    sock, memory, bell = shared_context(sim)
    os.set_blocking(bell, False)
    os.write(bell, struct.pack("<Q", 2**64 - 2))
    for _ in range(100):
        os.read(bell, 8)
        os.write(bell, struct.pack("<Q", 1))
    run(sim, "g = Cuda(); g.launch(100); g.call('cuCtxSynchronize')")
    for fd in (memory, bell):
        os.close(fd)
    sock.close()


def test_many_connections_are_refused_not_fatal(sim: Simulator) -> None:
    socks = []
    for _ in range(1100):
        try:
            socks.append(connect(sim))
        except OSError:
            break
    for sock in socks:
        sock.close()
    assert until(
        lambda: not run(sim, "print(Cuda(init=False).raw('cuInit', 0))").strip().strip("0"), 20
    )


def text_request(
    kind: int, text: bytes, size: int = 1072, a: int = 0, b: int = 0, c: int = 0
) -> bytes:
    return bytes(layout.Req(layout.MAGIC, layout.VERSION, kind, size, a, b, c)) + text.ljust(
        1024, b"\0"
    )


def test_texts_of_wrong_length_or_without_an_end_end_the_connection(sim: Simulator) -> None:
    whole = text_request(32, b"clear")
    for message in (
        whole[:48],
        whole[:1071],
        whole + b"x",
        text_request(32, b"x" * 1024),
        text_request(32, b"", 48),
    ):
        sock = connect(sim)
        sock.send(message)
        assert sock.recv(4096) == b""
        sock.close()


def test_random_commands_in_words(sim: Simulator) -> None:
    """The words are of the grammar, put together at random; some do what they say to processes
    that are not there.
    """
    rng = random.Random(13)
    verbs = [
        b"sticky",
        b"hang",
        b"stall",
        b"slice",
        b"delay",
        b"error",
        b"block",
        b"clear",
        b"x" * 40,
        b"",
    ]
    keys = [
        b"pid=",
        b"us=",
        b"code=",
        b"times=",
        b"card=",
        b"kernels=",
        b"call=",
        b"nothing=",
        b"=",
        b"",
    ]
    values = [
        b"1",
        b"0",
        b"-1",
        b"99999999999999999999",
        b"cuInit",
        b"x" * 200,
        b"",
        b"=",
        b"\xff\xfe",
        b"4294967295",
    ]
    sock = connect(sim)
    for kind in (32, 33, 34):
        for _ in range(400):
            words = [
                rng.choice(verbs),
                *(rng.choice(keys) + rng.choice(values) for _ in range(rng.randrange(5))),
            ]
            if words[0] == b"stall" and b"us=4294967295" in words:
                continue  # an hour without a card is what it asks for
            sock.send(
                text_request(
                    kind, b" ".join(words)[:1023], a=rng.randrange(3), b=rng.getrandbits(64)
                )
            )
            assert len(sock.recv(8192)) == 48
    sock.send(text_request(32, b"clear"))
    assert answer(sock).status == 0
    sock.close()


def test_a_process_that_scribbles_over_its_page_harms_itself(sim: Simulator) -> None:
    rng = random.Random(17)
    sock = connect(sim)
    sock.send(request(1))
    _, fds, *_ = socket.recv_fds(sock, 8192, 4)
    for _ in range(50):
        os.pwrite(fds[0], rng.randbytes(4096), 0)
        sock.send(text_request(32, b"delay call=cuNothing us=1 times=1"))
        assert answer(sock).status in (0, 2)
    with pytest.raises(PermissionError):
        os.ftruncate(fds[0], 0)
    sock.send(text_request(32, b"clear"))
    sock.recv(8192)
    os.close(fds[0])
    sock.close()
