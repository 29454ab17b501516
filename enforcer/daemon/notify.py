"""systemd's readiness and watchdog messages. Without systemd nothing happens."""

from __future__ import annotations

import contextlib
import os
import socket


def notify(text: str) -> None:
    """Send one sd_notify message such as READY=1; failures are systemd's to notice."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if address[:1] not in ("/", "@"):
        return
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.connect("\0" + address[1:] if address[0] == "@" else address)
        channel.send(text.encode())
