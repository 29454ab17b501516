"""What a test left behind: descriptors and processes that this process has now and had not
before.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path


def descriptors() -> dict[str, str]:
    """What this process has open: number and target."""
    found = {}
    for number in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the one of the listing itself
            found[number.name] = str(number.readlink())
    return found


def children() -> dict[str, str]:
    """Processes that this one started and has not waited for."""
    found = {}
    for thread in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # a thread that has just ended
            for pid in (thread / "children").read_text().split():
                found[pid] = "(not waited for)"
                with contextlib.suppress(OSError):  # waited for just now
                    found[pid] = (
                        Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ") or found[pid]
                    )
    return found


Open = tuple[dict[str, str], dict[str, str]]


def of_a_library(target: str) -> bool:
    """What libraries open when they are first used, and keep: fonts, the caches of name
    services, random numbers.
    """
    return (
        target.startswith(("/usr/", "/var/lib/sss/", "/dev/urandom")) or "/site-packages/" in target
    )


def left(before: Open, now: Open) -> list[str]:
    """What was not there before; but for files of libraries."""
    kinds = zip(("descriptor", "process"), before, now, strict=True)
    found = [(kind, n, what) for kind, old, new in kinds for n, what in new.items() if n not in old]
    return [
        f"{kind} {n} ({what})"
        for kind, n, what in found
        if kind == "process" or not of_a_library(what)
    ]


def left_for_good(before: Open, now: Callable[[], Open], patience_s: float = 5.0) -> list[str]:
    """The same, when threads that are just ending have had their time; there is no event for
    that to wait for.
    """
    until = time.monotonic() + patience_s
    while (rest := left(before, now())) and time.monotonic() < until:
        time.sleep(0.02)
    return rest
