"""One figure, how it is judged, and how it is printed."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal


class NotRun(Exception):
    """What a scenario needs is not on this machine; the text says what."""


def doubt_of(ratios: Sequence[float]) -> float:
    """The standard error of the median, estimated by the median of deviations (normal errors)."""
    middle = statistics.median(ratios)
    spread = 1.4826 * statistics.median(abs(ratio - middle) for ratio in ratios)
    return math.sqrt(math.pi / 2) * spread / math.sqrt(len(ratios))


@dataclass(frozen=True)
class Figure:
    """A measured value with its target; None: reported, without a promise.

    `sense` is the good side of the target, `at_most` the end of good values on the other side. A
    control is measured with the mechanism off and must miss its target. A `proof` is a known value,
    and must be met. Both show that the bench can tell the difference. `spread` is the figure's
    values over the runs; `detail` goes into the record only.
    """

    name: str
    value: float
    unit: str
    target: float | None
    sense: Literal["<=", ">="]
    runs: int
    spread: str = ""
    simulated: bool = True
    control: bool = False
    detail: Mapping[str, float] = field(default_factory=dict)
    at_most: float | None = None  # beside a target >=
    proof: bool = False

    @property
    def met(self) -> bool:
        """Whether the value is on the good side of the target."""
        if self.target is None:
            return True
        if self.at_most is not None and self.value > self.at_most:
            return False
        return self.value <= self.target if self.sense == "<=" else self.value >= self.target

    @property
    def verdict(self) -> str:
        """ok or short; for a control: short as it must be, or a warning that the bench is blind."""
        if self.target is None:
            return "reported"
        if self.control:
            return "BLIND (must be short)" if self.met else "short, as a control must be"
        if self.proof and not self.met:
            return "BLIND (must be met)"
        return "ok" if self.met else "short"

    def line(self) -> str:
        """The figure as one line of text."""
        kind = "simulated" if self.simulated else "measured"
        spread = f"  {self.spread}" if self.spread else ""
        target = "no target" if self.target is None else f"target {self.sense} {self.target:g}"
        if self.at_most is not None:
            target = f"target {self.target:g} to {self.at_most:g}"
        return (
            f"{self.name:<42} {self.value:>12.3f} {self.unit:<6} {target:<18} "
            f"{self.verdict:<28} runs={self.runs} {kind}{spread}"
        )

    def record(self) -> dict[str, Any]:
        """The figure for build/bench.json."""
        return asdict(self) | {"verdict": self.verdict}
