"""Programs of real frameworks as they were captured (README.md): the data of the worlds that
replay them, read and written.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent


class Row(NamedTuple):
    """Kernels that follow each other, the length of each, and what comes then."""

    kernels: int
    ns: int
    gap_ns: int
    copy_ns: int


@dataclass(frozen=True)
class Captured:
    """A program: where and when it was captured, how many requests its rows are (0: it has none),
    and the rows.
    """

    name: str
    environment: str
    captured: str
    requests: int
    rows: Sequence[Row]

    @property
    def kernels(self) -> int:
        """Of all rows."""
        return sum(row.kernels for row in self.rows)

    @property
    def busy_ns(self) -> int:
        """Of the card, one time through."""
        return sum(row.kernels * row.ns for row in self.rows)

    @property
    def idle_ns(self) -> int:
        """Copies and time on the CPU."""
        return sum(row.gap_ns + row.copy_ns for row in self.rows)

    def described(self) -> str:
        """One line for a person."""
        longest = max(row.ns for row in self.rows) / 1000
        return (
            f"{self.name}: {len(self.rows)} rows, {self.kernels} kernels up to {longest:.0f} us,"
            f" {self.busy_ns / 1e6:.2f} ms of the card in"
            f" {(self.busy_ns + self.idle_ns) / 1e6:.2f} ms"
        )

    def write(self, path: Path) -> None:
        """As a small JSON file: rows are [kernels, ns, gap ns, copy ns]."""
        head = {
            "environment": self.environment,
            "captured": self.captured,
            "requests": self.requests,
        }
        text = json.dumps(head | {"rows": [list(row) for row in self.rows]}, separators=(",", ":"))
        path.write_text(text.replace("],[", "],\n[") + "\n", encoding="utf-8")


def read(path: Path) -> Captured:
    """A file of this folder."""
    data = json.loads(path.read_text(encoding="utf-8"))
    rows = [Row(*row) for row in data["rows"]]
    return Captured(path.stem, data["environment"], data["captured"], data["requests"], rows)
