"""Descriptors of a FUSE file whose server never answers: each close() of one hangs until the
server ends, and no signal helps. Others are served meanwhile, the arbiter can end, and the next
one can start.
"""

from __future__ import annotations

import array
import contextlib
import os
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from arbiter_support import (
    ARBITER_ASAN,
    Arbiter,
    Tenant,
    arbiter,
    connect,
    grant,
    let_others_in,
    register_message,
    settings,
    wait_for,
)
from fuse_support import silent
from test_arbiter_hostile import descriptors
from test_arbiter_unknown_uids import Forked, Say, of_user

pytestmark = [
    pytest.mark.native,
    pytest.mark.skipif(os.geteuid() != 0, reason="mounts a file system, and plays other users"),
]
EVIL = 320_000
CONNECTIONS = 100  # more than all helpers that there ever were


def sends(run_dir: Path, path: Path, mode: str) -> Callable[[Say], object]:
    """Three descriptors over each of many connections; none of its own is closed."""

    def run(say: Say) -> None:
        kept = []
        fd = os.open(path, os.O_RDWR)
        if mode == "write":
            os.write(fd, b"x")
        for number in range(CONNECTIONS):
            if number % 25 == 24:
                time.sleep(1.3)  # longer than it takes to be found to hang
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))]
            sock = connect(run_dir)
            kept.append(sock)
            with contextlib.suppress(OSError):
                for _ in range(3):
                    sock.sendmsg([register_message(99)], rights)
        say("sent")
        time.sleep(600)

    return run


def brokers(one: Arbiter) -> int:
    """Of this arbiter; those of other tests come and go. A process that hangs in its end counts."""
    count = 0
    for child in psutil.Process(one.process.pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            count += child.name() == "qgpu-broker"
    return count


@pytest.fixture
def open_path() -> Iterator[Path]:
    """A directory that other users reach; the one of all tests is shut again by each run of
    pytest that begins.
    """
    with tempfile.TemporaryDirectory() as name:
        let_others_in(Path(name))
        yield Path(name)


@pytest.mark.parametrize("mode", ["flush", "write"])
@pytest.mark.parametrize("whose", ["a stranger's", "a tenant's"])
def test_descriptors_whose_close_never_ends(open_path: Path, whose: str, mode: str) -> None:
    path = open_path / "silent"
    path.touch()
    with contextlib.ExitStack() as evil, silent(path, mode):
        with (
            arbiter(open_path, "--log-level", "warning", binary=ARBITER_ASAN) as one,
            one.link() as link,
        ):
            grants = [grant(1), *([of_user(2, EVIL)] if whose == "a tenant's" else [])]
            link.sync([settings()], grants)
            Tenant(one.run_dir, grant(1)).close()
            before, brokers_before = descriptors(one), brokers(one)
            sender = Forked(EVIL, sends(one.run_dir, path, mode))
            evil.callback(sender.end)  # after the server: it hangs in its end as well
            assert sender.said() == "sent"
            wait_for(lambda: "cannot be closed" in one.log.read_text(), "all its brokers hang")
            for _ in range(5):
                began = time.monotonic()
                Tenant(one.run_dir, grant(1)).close()
                assert time.monotonic() - began < 20, (
                    "another user waits for the end of this one's descriptors"
                )
            wait_for(
                lambda: descriptors(one) <= before + 12,
                "none of what it sent is left with the arbiter",
            )
            assert 0 < brokers(one) - brokers_before <= 2 + 16 + 2
        with arbiter(open_path) as following, following.link() as link:
            link.sync([settings()], grants)
            Tenant(following.run_dir, grant(1)).close()
