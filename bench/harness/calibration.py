"""The machine's own units, in which absolute figures are judged.

The same code takes twice the nanoseconds on a machine that is twice as slow, and so does a unit
that is measured at the same time. A target is an absolute value on the reference machine, divided
by what the unit takes there.
"""

from __future__ import annotations

import json
import statistics
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from bench.harness.figures import Figure
from bench.harness.node import BUILD

PROGRAM = BUILD / "test/calibrate"
ENDS_S = 60.0  # it finishes its first sample


@dataclass(frozen=True)
class Unit:
    """Something that a machine does, and what it takes on the reference machine
    (docs/measurements/README.md).
    """

    name: str
    key: str  # of what `calibrate` prints
    word: str  # of a figure that counts them
    reference_ns: float


CALL = Unit("a PLT call with an atomic add", "call_ns", "calls", 2.43)
WAKE_UP = Unit("a timer wake-up", "wake_ns", "wakes/s", 10_000.0)


@dataclass(frozen=True)
class Sample:
    """One run: what was measured, and what the unit took meanwhile; both in ns."""

    ns: float
    unit_ns: float

    @property
    def units(self) -> float:
        """The ratio of the two."""
        return self.ns / self.unit_ns


@dataclass
class Calibration:
    """What `calibrate` said in the end: each unit's median and half its interquartile range."""

    told: dict[str, Any] = field(default_factory=dict)

    def ns(self, unit: Unit) -> float:
        """What the unit took."""
        return float(self.told[unit.key])

    def words(self) -> str:
        """Both units as text."""
        return ", ".join(
            f"{unit.name} {self.ns(unit) / scale:.2f} +-"
            f"{self.told[f'{unit.key}_spread'] / scale:.2f} {word}"
            for unit, scale, word in ((CALL, 1, "ns"), (WAKE_UP, 1000, "us of CPU"))
        )


@contextmanager
def calibrated() -> Iterator[Calibration]:
    """Measure the units meanwhile; they are told at the end. A thousand wake-ups a second are some
    1 or 2 % of a core.
    """
    found = Calibration()
    with subprocess.Popen([PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            yield found
        finally:
            try:
                out, _ = process.communicate(timeout=ENDS_S)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
    found.told = json.loads(out)


@dataclass(frozen=True)
class Absolute:
    """How the absolute value is printed: nanoseconds times `scale` are so many of `word`."""

    word: str = "ns"
    scale: float = 1.0


NANOSECONDS, PERCENT = Absolute(), Absolute("%", 1e-7)  # of a second; percent of a core


def in_units(
    name: str,
    samples: Sequence[Sample],
    unit: Unit,
    target_ns: float | None,
    note: str,
    absolute: Absolute = NANOSECONDS,
    detail: Mapping[str, float] | None = None,
    *,
    simulated: bool = False,
) -> Figure:
    """The median of the runs in units of this machine; the target is `target_ns` on the reference
    machine. Beside it stand the absolute values here and there, and what the unit took.
    """
    value = statistics.median(sample.units for sample in samples)
    here = [sample.ns * absolute.scale for sample in samples]
    units = [sample.unit_ns for sample in samples]
    there = value * unit.reference_ns * absolute.scale
    spread = (
        f"(on the reference machine {there:.1f} {absolute.word}; here"
        f" {statistics.median(here):.1f}, {min(here):.1f} to {max(here):.1f}; {unit.name}:"
        f" {statistics.median(units):.5g} ns, {min(units):.5g} to {max(units):.5g}; {note})"
    )
    told = {
        f"reference_{absolute.word}": there,
        f"here_{absolute.word}": statistics.median(here),
        "unit_ns": statistics.median(units),
    }
    return Figure(
        name,
        value,
        unit.word,
        None if target_ns is None else target_ns / unit.reference_ns,
        "<=",
        len(samples),
        spread,
        simulated=simulated,
        detail=told | dict(detail or {}),
    )
