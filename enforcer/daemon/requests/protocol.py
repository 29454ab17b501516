"""qgpud/1: what `qgpu card`, `job`, `run` and `doctor` ask a running qgpud (docs/specs/daemon.md).

One JSON object per message over run_dir/qgpud.sock. Every user may connect: SO_PEERCRED gives the
uid.
"""

from __future__ import annotations

import array
import contextlib
import errno
import json
import os
import socket
import time
from pathlib import Path
from typing import Any

SOCK_ASK = "qgpud.sock"
PROTOCOL = "qgpud/1"
MAX_MESSAGE = 65536  # bytes of one message
SO_PEERPIDFD = 77  # Linux 6.5; Python has no name for it


class AskError(RuntimeError):
    """qgpud is absent, is not root's, or refused; the text is a sentence."""


class NoDaemonError(AskError):
    """No process answers at the socket."""


def encode(body: dict[str, Any]) -> bytes:
    """One message."""
    return json.dumps({"protocol": PROTOCOL, **body}).encode()


def decode(data: bytes) -> dict[str, Any]:
    """The object of one message. Raises AskError."""
    try:
        body = json.loads(data)
    except (ValueError, RecursionError):
        body = None
    if len(data) > MAX_MESSAGE or not isinstance(body, dict) or body.get("protocol") != PROTOCOL:
        raise AskError(f"the message is not one JSON object of {PROTOCOL}")
    return body


def ask(
    run_dir: str | Path, body: dict[str, Any], timeout: float = 15.0, owner: int = 0
) -> tuple[dict[str, Any], list[int]]:
    """Ask qgpud; its answer and the descriptors that came with it. Raises AskError.

    `owner` is the uid that must answer: a user may offer a socket elsewhere.
    """
    path = Path(run_dir) / SOCK_ASK
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC) as sock:
        sock.settimeout(timeout)
        try:
            _connect(sock, path, timeout)
            peer = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
            if int.from_bytes(peer[4:8], "little") != owner:
                raise AskError(f"what answers at {path} is not root's; nothing was asked")
            turned_away = not _send(sock, encode(body))
            data, fds = _receive(sock)
        except OSError as error:
            raise NoDaemonError(
                f"qgpud does not answer at {path} ({error.strerror or error}): start it with"
                " systemctl start qgpud"
            ) from None
    if not data and turned_away:
        raise AskError(
            f"qgpud turned the connection at {path} away: too many are open; try again in a few"
            " seconds"
        )
    if not data:
        raise AskError(
            f"qgpud ended the connection at {path} without an answer; its log has the reason"
        )
    answer = decode(data)
    if not answer.get("ok"):
        for fd in fds:
            os.close(fd)
        raise AskError(str(answer.get("error", "qgpud refused without a reason")))
    return answer, fds


def _connect(sock: socket.socket, path: Path, timeout: float) -> None:
    """Connect; while the queue of callers is full, try again. Raises OSError, AskError."""
    end = time.monotonic() + timeout
    while error := sock.connect_ex(str(path)):
        if error != errno.EAGAIN:
            raise OSError(error, os.strerror(error))
        if time.monotonic() > end:
            raise AskError(f"too many callers wait for qgpud at {path}; try again in a few seconds")
        time.sleep(0.01)


def _send(sock: socket.socket, message: bytes) -> bool:
    """Send; False if the other end closed already, perhaps after a message."""
    try:
        sock.send(message)
    except (BrokenPipeError, ConnectionResetError):
        return False
    return True


def _receive(sock: socket.socket) -> tuple[bytes, list[int]]:
    """The answer; also one sent before the other end closed without reading the question."""
    with contextlib.suppress(ConnectionResetError):
        return _receive_once(sock)
    return _receive_once(sock)


def _receive_once(sock: socket.socket) -> tuple[bytes, list[int]]:
    data, ancillary, _, _ = sock.recvmsg(
        MAX_MESSAGE, socket.CMSG_SPACE(16), socket.MSG_CMSG_CLOEXEC
    )
    fds = array.array("i")
    for level, kind, payload in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds.frombytes(payload[: len(payload) - len(payload) % fds.itemsize])
    return data, list(fds)
