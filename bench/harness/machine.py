"""The machine that is measured on: how late its threads wake, what the host takes from it, and how
to keep it awake.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import psutil

from bench.harness.calibration import Calibration, calibrated
from bench.harness.node import BUILD

T = TypeVar("T")
CALM_PERCENT = 1.0
TRIES = 2
CALIBRATED_S = 1.0


@dataclass(frozen=True)
class CpuTime:
    """Seconds of all processors since the start: in all, and those in which the host ran something
    else.
    """

    total: float
    stolen: float

    @classmethod
    def now(cls) -> CpuTime:
        """Of this machine. Guests of its own are counted in user and nice already."""
        times = psutil.cpu_times()
        return cls(sum(times) - times.guest - times.guest_nice, times.steal)

    def stolen_percent(self, later: CpuTime) -> float:
        """Percent of the time of all processors from here to there that the host gave to others."""
        passed = later.total - self.total
        return 100.0 * (later.stolen - self.stolen) / passed if passed > 0 else 0.0


def calmest(measure: Callable[[], T], read: Callable[[], CpuTime] = CpuTime.now) -> T:
    """The result of `measure`, repeated if the host took more than CALM_PERCENT meanwhile.

    Of several runs the one with the least taken counts, whatever it measured.
    """
    best: tuple[float, T] | None = None
    for _ in range(TRIES):
        before = read()
        found = measure()
        stolen = before.stolen_percent(read())
        if best is None or stolen < best[0]:
            best = (stolen, found)
        if stolen <= CALM_PERCENT:
            break
    assert best is not None
    return best[1]


@contextmanager
def kept_awake() -> Iterator[None]:
    """Keep processors awake meanwhile: a SCHED_IDLE thread on each takes unused time
    (noise/keep_awake.c).
    """
    with subprocess.Popen([BUILD / "test/keep-awake"], stdin=subprocess.PIPE) as keeper:
        try:
            yield
        finally:
            assert keeper.stdin
            keeper.stdin.close()
            keeper.wait(10)


def noise() -> dict[str, Any]:
    """How late an idle ordinary and an idle real-time thread wake on this machine now, kept awake,
    in us; and what its units take.
    """
    with kept_awake():
        out = subprocess.run(
            [BUILD / "test/wake-noise", "1000"], check=True, capture_output=True, text=True
        )
        with calibrated() as units:
            time.sleep(CALIBRATED_S)
    found: dict[str, Any] = json.loads(out.stdout)
    return found | units.told


def describe(found: dict[str, Any]) -> str:
    """The noise as one line."""
    return (
        f"machine: {os.cpu_count()} cores, kernel {platform.release()}, wake-up p99 "
        f"{found['ordinary_p99_us']:.0f} us ordinary, {found['realtime_p99_us']:.0f} us real-time "
        f"({found['realtime_policy']}), {Calibration(found).words()}"
    )
