"""Messages and connections of the daemon's own sockets."""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import stat
import struct
from pathlib import Path
from typing import Any


class ServerError(RuntimeError):
    """The daemon cannot serve; the text is a sentence."""


def listen(path: Path, umask: int = 0o177) -> socket.socket:
    """A listening socket, for root alone unless `umask` allows more.

    Raises ServerError if something else is in its place.
    """
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise ServerError(f"{path} exists and is not a socket: remove it")
        path.unlink()
    server = socket.socket(
        socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
    )
    before = os.umask(umask)
    try:
        server.bind(str(path))
    except OSError as error:
        server.close()
        raise ServerError(f"{path} cannot be made: {error.strerror}") from None
    finally:
        os.umask(before)
    server.listen(128)
    return server


def peer_uid(sock: socket.socket) -> int:
    """The uid at the other end of a Unix socket."""
    size = struct.calcsize("3i")
    return int(struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))[1])


def receive(sock: socket.socket, most: int) -> bytes | None:
    """One message of `most` bytes, or one more if it is longer; empty: closed; None: no message
    yet.
    """
    try:
        return sock.recv(most + 1)
    except BlockingIOError:
        return None
    except OSError:
        return b""


def hang_up(sock: socket.socket, clients: dict[int, Any], selector: selectors.BaseSelector) -> None:
    """Unregister and close a connection, watched or not."""
    clients.pop(sock.fileno(), None)
    with contextlib.suppress(KeyError):
        selector.unregister(sock)
    sock.close()
