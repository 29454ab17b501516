"""Reclaiming in the real loop: a Prolog that waits holds nobody up, and one that is gone is not
waited for.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from daemon_support import Serving, hook_env
from reclaim_support import Lab, lab

from enforcer.clock import SystemClock
from enforcer.nvml.worker import NvmlThread
from simulator.fakes import FakeNode

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: only root's helper is run")
OK = b"qgpu-hook/1 0\0"


@pytest.fixture
def made(tmp_path: Path, nodes: Callable[..., FakeNode]) -> Iterator[Lab]:
    with lab(nodes(tmp_path, clock=SystemClock())) as found:
        yield found


@pytest.fixture
def serving(made: Lab) -> Iterator[Serving]:
    """The node, served by a thread. Its memory is sampled in the thread of NVML."""
    node, workers = made.node, list[NvmlThread]()
    service = node.service

    def threaded():  # type: ignore[no-untyped-def]
        found = service()
        worker = NvmlThread(lambda: node.nvml, 10)
        workers.append(worker)
        found.nvml = found.view.nvml = found.inspector.nvml = worker
        return found

    node.service = threaded  # type: ignore[method-assign]
    running = Serving(node)
    made.services.append(running.server.service)
    yield running
    (made.directory / "hang").unlink(missing_ok=True)
    running.stop()
    for worker in workers:
        worker.close()


def until(done: Callable[[], bool], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)


def message(job: int, gib: int, kind: str) -> bytes:
    tag = f"qgpu/1 class={kind} share=10 mem={gib * 1024}{' host=0' if kind == 'offline' else ''}"
    values = (f"{name}={value}" for name, value in hook_env(job, tag).items())
    return b"".join(part.encode() + b"\0" for part in ["qgpu-hook/1 prolog", *values])


def connected(path: Path, data: bytes) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sock.settimeout(60)
    sock.connect(str(path))
    sock.send(data)
    return sock


def ask(path: Path, data: bytes) -> bytes:
    with connected(path, data) as sock:
        return sock.recv(70000)


def test_a_prolog_waits_without_holding_others_up(made: Lab, serving: Serving) -> None:
    assert ask(serving.path, message(1, 60, "offline")) == OK
    pid = made.program(1, 60)
    (made.directory / "slow").touch()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(ask, serving.path, message(9, 50, "online"))
        until(lambda: made.calls() == ["leave"])
        assert ask(serving.path, message(10, 5, "online").replace(b"GPUS=0", b"GPUS=1")) == OK
        assert not waiting.done() and 9 not in serving.server.service.grants
        made.hold(pid, 0)
        (made.directory / "slow").unlink()
        assert waiting.result(60) == OK


def test_a_prolog_that_is_gone_withdraws_its_claim(made: Lab, serving: Serving) -> None:
    assert ask(serving.path, message(1, 60, "offline")) == OK
    made.program(1, 60)
    (made.directory / "hang").touch()
    claims = serving.server.service.reclaimer.claims
    with connected(serving.path, message(9, 50, "online")):
        until(lambda: claims.open)
    until(lambda: not claims.open)
    assert 9 not in serving.server.service.grants and made.queue.asked == []
