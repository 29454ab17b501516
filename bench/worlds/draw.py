"""Draws a world: one card with tenants, everything about them from a seed.

A world is a trace of `qgpu simulate`. What is common on clusters is common here: default settings,
the default policy, kernels of some 100 us. The rest is drawn from wide ranges, on a logarithmic
scale. Nothing in this file may be changed to improve a figure: then all earlier figures are void.
"""

from __future__ import annotations

import math
from random import Random
from typing import Any

from simulator.whatif.simtrace import Trace

SECONDS = 20  # of a world; what comes or goes does so in the middle half
MAX_TENANTS = 16
# Kernels of a world, in us: short, usual, of any length.
KERNEL_US = ((5.0, 500.0), (50.0, 5000.0), (5.0, 300_000.0))
POLICIES = ("burst-share", "best-effort", "fixed-share")


def logarithmic(dice: Random, low: float, high: float) -> float:
    """A value between the two whose logarithm is equally likely everywhere."""
    return math.exp(dice.uniform(math.log(low), math.log(high)))


def us(value: float) -> str:
    """A duration of whole nanoseconds, as traces write it."""
    return f"{max(1, round(value * 1000))}ns"


def or_default(dice: Random, default: str, low: float, high: float) -> str:
    """A setting in us: mostly its default."""
    return default if dice.random() < 0.7 else us(logarithmic(dice, low, high))


def card(dice: Random) -> dict[str, Any]:
    """The settings of the card, its costs, and how late threads wake up."""
    policy = [dice.choices(POLICIES, (2, 1, 1))[0] for _ in range(2)]
    return {
        "policy": dict(zip(("online", "offline"), policy, strict=True)),
        "idle_release": or_default(dice, "100ms", 10_000, 500_000),
        "slice": or_default(dice, "2ms", 500, 10_000),
        "window": or_default(dice, "275us", 100, 2000),
        "context_switch": us(logarithmic(dice, 20, 300)),
        "timeslice": us(logarithmic(dice, 500, 3000)),
        "latency": {
            "arbiter": us(logarithmic(dice, 10, 300)),
            "tenant": us(logarithmic(dice, 10, 300)),
        },
    }


def shares(dice: Random, count: int) -> list[int]:
    """Parts of one card: their sum is at most 100, as Slurm holds it."""
    cuts = sorted(dice.sample(range(1, 101), count))
    return [b - a for a, b in zip([0, *cuts], cuts, strict=False)]


def kernels(dice: Random, span: tuple[float, float]) -> list[float]:
    """Lengths in us: one, or a mixture."""
    count = 1 if dice.random() < 0.5 else dice.randint(2, 6)
    return [logarithmic(dice, *span) for _ in range(count)]


def load(dice: Random, lengths: list[float], most: float) -> str | dict[str, Any]:
    """Requests that ask for a part of the card, at most `most` of it, at random or in a rhythm."""
    mean_us = sum(lengths) / len(lengths)
    busy_us = max(mean_us, logarithmic(dice, 300, 100_000))
    period_us = busy_us / dice.uniform(0.02, most)
    when: dict[str, Any] = (
        {"per_second": 1e6 / period_us} if dice.random() < 0.7 else {"every": us(period_us)}
    )
    return when | {"kernels": max(1, round(busy_us / mean_us))}


def presence(dice: Random) -> dict[str, Any]:
    """A third comes late, goes early, or is stopped for moments as by a debugger or a slow disk."""
    kind, at = dice.random(), [dice.uniform(0.25, 0.75) * SECONDS * 1e6 for _ in range(2)]
    if kind < 0.12:
        return {"start": us(at[0])}
    if kind < 0.24:
        return {"stop": us(at[0])}
    if kind < 0.36:
        return {"halted": stalls(dice)}
    return {}


def stalls(dice: Random) -> list[list[str]]:
    """Up to 16 stalls of 1 ms to 1 s."""
    found: list[list[str]] = []
    now = 0.0
    for _ in range(dice.randint(1, 16)):
        begin = now + dice.uniform(0.01, 0.1) * SECONDS * 1e6
        now = begin + logarithmic(dice, 1000, 1_000_000)
        found.append([us(begin), us(now)])
    return found


def tenant(
    dice: Random, number: int, online: bool, share: int, span: tuple[float, float], most: float
) -> dict[str, Any]:
    """One job. `most` is the part of the card that its requests may ask for."""
    lengths = kernels(dice, span)
    endless = dice.random() < (0.15 if online else 0.7)
    return {
        "name": f"{'online' if online else 'offline'}{number}",
        "class": "online" if online else "offline",
        "share": share,
        "processes": dice.randint(2, 4) if dice.random() < 0.15 else 1,
        "kernel": [us(length) for length in lengths],
        "load": "endless" if endless else load(dice, lengths, most),
        "pause": us(logarithmic(dice, 5, 5000)) if dice.random() < 0.25 else "0s",
        **presence(dice),
    }


def document(seed: int) -> dict[str, Any]:
    """The world of a seed as a trace file has it, online tenants first."""
    dice = Random(f"qgpu world {seed}")
    count = dice.choices(range(1, MAX_TENANTS + 1), [4] * 4 + [2] * 4 + [1] * 8)[0]
    online = dice.choice([0, 1, 1, 2, count // 2])
    online = min(online, count)
    parts, span = shares(dice, count), dice.choice(KERNEL_US)
    made = [
        tenant(dice, i, i < online, parts[i], span, 0.8 / max(1, online if i < online else 2))
        for i in range(count)
    ]
    if dice.random() < 0.1:
        made[-1]["lies"] = dice.choice(["busy", "idle"])
    return {"seed": seed, "duration": f"{SECONDS}s", "cards": [card(dice)], "tenants": made}


def world(seed: int) -> Trace:
    """The world of a seed."""
    return Trace.model_validate(document(seed))


def without_offline(trace: Trace) -> Trace:
    """The same world for its online tenants alone: their requests and kernels are the same."""
    online = [tenant for tenant in trace.tenants if tenant.job_class == "online"]
    return trace.model_copy(update={"tenants": online})
