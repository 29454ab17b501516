"""What the set consists of: items with an estimate of their time and their needs, and what each
yields.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from bench.gpu.node import Node
from bench.harness.figures import Figure

Yield = Figure | str  # a figure, or a sentence for the record
Body = Callable[[Node], Iterator[Yield]]


@dataclass(frozen=True)
class Item:
    """One question. `seconds` is its approximate time on a card, so that a call can end in time."""

    name: str
    seconds: float
    body: Body
    needs: Sequence[str] = ()


def figure(
    node: Node,
    name: str,
    value: float,
    unit: str = "",
    target: float | None = None,
    sense: Literal["<=", ">="] = "<=",
    runs: int = 1,
    spread: str = "",
    control: bool = False,
) -> Figure:
    """A figure of this node: measured on a card, or labelled simulated."""
    return Figure(
        name,
        value,
        unit,
        target,
        sense,
        runs,
        spread,
        simulated=node.place.simulated,
        control=control,
    )


def spread_of(values: Sequence[float], unit: str = "") -> str:
    """Median and extremes in words."""
    return (
        f"(median {statistics.median(values):.4g}, min {min(values):.4g}, max {max(values):.4g}"
        f" {unit})"
    )
