"""Experiments 8 and 9: the driver's own memory limits, minutes of suspension without an Xid, kill
-9 in them.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bench.gpu.experiments.stops import modelled, rows_of, stops, trace_of
from bench.gpu.items import Item, Yield, figure
from bench.gpu.node import Node, wait_for
from bench.gpu.place import BUILD, Place
from enforcer.nvml.port import NvmlError
from simulator.judge import evaluate as ev

PARTS = 5
HOLD_S = 245.0
MIB = 1 << 20
LIMITS_FROM = 615


class XidWatch:
    """Critical errors of the card while inside, by NVML's events. `words`: why it cannot watch."""

    def __init__(self, node: Node) -> None:
        self.uuid, self.found, self.words = node.card.uuid, list[int](), ""
        self._end = threading.Event()
        if node.place.simulated:
            self.words = "not modelled: events of NVML"

    def __enter__(self) -> XidWatch:
        if not self.words:
            self._open()
        return self

    def _open(self) -> None:
        import pynvml

        try:
            handle = pynvml.nvmlDeviceGetHandleByUUID(self.uuid)
            self._set = pynvml.nvmlEventSetCreate()
            pynvml.nvmlDeviceRegisterEvents(handle, pynvml.nvmlEventTypeXidCriticalError, self._set)
        except pynvml.NVMLError as error:
            self.words = f"not possible: NVML tells no Xid here: {error}"
            return
        self._thread = threading.Thread(target=self._watch, args=(pynvml,), daemon=True)
        self._thread.start()

    def _watch(self, nvml: Any) -> None:
        while not self._end.is_set():
            with contextlib.suppress(nvml.NVMLError):  # its timeout
                self.found.append(int(nvml.nvmlEventSetWait_v2(self._set, 200).eventData))

    def __exit__(self, *_: object) -> None:
        if not self.words:
            import pynvml

            self._end.set()
            self._thread.join(5)
            pynvml.nvmlEventSetFree(self._set)

    def yields(self, node: Node) -> Iterator[Yield]:
        """What was seen."""
        if self.words:
            yield self.words
        else:
            yield figure(
                node, "xids", len(self.found), "", 0, spread=str(self.found) if self.found else ""
            )


class Held:
    """A process of its own session that stays suspended over several items, and over calls if
    possible.

    It ends by itself after its time, so nothing stays suspended if this command dies.
    """

    def __init__(self, place: Place) -> None:
        self.seconds = HOLD_S if not place.simulated else (5.0 if place.quick else 15.0)
        self.state, self.log = place.work / "hold.json", place.work / "hold.jsonl"

    def _start_ticks(self, pid: int) -> str:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[19]

    def pid(self) -> int | None:
        """The process, if it lives: by number and time of start."""
        with contextlib.suppress(OSError, ValueError, KeyError, IndexError):
            told = json.loads(self.state.read_text())
            if self._start_ticks(told["pid"]) == told["ticks"]:
                return int(told["pid"])
        return None

    def start(self, node: Node) -> int:
        """A new one. Its own time ends it."""
        with self.log.open("w") as out:
            process = subprocess.Popen(
                [BUILD / "test/stops", "hold", "schedule", str(round(self.seconds))],
                env=node.env(),
                stdout=out,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        self.state.write_text(
            json.dumps({"pid": process.pid, "ticks": self._start_ticks(process.pid)})
        )
        # no zombie, which would appear alive
        threading.Thread(target=process.wait, daemon=True).start()
        return process.pid

    def rows(self) -> list[dict[str, Any]]:
        """Its output so far."""
        return rows_of(self.log.read_text()) if self.log.exists() else []


def held_part(part: int) -> Callable[[Node], Iterator[Yield]]:
    """9: a fifth of the time. Where the suspended process is gone, the time begins anew with this
    part.
    """

    def body(node: Node) -> Iterator[Yield]:
        held = Held(node.place)
        pid = held.pid() if part > 1 else None
        if pid is None:
            pid = held.start(node)
            if part > 1:
                yield (
                    "the suspended process is gone, so the time begins anew; AGAIN=1 ONLY='9 hold'"
                    " makes it whole"
                )
        due = held.seconds * part / PARTS
        with XidWatch(node) as watch:
            wait_for(
                f"{due:.0f} s of suspension",
                lambda: _so_far(held) >= due or held.pid() != pid,
                due + 30,
            )
            if part == PARTS:
                wait_for("its end", lambda: held.pid() != pid, 30)
        rows = held.rows()
        if not rows or "failed" in rows[-1]:
            raise RuntimeError(
                f"the suspended process failed: {rows[-1:] or held.log.read_text()[-300:]}"
            )
        yield f"{rows[-1]}"
        yield figure(node, "suspended_for", rows[-1]["held_s"], "s", int(due), ">=")
        yield from _stood_still(node, rows)
        yield from watch.yields(node)
        if part == PARTS:
            yield figure(
                node, "goes_on_afterwards", float(bool(rows[-1].get("moves_again"))), "", 1, ">="
            )

    return modelled(body)


def _so_far(held: Held) -> float:
    rows = held.rows()
    return float(rows[-1].get("held_s", 0)) if rows else 0.0


def _stood_still(node: Node, rows: list[dict[str, Any]]) -> Iterator[Yield]:
    first, last = rows[0], rows[-1]
    if not node.place.simulated:
        yield figure(node, "moved_while_suspended", last["moved"], "", 0)
        return
    end = last.get("end_ns", first["start_ns"] + last["held_s"] * 10**9)
    ran = ev.work_ns(trace_of(node, last["pid"]), first["start_ns"], end) / 1e6
    yield figure(node, "ran_while_suspended", ran, "ms", 0)


def killed(node: Node) -> Iterator[Yield]:
    """9: kill -9 while suspended: the card has its memory back, and others compute."""
    before = node.card_memory()
    victim = node.start([BUILD / "test/stops", "hold", "schedule", "50"])
    assert victim.stdout is not None
    first = json.loads(victim.stdout.readline() or "{}")
    yield f"{first}"
    held = node.card_memory() - before
    with XidWatch(node) as watch:
        victim.send_signal(signal.SIGKILL)
        victim.wait()
        began = time.monotonic()
        wait_for("the return of its memory", lambda: node.card_memory() <= before + 32 * MIB, 20)
        yield figure(
            node,
            "memory_back_after",
            time.monotonic() - began,
            "s",
            10,
            spread=f"(held {held >> 20} MiB)",
        )
        wait_for(
            "the end of its entry in NVML",
            lambda: victim.pid not in {p.pid for p in node.nvml.processes(node.card.uuid)},
            20,
        )
        after = node.run(
            [BUILD / "bin/qgpu-workload", "--json", "--kernel-us", "200", "--requests", "200"]
        )
        yield figure(
            node,
            "others_compute",
            float(after["errors"] == 0 and after["requests"] == 200),
            "",
            1,
            ">=",
        )
    yield from watch.yields(node)


def killed_if_it_can_be_suspended(node: Node) -> Iterator[Yield]:
    """The same, where there are groups at all."""
    stops(node, "spin", "schedule", 1)
    yield from killed(node)


def limits(node: Node) -> Iterator[Yield]:
    """8: driver 615 and later only: does NVML answer about the limits of our own cgroup. Reads,
    sets nothing.
    """
    major = int(node.driver.split(".")[0]) if node.driver.split(".")[0].isdigit() else 0
    if major < LIMITS_FROM:
        yield (
            f"not possible: driver {node.driver} has no memory limits per cgroup; {LIMITS_FROM} and"
            " later have"
        )
        return
    line = next(
        (t for t in Path("/proc/self/cgroup").read_text().splitlines() if t.startswith("0::")), ""
    )
    if not line:
        yield "not possible: no cgroup of version 2 here"
        return
    try:
        found = node.nvml.memory_limits(
            node.card.uuid, os.path.normpath(f"/sys/fs/cgroup/{line[3:]}")
        )
    except NvmlError as error:
        yield f"not possible: {error}"
        return
    yield f"{found}"
    yield figure(node, "limits_answer", 1, "", 1, ">=")


def items(place: Place) -> Iterator[Item]:
    """The last of the list."""
    needs = () if place.simulated else ("card",)
    yield Item("experiments/8 limits", 5, limits, needs)
    for part in range(1, PARTS + 1):
        yield Item(f"experiments/9 hold {part} of {PARTS}", 58, held_part(part), needs)
    yield Item(
        "experiments/9 kill -9 while suspended", 45, modelled(killed_if_it_can_be_suspended), needs
    )
