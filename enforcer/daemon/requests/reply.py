"""Who asks qgpud, and what an answer is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


class RefusedError(RuntimeError):
    """The answer is no; the text is a sentence."""


@dataclass(frozen=True)
class Peer:
    """The process that asks, by the kernel. `pidfd` opens its descriptor; the caller closes it."""

    pid: int
    uid: int
    gid: int
    groups: frozenset[int]
    pidfd: Callable[[], int]


@dataclass(frozen=True)
class Reply:
    """An answer, and a descriptor to send with it, which is closed afterwards."""

    body: dict[str, Any]
    fd: int | None = None
