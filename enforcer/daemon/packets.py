"""Messages of the daemon's own sockets."""

from __future__ import annotations

import socket


def receive(sock: socket.socket, most: int) -> bytes | None:
    """One message, cut after `most` bytes and one; empty when the other side is gone, None when none is there."""
    try:
        return sock.recv(most + 1)
    except BlockingIOError:
        return None
    except OSError:
        return b""
