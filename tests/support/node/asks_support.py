"""Shared by tests of qgpud.sock: a daemon that all users can reach, and other users."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from daemon_support import Serving

from enforcer.clock import SystemClock
from enforcer.daemon.requests.protocol import SOCK_ASK, ask
from simulator.fakes import FakeNode

NOBODY = 65534


@contextlib.contextmanager
def serving(nodes: Callable[..., FakeNode]) -> Iterator[Serving]:
    """A daemon that serves in a thread, in a directory that all users can enter."""
    with tempfile.TemporaryDirectory(prefix="qgpu-test-") as name:
        Path(name).chmod(0o755)
        one = Serving(nodes(Path(name), clock=SystemClock()))
        yield one
        one.stop()


def run_dir(node: FakeNode) -> Path:
    return node.directory / "run"


def connect(node: FakeNode) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sock.settimeout(10)
    sock.connect(str(run_dir(node) / SOCK_ASK))
    return sock


def status(node: FakeNode) -> dict[str, object]:
    return ask(run_dir(node), {"op": "status"}, owner=os.geteuid())[0]


def as_nobody(action: Callable[[], object]) -> object:
    """What the action answers in a process of another user; text of an AskError or ViewError as
    such.
    """
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            os.write(writer, json.dumps(action()).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        data = pipe.read()
    os.waitpid(pid, 0)
    return json.loads(data)
