"""Draws a world whose tenants are captured programs (`programs/README.md`): jobs that train, work a
batch off, or answer requests.

The card, the shares, and when tenants come and go are drawn as in draw.py. Programs of the judged
worlds are in no world of the tuning set. As there, nothing here may be changed to improve a figure.
"""

from __future__ import annotations

import functools
from random import Random
from typing import Any

from bench.worlds.draw import SECONDS, card, presence, shares
from bench.worlds.programs import HERE, Captured, read
from simulator.whatif.simprogram import Program, Stretch
from simulator.whatif.simtrace import Trace

MAX_TENANTS = 8
SERVICES = {False: ("infer", "encoder"), True: ("decode", "images")}  # by whether they judge
BATCHES = {
    False: ("train", "jitted", "loader"),
    True: ("amp", "conv", "attention", "signals"),
}


@functools.cache
def captured(name: str) -> Captured:
    """A program of the folder."""
    return read(HERE / f"{name}.json")


@functools.cache
def program(name: str) -> Program:
    """The same as a trace has it."""
    rows = [Stretch(row.kernels, row.ns, row.gap_ns, row.copy_ns) for row in captured(name).rows]
    return Program(name=name, stretches=rows)


def load(dice: Random, name: str, most: float) -> dict[str, Any]:
    """Requests, each of as many kernels as one has in the mean, that ask for a part of the card, at
    most `most` of it. Alone none waits for long: the program itself needs at most 80 % of its time.
    """
    one = captured(name)
    all_ns = one.busy_ns + one.idle_ns  # of all its requests
    part = min(dice.uniform(0.02, most), 0.8 * one.busy_ns / all_ns)
    rate = one.requests * part / (one.busy_ns / 1e9)
    return {"per_second": rate, "kernels": max(1, round(one.kernels / one.requests))}


def tenant(dice: Random, number: int, online: bool, share: int, most: float, judges: bool) -> Any:
    """One job. Online answers requests, or trains; offline does either without end."""
    serves = dice.random() < (0.85 if online else 0.2)
    name = dice.choice((SERVICES if serves else BATCHES)[judges])
    asked = serves and online
    return {
        "name": f"{'online' if online else 'offline'}{number}",
        "class": "online" if online else "offline",
        "share": share,
        "program": name,
        "load": load(dice, name, most) if asked else "endless",
        **presence(dice),
    }


def document(seed: int, judges: bool) -> dict[str, Any]:
    """The world of a seed without its programs, online tenants first."""
    dice = Random(f"qgpu program world {seed}")
    count = dice.choices(range(1, MAX_TENANTS + 1), [4] * 4 + [1] * 4)[0]
    online = min(count, dice.choice([0, 1, 1, 2]))
    parts = shares(dice, count)
    made = [
        tenant(dice, i, i < online, parts[i], 0.8 / max(1, online), judges) for i in range(count)
    ]
    return {"seed": seed, "duration": f"{SECONDS}s", "cards": [card(dice)], "tenants": made}


def world(seed: int, judges: bool) -> Trace:
    """The world of a seed, of the programs that judge or of the others."""
    made = document(seed, judges)
    names = sorted({tenant["program"] for tenant in made["tenants"]})
    return Trace.model_validate(made | {"programs": [program(name) for name in names]})
