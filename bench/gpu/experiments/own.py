"""The experiments that read or touch only what their own process made."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Sequence
from typing import Any

from bench.gpu.items import Item, Yield, figure
from bench.gpu.node import Node
from bench.gpu.place import BUILD, Place

OPEN_QUESTIONS = (
    "3 latency, 1000 times: from the call to the victim's last progress and to online's first kernel, for slice 0/1,"
    " DISABLE_CHANNELS, GPFIFO_SCHEDULE(0), PREEMPT",
    "4 does slice 0 stop a spinning kernel at all; is what it computed right afterwards",
    "5 a persistent kernel, with CILP as context-switch mode",
    "6 two processes with slices 3 ms : 7 ms: how exact are shares by hardware",
    "8 driver 615 only: memory limits of the driver in a job's cgroup",
    "9 Xid while suspended for 4 minutes; kill -9 while suspended",
)


def own(node: Node, *words: str, codes: Sequence[int] = (0,)) -> list[dict[str, Any]]:
    """Run the program; its lines. RuntimeError with its words where it ends otherwise."""
    done = subprocess.run(
        [BUILD / "test/own", *words], env=node.env(), capture_output=True, text=True, timeout=55
    )
    if done.returncode not in codes:
        raise RuntimeError(
            f"own {' '.join(words)}: status {done.returncode}: {done.stdout[-400:]}{done.stderr[-200:]}"
        )
    return [json.loads(line) for line in done.stdout.splitlines()]


def sniff(node: Node) -> Iterator[Yield]:
    """1a: do libcuda's control calls pass through a library in front, and in which layouts."""
    rows = own(node, "sniff", codes=(0, 4))
    yield from (f"{row}" for row in rows)
    groups = sum(row["live"] for row in rows if row.get("class") == "0xa06c")
    yield figure(node, "channel_groups_seen", groups, "", 1, ">=")
    yield figure(node, "calls_of_unknown_size", rows[-1]["other_sizes"])


def ask(node: Node) -> Iterator[Yield]:
    """1b and 6: the time slice of a context's groups by default, asked in the process itself."""
    rows = own(node, "ask")
    yield from (f"{row}" for row in rows)
    yield figure(
        node, "get_timeslice_answers", sum(row["get_timeslice"] == "0x0" for row in rows), "", len(rows), ">="
    )
    if rows:
        yield figure(node, "call_took", max(row["took_ns"] for row in rows) / 1000, "us", runs=len(rows))


def outsider(node: Node) -> Iterator[Yield]:
    """2: another process with the same uid: a fresh descriptor must be refused, a passed one must work."""
    rows = {row["from_outside"]: row for row in own(node, "outsider")}
    yield from (f"{row}" for row in rows.values())
    yield figure(node, "fresh_is_refused", float(rows["fresh"]["status"] != "0x0"), "", 1, ">=")
    for how in ("scm_rights", "pidfd_getfd"):
        yield figure(node, f"{how}_works", float(rows[how]["status"] == "0x0"), "", 1, ">=")


def slices(node: Node) -> Iterator[Yield]:
    """1c: set the slice of its own groups, read it, put it back."""
    for us in (2000, 1):
        rows = own(node, "slice", str(us))
        yield from (f"{us} us: {row}" for row in rows)
        done = sum(row["set"] == "0x0" and row["put_back"] == "0x0" for row in rows)
        yield figure(node, f"groups_that_took_{us}_us", done, "", max(1, len(rows)), ">=")


def pause(node: Node) -> Iterator[Yield]:
    """4, first look: its own groups off the card for 50 ms and back, while nothing of it runs."""
    rows = own(node, "pause", "50")
    yield from (f"{row}" for row in rows)
    stopped = sum(row.get("stop") == "0x0" for row in rows)
    continued = sum(row.get("continue") == "0x0" for row in rows)
    yield figure(node, "groups_stopped", stopped)
    yield figure(node, "groups_continued", continued, "", stopped, ">=")


def still_open(node: Node) -> Iterator[Yield]:
    """What is not written yet, so that nobody takes this part for the whole."""
    del node
    yield from (f"not written yet: {question}" for question in OPEN_QUESTIONS)


def items(place: Place) -> Iterator[Item]:
    """In the order in which each decides whether the next is worth its time."""
    del place
    for name, body in (
        ("1a sniff", sniff),
        ("1b ask", ask),
        ("2 outsider", outsider),
        ("1c slice", slices),
        ("4 pause", pause),
    ):
        yield Item(f"experiments/{name}", 20, body, ("card",))
    yield Item("experiments/open", 1, still_open)
