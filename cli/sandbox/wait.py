"""Waiting for conditions with a deadline, watching that what we wait for is still alive."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from pathlib import Path

from cli.sandbox.errors import SandboxError


def until(
    done: Callable[[], bool], seconds: float, what: str, watch: Callable[[], None] = lambda: None
) -> None:
    """Return as soon as done() is true; SandboxError after that many seconds. watch() may raise
    earlier.
    """
    deadline = time.monotonic() + seconds
    pause = 0.01
    while not done():
        watch()
        if time.monotonic() > deadline:
            raise SandboxError(f"{what} did not happen within {seconds:g} s")
        time.sleep(pause)
        pause = min(pause * 1.5, 0.1)


def unix_accepts(path: Path, kind: socket.SocketKind = socket.SOCK_STREAM) -> bool:
    """Whether something accepts connections on that unix socket."""
    with socket.socket(socket.AF_UNIX, kind) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            return False
    return True


def tcp_accepts(port: int) -> bool:
    """Whether something accepts connections on that local port."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def tail(path: Path, lines: int = 5) -> str:
    """The last lines of a log, with its lines that say ERROR before them; empty without a log."""
    try:
        text = path.read_text(errors="replace")
    except OSError:
        return ""
    every = text.rstrip("\n").split("\n") if text else []
    errors = [line for line in every[:-lines] if "ERROR" in line][-lines:]
    return "\n".join("  " + line for line in [*errors, *every[-lines:]])
