"""Mounts of users whose file system stops answering (silent_fuse.py)."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SERVER = Path(__file__).with_name("silent_fuse.py")


@contextlib.contextmanager
def silent(path: Path, mode: str) -> Iterator[None]:
    """A file system at `path` that leaves requests without an answer."""
    try:
        with _server([], path, 0, mode) as server:
            _line(server)
            yield
    finally:
        subprocess.run(["umount", "-l", path], stderr=subprocess.DEVNULL)


@contextlib.contextmanager
def unseen(path: Path, mode: str, user: int) -> Iterator[list[str]]:
    """The same of a user, in a mount namespace of its own: words that run a command there."""
    with _server(["unshare", "--mount"], path, user, mode) as server:
        _line(server)
        yield ["nsenter", "--target", str(server.pid), "--mount"]


@contextlib.contextmanager
def silent_program(path: Path, file: Path, user: int) -> Iterator[int]:
    """The user's process that runs `path`, where he alone sees `file` on his file system, which
    answers no more. It sleeps.
    """
    with _server(["unshare", "--mount"], path, user, "program", file) as server:
        pid = int(_line(server))
        try:
            exe = Path(f"/proc/{pid}/exe")
            while str(exe.readlink()) != str(path):  # until it is started
                assert server.poll() is None
            assert server.stdin
            server.stdin.write("\n")
            server.stdin.flush()
            assert _line(server) == "silent"
            yield pid
        finally:
            os.kill(pid, signal.SIGKILL)


@contextlib.contextmanager
def _server(
    before: list[str], path: Path, user: int, *words: object
) -> Iterator[subprocess.Popen[str]]:
    server = subprocess.Popen(
        [*before, sys.executable, *map(str, (SERVER, path, user, *words))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        yield server
    finally:
        server.kill()  # ends everything that waits for it
        server.wait()


def _line(server: subprocess.Popen[str]) -> str:
    assert server.stdout
    line = server.stdout.readline().strip()
    if not line:
        pytest.skip("no FUSE here")
    return line
