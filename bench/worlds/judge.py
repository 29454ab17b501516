"""What a world's tenants got, against two ideals, each of which is right for some programs.

*Due*: the tenant's part of each moment in which it wanted the card. That is time, with the pauses
of the tenant in it. So it is compared with the time that the tenant *held*: its work, and its
pauses while no peer could use the card. What a tenant pauses in its own time is no loss of others.
*Fluid*: what it gets on a card that divides itself at any instant
(simulator/native/whatif/fluid.c), compared with its work. Wrong for a program that has a queue: it
may have one here and none there. So what only one of the two calls an error is none, in each
window.

All errors are in points of the card's time over a window. No scheduler can stop a kernel that runs,
so one kernel, the longest of the card, is taken off each error.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from gres.config.schema import JobClass
from simulator.whatif.simtrace import TenantTrace, Trace

BIN_NS = 10**9  # of the profiles that are judged
TEN = 10  # bins of the longer window
LEAST_ALLOWED = 0.05  # of the time: where offline may have less, a ratio of it says little
LEAST_REQUESTS = 30  # below, p99 is one request
SHORT_NS = 500_000  # offline's kernels where the time until the card is free is judged
Raw = dict[str, Any]  # what qgpu-simulate says (simulator/native/whatif/result.c)


@dataclass(frozen=True)
class Judged:
    """The figures of one world; None where it has nothing of the kind.

    `share_10s` and `share_1s` are the largest error of any tenant, in points; `fixed_10s` of those
    under fixed-share. `above_n` is how far one of these got above N % and a kernel in a second, in
    points. `freed_p99_us` is from online's launch to offline's last end, where kernels are short.
    `p99_ratio` is the worst p99 of online's requests over that without offline. `harvest` is
    offline's work over that on the fluid card.
    """

    share_10s: float | None = None
    share_1s: float | None = None
    fixed_10s: float | None = None
    above_n: float | None = None
    freed_p99_us: float | None = None
    p99_ratio: float | None = None
    harvest: float | None = None


@dataclass(frozen=True)
class Got:
    """One tenant: of each bin its work, the time it held, its due time and the fluid card's, in ns;
    and whether it is there from the beginning to the end.
    """

    tenant: TenantTrace
    fixed: bool
    busy: Sequence[float]
    held: Sequence[float]
    due: Sequence[float]
    fluid: Sequence[float]
    present: Sequence[bool]


def longest(trace: Trace, tenants: Sequence[TenantTrace]) -> int:
    """The longest kernel of these tenants, in ns."""
    return max((part.ns for tenant in tenants for part in trace.work(tenant)), default=0)


def of_class(trace: Trace, job_class: JobClass) -> list[TenantTrace]:
    """The tenants of a class."""
    return [tenant for tenant in trace.tenants if tenant.job_class == job_class]


def offline_is_judged(trace: Trace) -> bool:
    """Not beside fixed-share of online: while online is runnable and out of budget, no policy says
    whether offline may run. So there is no ideal to compare with.
    """
    return trace.cards[0].policy.online != "fixed-share" or not of_class(trace, "online")


def present(tenant: TenantTrace, bins: int) -> list[bool]:
    """In which bins the tenant is there from the beginning to the end."""
    stop = math.inf if tenant.stop is None else tenant.stop.ns
    return [tenant.start.ns <= i * BIN_NS and (i + 1) * BIN_NS <= stop for i in range(bins)]


def held(values: Raw, fixed: bool) -> list[float]:
    """The time of each bin that counts as had of what was due. fixed-share promises N % of work: a
    pause there is an error.
    """
    pairs = zip(values["bins"], values["paused_bins"], strict=True)
    return [busy + (0 if fixed else paused) for busy, paused in pairs]


def got(trace: Trace, raw: Raw, fluid: Raw) -> list[Got]:
    """The tenants of a world of one card that can be judged: who lies is not."""
    policy = trace.cards[0].policy
    return [
        Got(
            tenant,
            fixed := getattr(policy, tenant.job_class) == "fixed-share",
            mine["bins"],
            held(mine, fixed),
            mine["due_bins"],
            ideal["bins"],
            present(tenant, len(mine["bins"])),
        )
        for tenant, mine, ideal in zip(trace.tenants, raw["tenants"], fluid["tenants"], strict=True)
        if tenant.lies is None and (tenant.job_class == "online" or offline_is_judged(trace))
    ]


def windows(values: Sequence[float], length: int) -> list[float]:
    """The sums of all windows of that many bins."""
    return [sum(values[i : i + length]) for i in range(len(values) - length + 1)]


def scaled(ideal: Sequence[float], of_all: Sequence[float], had: Sequence[float]) -> list[float]:
    """An ideal of windows, less what the whole class lost in them, to drains and context
    switches.
    """
    return [
        part * (all_had / should if should > 0 else 1.0)
        for part, should, all_had in zip(ideal, of_all, had, strict=True)
    ]


def together(peers: Sequence[Got], field: str, bins: int) -> list[float]:
    """What all of them have in each window, in sum."""
    each = (windows(getattr(peer, field), bins) for peer in peers)
    return [sum(values) for values in zip(*each, strict=True)]


def beyond(mine: Got, peers: Sequence[Got], bins: int, ideal: str, had: str) -> list[float]:
    """By how much it had more than an ideal in each window. Except under fixed-share a loss of the
    class is no error.
    """
    part = windows(getattr(mine, ideal), bins)
    if not mine.fixed:
        part = scaled(part, together(peers, ideal, bins), together(peers, had, bins))
    return [a - b for a, b in zip(windows(getattr(mine, had), bins), part, strict=True)]


def errors(mine: Got, peers: Sequence[Got], bins: int, kernel_ns: int) -> Iterator[float]:
    """The errors of one tenant in all windows for which it was there, in points."""
    there = windows([float(p) for p in mine.present], bins)
    by_due = beyond(mine, peers, bins, "due", "held")
    by_fluid = beyond(mine, peers, bins, "fluid", "busy")
    for here, *both in zip(there, by_due, by_fluid, strict=True):
        error = max(min(both), -max(both)) - kernel_ns
        if here == bins:
            yield 100 * max(0.0, error) / (bins * BIN_NS)


def worst_error(found: Sequence[Got], fixed: bool, bins: int, kernel_ns: int) -> float | None:
    """The largest error of any tenant of fixed-share, or of any other."""
    return max(
        (
            error
            for mine in found
            if mine.fixed == fixed
            for error in errors(
                mine,
                [p for p in found if p.tenant.job_class == mine.tenant.job_class],
                bins,
                kernel_ns,
            )
        ),
        default=None,
    )


def above_n(trace: Trace, raw: Raw) -> float | None:
    """fixed-share: the most that a tenant had above N % and one of its own kernels in a second."""
    policy = trace.cards[0].policy
    return max(
        (
            100 * (values["max_1s_ns"] - longest(trace, [tenant])) / BIN_NS - tenant.share
            for tenant, values in zip(trace.tenants, raw["tenants"], strict=True)
            if getattr(policy, tenant.job_class) == "fixed-share"
        ),
        default=None,
    )


def percentile(values: Sequence[float], percent: float) -> float:
    """The nearest rank."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


def p99_ratio(raw: Raw, alone: Raw) -> float | None:
    """The worst p99 of a tenant of online over its p99 without offline."""
    return max(
        (
            percentile(late["latencies_ns"], 99) / percentile(usual["latencies_ns"], 99)
            for late, usual in zip(raw["tenants"], alone["tenants"], strict=False)
            if min(len(late["latencies_ns"]), len(usual["latencies_ns"])) >= LEAST_REQUESTS
        ),
        default=None,
    )


def offline_busy(trace: Trace, raw: Raw) -> float:
    """Work of all offline tenants, in ns."""
    return float(
        sum(
            values["busy_ns"]
            for tenant, values in zip(trace.tenants, raw["tenants"], strict=True)
            if tenant.job_class == "offline"
        )
    )


def harvest(trace: Trace, raw: Raw, fluid: Raw) -> float | None:
    """Offline's work over that on the fluid card. A liar may cost the others their turns."""
    allowed = offline_busy(trace, fluid)
    judged = offline_is_judged(trace) and not any(t.lies for t in trace.tenants)
    if not judged or allowed < LEAST_ALLOWED * trace.duration.ns:
        return None
    return offline_busy(trace, raw) / allowed


def judge(trace: Trace, raw: Raw, fluid: Raw, alone: Raw | None) -> Judged:
    """The figures of a world: as it is, on the fluid card, and for its online tenants alone (None
    if it has none).
    """
    found, kernel = got(trace, raw, fluid), longest(trace, trace.tenants)
    offline, card = of_class(trace, "offline"), raw["cards"][0]
    freed = card["freed"] > 0 and longest(trace, offline) <= SHORT_NS
    return Judged(
        share_10s=worst_error(found, False, TEN, kernel),
        share_1s=worst_error(found, False, 1, kernel),
        fixed_10s=worst_error(found, True, TEN, kernel),
        above_n=above_n(trace, raw),
        freed_p99_us=card["freed_p99_ns"] / 1000 if freed else None,
        p99_ratio=p99_ratio(raw, alone) if offline and alone is not None else None,
        harvest=harvest(trace, raw, fluid),
    )
