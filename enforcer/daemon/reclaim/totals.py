"""Sums since the start of qgpud, for the metrics and `qgpu doctor`."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass
class Totals:
    """Bytes, and ns of operations."""

    leaves: int = 0
    returns: int = 0
    unable: int = 0
    moved: int = 0  # to another card
    not_moved: int = 0  # the other card did not take them
    left_bytes: int = 0
    left_ns: int = 0
    returned_bytes: int = 0
    returned_ns: int = 0

    def left(self, size: int, took_ns: int) -> None:
        """A job left."""
        self.leaves += 1
        self.left_bytes += size
        self.left_ns += took_ns

    def returned(self, size: int, took_ns: int) -> None:
        """A job returned."""
        self.returns += 1
        self.returned_bytes += size
        self.returned_ns += took_ns

    def as_dict(self) -> dict[str, int]:
        """By name."""
        return asdict(self)
