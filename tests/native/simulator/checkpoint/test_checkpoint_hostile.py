"""Processes that lie about the orders of others, against a device side under sanitizers."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import stat
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from hostile import connect, request, sanitized

from simulator import layout
from simulator.sim import Simulator

pytestmark = pytest.mark.native


@pytest.fixture
def sim(tmp_path: Path) -> Iterator[Simulator]:
    with sanitized(tmp_path) as running:
        yield running


class Agent:
    """A process as others may order it, that lies about what it did."""

    def __init__(self, sim: Simulator, rng: random.Random) -> None:
        self.rng, self.sock, self.orders, self.number = rng, connect(sim), -1, 0
        self.sock.setblocking(False)

    def say(self, kind: int, a: int = 0) -> None:
        """Answers are read by nobody, but for descriptors."""
        self.sock.send(request(kind, a))
        with contextlib.suppress(BlockingIOError):
            while True:
                _, fds, *_ = socket.recv_fds(self.sock, 8192, 4)
                for fd in fds:
                    if self.orders < 0 and stat.S_ISSOCK(os.fstat(fd).st_mode):
                        self.orders = fd
                        os.set_blocking(fd, False)
                    else:
                        os.close(fd)

    def lie(self) -> None:
        """About an order, of now or of never."""
        rng = self.rng
        if self.orders < 0:
            return
        with contextlib.suppress(BlockingIOError):
            order = os.read(self.orders, 64)  # empty: it was thrown off the cards
            self.number = int.from_bytes(order[:8], "little")
            does = {layout.ORDER_CHECKPOINT: 20, layout.ORDER_RESTORE: 21}
            if rng.random() < 0.7 and order[8:9] and order[8] in does:
                self.say(does[order[8]])
        number = self.number if rng.random() < 0.8 else rng.randrange(40)
        word = struct.pack("<QiI", number, rng.choice([0, 0, 600, -1]), rng.random() < 0.1)
        os.write(self.orders, word[: 16 if rng.random() < 0.98 else 15])

    def act(self) -> None:
        rng = self.rng
        with contextlib.suppress(OSError):
            kind, about = rng.choice([1, 3, 3, 5, 18, 19, 20, 20, 21]), rng.randrange(3)
            rng.choice([self.lie, lambda: self.say(kind, about)])()

    def close(self) -> None:
        self.sock.close()
        if self.orders >= 0:
            os.close(self.orders)


@pytest.mark.parametrize("seed", range(4))
def test_orders_and_lies_about_them(sim: Simulator, seed: int) -> None:
    """Processes that never do what they are told, and callers that come and go in between."""
    rng = random.Random(seed)
    agents, callers = [Agent(sim, rng) for _ in range(3)], []
    for agent in agents:
        agent.say(1)
    for turn in range(3000):
        at = rng.randrange(3)
        if rng.random() < 0.01:
            agents[at].close()
            agents[at] = Agent(sim, rng)
        agents[at].act()
        if turn % 3 == 0:
            sock = connect(sim)
            order = layout.Req(
                *(layout.MAGIC, layout.VERSION, 17, 48, os.getpid()),
                rng.choice([0, 1, 2, 3, 3, 4, 4, 5, 6, 7]),
                rng.choice([0, 1, 5, 3, 2**16, 2**40]),
                rng.getrandbits(64),
            )
            sock.send(bytes(order))
            callers.append(sock)
        if len(callers) > 20 or (callers and rng.random() < 0.2):
            callers.pop(rng.randrange(len(callers))).close()
    for one in (*agents, *callers):
        one.close()
