"""Waiting for descriptors with poll(2): select(2) fails for numbers of 1024 and more."""

from __future__ import annotations

import select


def ready(fds: list[int], seconds: float) -> list[int]:
    """The descriptors that can be read, or whose other end is closed, within the time."""
    poller = select.poll()
    for fd in fds:
        poller.register(fd, select.POLLIN)
    return [fd for fd, _ in poller.poll(max(0.0, seconds) * 1000)]


def readable_within(fd: int, seconds: float) -> bool:
    """Whether one descriptor can be read within the time."""
    return bool(ready([fd], seconds))
