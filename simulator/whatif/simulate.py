"""Runs a trace through qgpu-simulate: the arbiter's own decision, with tenants that are a few
numbers each.
"""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from enforcer.wire import layout
from gres.config.schema import Policy
from gres.paths import PATHS
from simulator.whatif.simprogram import Program
from simulator.whatif.simtrace import (
    CardTrace,
    Requests,
    TenantTrace,
    Trace,
    TraceError,
    kernels_per_request,
)

PROGRAMS = (
    Path(__file__).resolve().parents[2] / "build/bin/qgpu-simulate",
    Path(PATHS.simulate),
)
POLICIES: dict[Policy, int] = {
    "best-effort": layout.POLICY_BEST_EFFORT,
    "fixed-share": layout.POLICY_FIXED_SHARE,
    "burst-share": layout.POLICY_BURST_SHARE,
}
FOREVER = 1000 * 3600 * 10**9
COLUMNS = 60  # of the busy profile


@dataclass(frozen=True)
class TenantResult:
    """What one tenant of one card got."""

    name: str
    card: str
    job_class: str
    policy: str
    share: int
    present_s: float
    busy_s: float
    due_s: float  # what an ideal division would have given while it wanted the card
    waited_share_s: float
    waited_preempted_s: float
    preemptions: int
    turns: int
    requests: int
    requests_waiting: int
    p50_ms: float | None
    p99_ms: float | None
    got_percent: float  # of the card, while present
    error_points: float | None  # None: it never wanted the card, or has no share of its own
    max_1s_percent: float | None
    min_1s_percent: float | None
    max_10s_percent: float | None
    min_10s_percent: float | None
    profile: tuple[float, ...]  # busy part of each column of the run


@dataclass(frozen=True)
class CardResult:
    """What happened on one card."""

    name: str
    busy_percent: float
    switches_per_s: float
    switch_lost_percent: float
    decisions_per_s: float


@dataclass(frozen=True)
class Result:
    """A whole run."""

    duration_s: float
    seed: int
    cards: tuple[CardResult, ...]
    tenants: tuple[TenantResult, ...]


@dataclass(frozen=True)
class Placed:
    """One tenant on one card."""

    name: str
    card: int
    trace: TenantTrace


def placed(trace: Trace) -> list[Placed]:
    """Every tenant of every card; a tenant without a card is on all of them."""
    cards = trace.card_names()
    result = []
    for tenant in trace.tenants:
        for name in tenant.card or cards:
            result += [Placed(label, cards.index(name), tenant) for label in tenant.labels()]
    return result


def _all_cards(trace: Trace) -> list[CardTrace]:
    return [card for card in trace.cards for _ in card.names()]


def _card_line(card: CardTrace) -> str:
    release, delay = card.release()
    numbers = (
        POLICIES[card.policy.online],
        POLICIES[card.policy.offline],
        release.ns,
        card.slice.ns,
        card.window.ns,
        card.context_switch.ns,
        card.timeslice.ns,
        card.latency.arbiter.ns,
        card.latency.tenant.ns,
        card.queue,
        delay.ns,
        card.share(),
    )
    return " ".join(["card", *map(str, numbers)])


def _load(tenant: TenantTrace) -> tuple[int, int]:
    """Kind of load, and the (mean) time between two requests."""
    if not isinstance(tenant.load, Requests):
        return 0, 0
    if tenant.load.every is not None:
        return 1, tenant.load.every.ns
    assert tenant.load.per_second is not None
    return 2, max(1, round(10**9 / tenant.load.per_second))


def _program_line(program: Program) -> str:
    numbers = [(s.kernels, s.ns, s.copy_ns, s.gap_ns) for s in program.stretches]
    return " ".join(["program", str(len(numbers)), *(str(n) for four in numbers for n in four)])


def _kernels(trace: Trace, tenant: TenantTrace) -> list[int]:
    """The number of lengths and the lengths; or 0 and the number of a program."""
    if tenant.kernel is not None:
        return [len(tenant.kernel), *(kernel.ns for kernel in tenant.kernel)]
    return [0, [program.name for program in trace.programs].index(str(tenant.program))]


def _tenant_line(trace: Trace, item: Placed) -> str:
    t = item.trace
    numbers: list[int] = [
        item.card,
        layout.CLASS_ONLINE if t.job_class == "online" else layout.CLASS_OFFLINE,
        t.share,
        t.start.ns,
        FOREVER if t.stop is None else t.stop.ns,
        *_load(t),
        kernels_per_request(t.load, trace.work(t)),
        t.pause.ns,
        int(t.isolation == "none"),
        {None: 0, "busy": 1, "idle": 2}[t.lies],
        *_kernels(trace, t),
        len(t.halted),
        *(span.ns for pair in t.halted for span in pair),
    ]
    return " ".join(["tenant", *map(str, numbers)])


def program_input(trace: Trace, tenants: list[Placed], columns: int = COLUMNS) -> str:
    """The lines that qgpu-simulate reads (simulator/native/whatif/trace.c)."""
    cards = _all_cards(trace)
    counts = f"{len(cards)} {len(tenants)} {len(trace.programs)}"
    head = f"world {trace.seed} {trace.duration.ns} {columns} {counts}"
    lines = [*map(_card_line, cards), *map(_program_line, trace.programs)]
    return "\n".join([head, *lines, *(_tenant_line(trace, item) for item in tenants), ""])


def _percent(part: int, whole: float) -> float:
    return 100 * part / whole if whole else 0.0


def _windows(raw: dict[str, Any]) -> dict[str, float | None]:
    """Extremes of the sliding windows; None where the tenant was not there for a whole one."""
    result: dict[str, float | None] = {}
    for span, length in (("1s", 10**9), ("10s", 10**10)):
        there = raw["present_ns"] >= length
        for end in ("max", "min"):
            result[f"{end}_{span}_percent"] = (
                _percent(raw[f"{end}_{span}_ns"], length) if there else None
            )
    return result


def _tenant(trace: Trace, item: Placed, raw: dict[str, Any], scale: float) -> TenantResult:
    """`scale` takes out of an error what the whole class lost to drains and context switches."""
    card, t = _all_cards(trace)[item.card], item.trace
    present = raw["present_ns"]
    governed = t.isolation == "governed" and raw["due_ns"] > 0
    column = trace.duration.ns / COLUMNS
    latencies = raw["requests"] > 0
    return TenantResult(
        name=item.name,
        card=trace.card_names()[item.card],
        job_class=t.job_class,
        policy=getattr(card.policy, t.job_class),
        share=t.share,
        present_s=present / 1e9,
        busy_s=raw["busy_ns"] / 1e9,
        due_s=raw["due_ns"] / 1e9,
        waited_share_s=raw["waited_share_ns"] / 1e9,
        waited_preempted_s=raw["waited_preempted_ns"] / 1e9,
        preemptions=raw["preemptions"],
        turns=raw["turns"],
        requests=raw["requests"],
        requests_waiting=raw["waiting_requests"],
        p50_ms=raw["p50_ns"] / 1e6 if latencies else None,
        p99_ms=raw["p99_ns"] / 1e6 if latencies else None,
        got_percent=_percent(raw["busy_ns"], present),
        error_points=_percent(raw["busy_ns"] - raw["due_ns"] * scale, present)
        if governed
        else None,
        profile=tuple(round(busy / column, 4) for busy in raw["bins"]),
        **_windows(raw),
    )


def _scale(trace: Trace, tenants: list[Placed], raw: list[dict[str, Any]], which: Placed) -> float:
    """fixed-share is a part of the wall clock; the others are parts of
    what their class really got.
    """
    if getattr(_all_cards(trace)[which.card].policy, which.trace.job_class) == "fixed-share":
        return 1.0
    mine = [
        values
        for item, values in zip(tenants, raw, strict=True)
        if item.card == which.card
        and item.trace.job_class == which.trace.job_class
        and item.trace.isolation == "governed"
    ]
    due = sum(values["due_ns"] for values in mine)
    return float(sum(values["busy_ns"] for values in mine) / due) if due else 1.0


def _card(name: str, raw: dict[str, Any], duration_ns: int) -> CardResult:
    seconds = duration_ns / 1e9
    return CardResult(
        name=name,
        busy_percent=_percent(raw["busy_ns"], duration_ns),
        switches_per_s=raw["switches"] / seconds,
        switch_lost_percent=_percent(raw["switch_lost_ns"], duration_ns),
        decisions_per_s=raw["decisions"] / seconds,
    )


def find_program() -> Path:
    """qgpu-simulate of the build tree, or the installed one. Raises
    TraceError if neither is there.
    """
    for path in PROGRAMS:
        if os.access(path, os.X_OK):
            return path
    raise TraceError("qgpu-simulate is missing: run make native")


def run_program(
    trace: Trace,
    *words: str,
    columns: int = COLUMNS,
    jobs: int | None = None,
    program: Path | None = None,
) -> dict[str, Any]:
    """What qgpu-simulate says of the trace (simulator/native/whatif/result.c): times in ns, tenants
    in the order of `placed`. Raises TraceError with a sentence where the program refuses.
    """
    threads = str(jobs or min(os.cpu_count() or 1, 64))
    done = subprocess.run(
        [str(program or find_program()), "--jobs", threads, *words],
        input=program_input(trace, placed(trace), columns),
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        raise TraceError(
            done.stderr.strip() or f"qgpu-simulate ended with status {done.returncode}"
        )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def simulate(
    trace: Trace, timeline: Path | None = None, jobs: int | None = None, program: Path | None = None
) -> Result:
    """Run the trace. The same trace gives the same result, however many threads share the cards
    out.

    Raises TraceError with a sentence where the program refuses or cannot write the timeline.
    """
    tenants = placed(trace)
    words = [] if timeline is None else ["--timeline", str(timeline)]
    raw = run_program(trace, *words, jobs=jobs, program=program)
    if timeline is not None:
        _name_timeline(timeline, trace, tenants)
    return Result(
        duration_s=trace.duration.seconds,
        seed=trace.seed,
        cards=tuple(
            _card(name, values, trace.duration.ns)
            for name, values in zip(trace.card_names(), raw["cards"], strict=True)
        ),
        tenants=tuple(
            _tenant(trace, item, values, _scale(trace, tenants, raw["tenants"], item))
            for item, values in zip(tenants, raw["tenants"], strict=True)
        ),
    )


def _name_timeline(path: Path, trace: Trace, tenants: list[Placed]) -> None:
    """Put names in the place of the program's numbers, line by line."""
    cards, part = trace.card_names(), path.with_name(path.name + ".part")
    with path.open() as source, part.open("w") as target:
        target.write(source.readline())
        for line in source:
            t_ns, card, tenant, state = line.rstrip("\n").split(",")
            target.write(f"{t_ns},{cards[int(card)]},{tenants[int(tenant)].name},{state}\n")
    part.replace(path)
