"""Messages and connections of the daemon's own sockets."""

from __future__ import annotations

import contextlib
import selectors
import socket
from typing import Any


def receive(sock: socket.socket, most: int) -> bytes | None:
    """One message, cut after `most` bytes and one; empty when the other side is gone, None when none is there."""
    try:
        return sock.recv(most + 1)
    except BlockingIOError:
        return None
    except OSError:
        return b""


def hang_up(sock: socket.socket, clients: dict[int, Any], selector: selectors.BaseSelector) -> None:
    """End a connection: it is no client any more, watched by nobody (perhaps it never was), and closed."""
    clients.pop(sock.fileno(), None)
    with contextlib.suppress(KeyError):
        selector.unregister(sock)
    sock.close()
