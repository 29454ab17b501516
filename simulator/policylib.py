"""The arbiter's decision (policy.h) as a library, for tests and experiments.

Its structures and constants are in simulator/policy_layout.py, which is generated from the header.
"""

from __future__ import annotations

import ctypes
from ctypes import c_uint32, c_uint64
from pathlib import Path

from simulator.policy_layout import QpCard

LIBRARY = Path(__file__).resolve().parents[1] / "build/test/libqgpu_policy.so"


class Policy:
    """One card's decision: fill in `card`, call decide(), read the gates and `card.wake_ns`."""

    def __init__(self, library: Path = LIBRARY) -> None:
        if not library.exists():
            raise FileNotFoundError(f"{library} is missing: run make native")
        self._lib = ctypes.CDLL(str(library))
        self.card = QpCard()
        self._lib.qp_init(ctypes.byref(self.card))

    def decide(self, now_ns: int) -> None:
        """A decision at a time that never decreases; a requested sample finds no change."""
        self.decide_once(now_ns)
        if self.card.resample:
            self.card.resample = 0
            self.decide_once(now_ns)

    def decide_once(self, now_ns: int) -> None:
        """The same up to the sample that `card.resample` may request."""
        self._lib.qp_decide(ctypes.byref(self.card), c_uint64(now_ns))

    def forget(self, index: int) -> None:
        """Give an entry back, before another tenant gets it."""
        self._lib.qp_forget(ctypes.byref(self.card), c_uint32(index))
