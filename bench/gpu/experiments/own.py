"""The experiments that read or touch only what their own process made."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bench.gpu.experiments.recording import Recording
from bench.gpu.experiments.stops import NotModelledError, modelled
from bench.gpu.items import Item, Yield, figure
from bench.gpu.node import Node
from bench.gpu.place import BUILD, Place

NO_GROUPS = 4  # exit status


def own(
    node: Node, *words: str, codes: Sequence[int] = (0,), record: Path | None = None
) -> list[dict[str, Any]]:
    """Run the program; its lines. RuntimeError with its words where it ends otherwise."""
    env = node.env() | ({"QGPU_OWN_RECORD": str(record)} if record else {})
    done = subprocess.run(
        [BUILD / "test/own", *words], env=env, capture_output=True, text=True, timeout=55
    )
    if done.returncode == NO_GROUPS and node.place.simulated:
        raise NotModelledError(
            "this simulator shows no channel group: it has no control device here"
        )
    if done.returncode not in codes:
        raise RuntimeError(
            f"own {' '.join(words)}: status {done.returncode}:"
            f" {done.stdout[-400:]}{done.stderr[-200:]}"
        )
    return [json.loads(line) for line in done.stdout.splitlines()]


def sniff(node: Node) -> Iterator[Yield]:
    """1a: do libcuda's control calls pass through a library in front, and in which layouts."""
    rows = own(node, "sniff", codes=(0, NO_GROUPS))
    yield from (f"{row}" for row in rows)
    groups = sum(row["live"] for row in rows if row.get("class") == "0xa06c")
    yield figure(node, "channel_groups_seen", groups, "", 1, ">=")
    yield figure(node, "calls_of_unknown_size", rows[-1]["other_sizes"])


def ask(node: Node) -> Iterator[Yield]:
    """1b and 6: the time slice of a context's groups by default, asked in the process itself."""
    rows = own(node, "ask")
    yield from (f"{row}" for row in rows)
    yield figure(
        node,
        "get_timeslice_answers",
        sum(row["get_timeslice"] == "0x0" for row in rows),
        "",
        len(rows),
        ">=",
    )
    if rows:
        yield figure(
            node, "call_took", max(row["took_ns"] for row in rows) / 1000, "us", runs=len(rows)
        )


def outsider(node: Node) -> Iterator[Yield]:
    """2: another process with the same uid: a fresh descriptor must be refused, a passed one must
    work.
    """
    rows = {row["from_outside"]: row for row in own(node, "outsider")}
    yield from (f"{row}" for row in rows.values())
    if node.place.simulated:
        yield (
            "not modelled: a fresh descriptor, since the simulator's device has no name to open it"
            " by"
        )
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
    """4, first part: its own groups off the card for 50 ms and back,
    while none of its work runs.
    """
    rows = own(node, "pause", "50")
    yield from (f"{row}" for row in rows)
    stopped = sum(row.get("stop") == "0x0" for row in rows)
    continued = sum(row.get("continue") == "0x0" for row in rows)
    yield figure(node, "groups_stopped", stopped)
    yield figure(node, "groups_continued", continued, "", stopped, ">=")


def record(node: Node) -> Iterator[Yield]:
    """1a: every call from opening the card to leaving it, kept to be
    compared with the simulator's.
    """
    path = node.place.results / "recording.jsonl"
    own(node, "record", record=path)
    found = Recording.read(path)
    yield from found.words()
    yield f"kept as {path.name}; docs/specs/rm-recording.md"
    yield figure(node, "calls_recorded", len(found.calls), "", 10, ">=")
    yield figure(
        node, "contradictions", len(found.faults()), "", 0, spread="; ".join(found.faults()[:3])
    )


def items(place: Place) -> Iterator[Item]:
    """In the order in which each decides whether the next is worth its time."""
    needs = () if place.simulated else ("card",)
    for name, body in (
        ("1a sniff", sniff),
        ("1a record", record),
        ("1b ask", ask),
        ("2 outsider", outsider),
        ("1c slice", slices),
        ("4 pause", pause),
    ):
        yield Item(f"experiments/{name}", 20, modelled(body), needs)
