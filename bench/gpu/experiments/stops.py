"""Experiments 3 to 7: the effect and cost of stopping its own groups on
a running kernel (stops.c).
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from bench.gpu.items import Item, Yield, figure
from bench.gpu.node import Node
from bench.gpu.place import BUILD, Place
from simulator.judge import evaluate as ev
from simulator.sim import Interval, read_trace

METHODS = ("schedule", "disable", "disable-scheduling", "timeslice", "timeslice0", "preempt")
STOPPING = (
    "schedule",
    "disable",
)  # what the product would stop with; the others are asked for what they do
NOT_FOUND = "0x57"
STUCK_NS = 2_900_000_000
FLUSH_S = 0.25  # the simulator's device side writes its trace each 100 ms
WEIGHTS = ((0, 0), (3000, 7000), (1000, 9000))
Row = Mapping[str, Any]


class NotModelledError(RuntimeError):
    """The simulator has nothing that this could be asked of; the text is a sentence."""


class Piece(NamedTuple):
    """Nanoseconds in which a process had the card."""

    t_start: int
    t_end: int


def rows_of(out: str) -> list[dict[str, Any]]:
    """JSON lines of a program."""
    return [json.loads(line) for line in out.splitlines() if line.startswith("{")]


def stops(node: Node, *words: object, seconds: float = 58) -> list[dict[str, Any]]:
    """Run the program; its rows. RuntimeError with its words where it fails, NotModelledError
    without any group.
    """
    command = [str(BUILD / "test/stops"), *map(str, words)]
    done = subprocess.run(command, env=node.env(), capture_output=True, text=True, timeout=seconds)
    rows = rows_of(done.stdout)
    if done.returncode:
        raise RuntimeError(
            f"stops {' '.join(command[1:])}: {done.stdout[-300:]}{done.stderr[-200:]}"
        )
    statuses = [row["status"] for row in rows if "status" in row]
    if node.place.simulated and statuses and all(status == NOT_FOUND for status in statuses):
        raise NotModelledError(
            "this simulator shows no channel group: it has no control device here"
        )
    return rows


def modelled(body: Callable[[Node], Iterator[Yield]]) -> Callable[[Node], Iterator[Yield]]:
    """The body, or on the simulator a sentence where it models nothing of the kind."""

    def run(node: Node) -> Iterator[Yield]:
        try:
            yield from body(node)
        except NotModelledError as error:
            yield f"not modelled: {error}"

    return run


def trace_of(node: Node, pid: int) -> list[Interval]:
    """The executed work of this process by the simulator's device side."""
    time.sleep(FLUSH_S)
    return [
        i
        for i in read_trace(node.directory / "sim/trace.bin")
        if i.pid == pid and i.engine == "compute"
    ]


def progress_us(row: Row, pieces: Sequence[Piece | Interval]) -> float | None:
    """From the stop to the last progress before the continue; None where it was still going on by
    then.
    """
    last = row["stop_ns"]
    for piece in pieces:
        if piece.t_start < row["continue_ns"] and piece.t_end > row["stop_ns"]:
            last = max(last, min(piece.t_end, row["continue_ns"]))
    return None if last >= row["continue_ns"] else (last - row["stop_ns"]) / 1000


def started_us(row: Row, pieces: Sequence[Piece | Interval]) -> float | None:
    """From the stop to the first start of the online kernel that was submitted after it."""
    starts = [
        p.t_start for p in pieces if row["online_submit_ns"] <= p.t_start <= row["online_done_ns"]
    ]
    return (min(starts) - row["stop_ns"]) / 1000 if starts else None


def told(node: Node, rows: Sequence[Row]) -> list[dict[str, Any]]:
    """The trials with last_progress_us and online_start_us: from the card's own clock, or from the
    trace.
    """
    trials = [dict(row) for row in rows if "stop_ns" in row]
    if not node.place.simulated or not trials:
        return trials
    own, other = (trace_of(node, trials[0][key]) for key in ("pid", "online_pid"))
    for trial in trials:
        last, start = progress_us(trial, own), started_us(trial, other)
        trial |= {"last_progress_us": last} if last is not None else {}
        trial |= {"online_start_us": start} if start is not None else {}
    return trials


def _spread(values: Sequence[float]) -> str:
    p50, p99 = (ev.percentile(values, q) for q in (50, 99))
    return f"(p50 {p50:.1f}, p99 {p99:.1f}, max {max(values):.1f} us)"


def latencies(node: Node, trials: Sequence[Row], target: float | None) -> Iterator[Yield]:
    """All figures of a series of stops."""
    stuck = [row for row in trials if row["stopped_ns"] - row["stop_ns"] > STUCK_NS]
    if stuck:
        yield f"trial {len(trials)} waited for the kernel's own end: the series was ended there"
    refused = sorted({row["status"] for row in trials} - {"0x0"})
    if refused:
        yield f"statuses of the stop: {', '.join(refused)}"
    yield figure(
        node,
        "stops_answered_with_0",
        sum(row["status"] == "0x0" for row in trials),
        "",
        runs=len(trials),
    )
    stood = [row["last_progress_us"] for row in trials if "last_progress_us" in row]
    yield figure(
        node,
        "stops_that_stopped",
        len(stood) / len(trials),
        "",
        1 if target else None,
        ">=",
        len(trials),
    )
    series = {
        "last_progress_us_p99": (stood, target),
        "online_start_us_p99": (
            [row["online_start_us"] for row in trials if "online_start_us" in row],
            None,
        ),
        "stop_call_us_p99": ([(r["stopped_ns"] - r["stop_ns"]) / 1000 for r in trials], None),
        "continue_call_us_p99": (
            [(r["continued_ns"] - r["continue_ns"]) / 1000 for r in trials],
            None,
        ),
    }
    for name, (values, goal) in series.items():
        if values:
            yield figure(
                node,
                name,
                ev.percentile(values, 99),
                "us",
                goal,
                "<=",
                len(values),
                _spread(values),
            )


def latency(method: str, mode: str = "") -> Callable[[Node], Iterator[Yield]]:
    """3, and with a mode 5: a thousand stops of an endless kernel, each with an online kernel after
    it.
    """

    def body(node: Node) -> Iterator[Yield]:
        count = 60 if node.place.quick else 1000
        rows = stops(node, "latency", method, count, *([mode] if mode else []))
        for row in rows:
            if "preemption_mode" in row:
                yield f"{row}"
                if node.place.simulated and row["status"] != "0x0":
                    raise NotModelledError(f"preemption modes are answered with {row['status']}")
        yield from latencies(
            node, told(node, rows), 1000 if method in STOPPING and not mode else None
        )

    return modelled(body)


def spin(method: str) -> Callable[[Node], Iterator[Yield]]:
    """4: alone on the card, does a spinning kernel stop at all."""

    def body(node: Node) -> Iterator[Yield]:
        rows = stops(node, "spin", method, 200)
        trial = next(row for row in rows if "stop_ns" in row)
        looks = next(row for row in rows if "looks" in row)
        if node.place.simulated:
            wall = trial["continue_ns"] - trial["stopped_ns"]
            ran = (
                ev.work_ns(trace_of(node, trial["pid"]), trial["stopped_ns"], trial["continue_ns"])
                / wall
            )
        else:
            ran = looks["moved"] / looks["looks"]
        yield f"status {trial['status']}, continue {trial['status_continue']}; {looks}"
        yield figure(node, "ran_while_stopped", ran, "", 0.01 if method in STOPPING else None)

    return modelled(body)


def checksum(method: str) -> Callable[[Node], Iterator[Yield]]:
    """4: what a kernel computes over a thousand suspensions, against
    the same kernel without any.
    """

    def body(node: Node) -> Iterator[Yield]:
        count = 100 if node.place.quick else 1000
        (row,) = stops(node, "checksum", method, count)
        yield f"{row}"
        wrong = row["wrong"]
        if node.place.simulated and row["failures"] >= row["stops"]:
            raise NotModelledError("this simulator answers no stop command with success")
        if node.place.simulated:
            done = [i for i in trace_of(node, row["pid"]) if i.t_start >= row["start_ns"]]
            per_kernel: dict[int, int] = {}
            for piece in done:
                per_kernel[piece.seq] = per_kernel.get(piece.seq, 0) + piece.duration
            wrong = sum(work != row["work_ns"] for work in per_kernel.values())
            wrong += len(per_kernel) != row["kernels"]
            yield (
                "the model computes nothing: its kernels must have had exactly their length of the"
                " card"
            )
        yield figure(node, "suspensions", row["stops"], "", count, ">=")
        yield figure(node, "failed_commands", row["failures"], "", 0)
        yield figure(node, "wrong_results", wrong, "", 0, runs=row["kernels"])

    return modelled(body)


def parts(node: Node, rows: Sequence[Row]) -> dict[str, float]:
    """What each of the two got of what both got together."""
    if node.place.simulated:
        start, end = max(r["start_ns"] for r in rows), min(r["end_ns"] for r in rows)
        done = {r["who"]: float(ev.work_ns(trace_of(node, r["pid"]), start, end)) for r in rows}
    else:
        done = {r["who"]: r["chunks"] / (r["end_ns"] - r["start_ns"]) for r in rows}
    total = sum(done.values())
    return {who: part / total if total else 0.0 for who, part in sorted(done.items())}


def slices(us: tuple[int, int]) -> Callable[[Node], Iterator[Yield]]:
    """6: two endless processes with these time slices; 0: the slices that the driver gives."""

    def body(node: Node) -> Iterator[Yield]:
        rows = stops(node, "slices", *us, 2 if node.place.quick else 10)
        yield from (f"{row}" for row in rows)
        if node.place.simulated and any(us) and all(row["status"] != "0x0" for row in rows):
            raise NotModelledError(f"slices are answered with {rows[0]['status']}")
        found = parts(node, rows)
        wanted = us[0] / sum(us) if any(us) else 0.5
        spread = "(" + "/".join(f"{100 * part:.2f}" for part in found.values()) + " %)"
        yield figure(
            node, "share_error_points", 100 * abs(found["a"] - wanted), "points", 2, spread=spread
        )

    return modelled(body)


def cost(node: Node) -> Iterator[Yield]:
    """7: what the calls of the launch path and the smallest control call cost the program."""
    for row in stops(node, "cost", 200 if node.place.quick else 1000):
        spread = f"(p99 {row['p99_ns'] / 1000:.2f}, max {row['max_ns'] / 1000:.2f} us)"
        yield figure(
            node,
            f"{row['what']}_us_p50",
            row["p50_ns"] / 1000,
            "us",
            runs=row["count"],
            spread=spread,
        )


def items(place: Place) -> Iterator[Item]:
    """In the order in which each decides whether the next is worth its time."""
    needs = () if place.simulated else ("card",)
    for method in METHODS:
        yield Item(f"experiments/3 latency {method}", 50, latency(method), needs)
    for method in METHODS:
        yield Item(f"experiments/4 spin {method}", 15, spin(method), needs)
    for method in STOPPING:
        yield Item(f"experiments/4 checksum {method}", 50, checksum(method), needs)
    for mode, name in (("1", "cta"), ("2", "cilp")):
        yield Item(f"experiments/5 persistent {name}", 55, latency("schedule", mode), needs)
    for us in WEIGHTS:
        name = "default" if not any(us) else f"{us[0]}:{us[1]} us"
        yield Item(f"experiments/6 slices {name}", 30, slices(us), needs)
    yield Item("experiments/7 cost", 20, cost, needs)
