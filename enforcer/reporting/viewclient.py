"""Asks view.sock of a qgpud. One that is busy with other users is asked again for some seconds."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from pathlib import Path
from typing import Any

SOCK_NAME = "view.sock"
PATIENCE_S = 20.0  # seconds for which a busy qgpud is asked again: twice what a silent client gets
PAUSE_S = 0.25  # seconds between two tries: 10 questions a second are allowed


class ViewError(RuntimeError):
    """The question cannot be answered; the text is a sentence."""


class _BusyError(ViewError):
    """It can be answered later."""


def ask(path: Path, question: dict[str, Any], timeout_s: float = 5.0) -> dict[str, Any]:
    """The answer of the qgpud at that socket. Raises ViewError."""
    until = time.monotonic() + PATIENCE_S
    while True:
        try:
            return _once(path, question, timeout_s)
        except _BusyError:
            if time.monotonic() >= until:
                raise
        time.sleep(PAUSE_S)


def _once(path: Path, question: dict[str, Any], timeout_s: float) -> dict[str, Any]:
    try:
        data = _talk(path, json.dumps(question).encode() + b"\n", timeout_s)
    except (BlockingIOError, TimeoutError) as error:  # its queue is full; it is slow
        raise _BusyError(f"qgpud at {path} is busy with other users: {error}") from None
    except OSError as error:
        raise ViewError(f"qgpud does not answer at {path}: {error.strerror or error}") from None
    if not data:
        raise _BusyError(f"qgpud at {path} ended the connection without an answer")
    try:
        answer = json.loads(data)
    except ValueError:
        raise ViewError(f"qgpud at {path} answered no JSON") from None
    if not isinstance(answer, dict):
        raise ViewError(f"qgpud at {path}: no answer")
    if "error" in answer:
        kind = _BusyError if answer.get("again") is True else ViewError
        raise kind(f"qgpud at {path}: {answer['error']}")
    return answer


def _talk(path: Path, line: bytes, timeout_s: float) -> bytes:
    """What comes back; empty if the connection ended in between."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as sock:
        sock.settimeout(timeout_s)
        sock.connect(str(path))
        with contextlib.suppress(BrokenPipeError):  # it may have said why
            sock.sendall(line)
        try:
            return b"".join(iter(lambda: sock.recv(1 << 16), b""))
        except ConnectionResetError:
            return b""


def owner_of(path: Path) -> int | None:
    """The uid that owns the socket, None without one: only root's counts."""
    try:
        return os.lstat(path).st_uid
    except OSError:
        return None
