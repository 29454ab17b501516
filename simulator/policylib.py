"""The arbiter's decision (policy.h) as a library: its structures mirrored once, for tests and experiments.

The C code is the truth; tests/unit/simulator/test_policylib.py compares every offset and constant with the header.
"""

from __future__ import annotations

import ctypes
from ctypes import c_int32, c_int64, c_uint32, c_uint64
from pathlib import Path
from typing import Any, ClassVar

LIBRARY = Path(__file__).resolve().parents[1] / "build/test/libqgpu_policy.so"

MAX_TENANTS = 256
NEVER = 2**64 - 1
MS = 1_000_000
TICK_NS = 1 * MS
SOLO_TICK_NS = 5 * MS
FINE_NS = 100_000
FINE_PARTS = 8
UNSEEN_NS = 100 * MS
NOTIFY_NS = 2 * MS
PASS_ON_NS = 1 * MS
PAUSE_NS = 400_000
LATE_PAUSE_NS = 500_000
CLOSE_LOOK_NS = 300_000
REST_NS = 100_000
RESTING = 3
LATE = 4
SOON_NS = 1_200_000
WARY_NS = 1000 * MS
PAUSES_NS = 1000 * MS
START_NS = 1 * MS
DRAIN_POLL_NS = 50_000
DRAIN_MAX_NS = 100 * MS
DRAIN_LEAST_NS = 25 * MS
DRAIN_TAILS = 8
LIMITED_LOOKS = 16
TOLD_LOOK_NS = 500_000
OVERDUE_MAX = 6
KEEP_NS = 5 * MS
DEFICIT_MAX_NS = 1000 * MS
BUDGET_MAX_NS = 50 * MS
MARGIN_NS = 2 * MS
OVERSTAY_NS = MS // 4
LATE_NS = MS // 2
LONG_TURN = 10
CROWD_TURN = 7
PORTION = 3
LONE_WINDOW_US = 20_000
SHARED_WINDOW_US = 4_000
FIXED_WINDOW_US = 2_000
FIXED_MOST_US = 5_000
HOLD_NS = 1 * MS
DEEP_TAIL_NS = 3 * MS
DEEP_WINDOW_US = 24_000
DEEP_ROOM_NS = 14 * MS
LEAD_NS = 150_000
OVERLAP_NS = 1_500_000
LATE_LOOK_NS = 200_000
UNEVEN = 16
UNEVEN_LOOKS = 8
MISS = 64
MISSES_MAX = 4 * MISS
BINS = 256


def _fields(kind: type, names: str) -> list[tuple[str, type]]:
    return [(name, kind) for name in names.split()]


class QpTenant(ctypes.Structure):
    """struct qp_tenant."""

    _fields_: ClassVar[Any] = [
        *_fields(
            c_uint32, "live job_class share procs wants undrained granted free suspended hung stands unsure"
        ),
        *_fields(c_uint64, "ends_ns used_from_ns ended_ns silent_ns"),
        *_fields(
            c_uint32,
            "gate worked flew was_busy wished wanted budgeted greedy drains heavy roomy resting away spent"
            " uneven misses",
        ),
        *_fields(c_int64, "deficit_ns budget_ns"),
        *_fields(
            c_uint64,
            "last_work_ns idle_since_ns rests_ns busy_since_ns paused_ns service_ns used_ns unseen_ns drain_ns early_ns"
            " tail_ns longest_ns overdue cut_off_ns until_ns",
        ),
    ]


class QpClass(ctypes.Structure):
    """struct qp_class."""

    _fields_: ClassVar[Any] = [
        *_fields(c_uint32, "policy sliced"),
        *_fields(c_int32, "holder draining"),
        *_fields(c_uint32, "contended resumed looked wary stayed bare early rivals"),
        *_fields(c_int64, "weights"),
        *_fields(
            c_uint64,
            "slice_end_ns turn_end_ns opened_ns use_ns booked_ns foreseen_ns drain_from_ns drain_until_ns cut_off_ns",
        ),
    ]


class QpWindow(ctypes.Structure):
    """struct qp_window."""

    _fields_: ClassVar[Any] = [*_fields(c_uint64, "bin sum"), ("used", c_uint32 * BINS)]


class QpHistory(ctypes.Structure):
    """struct qp_history."""

    _fields_: ClassVar[Any] = _fields(QpWindow, "one ten")


class QpCard(ctypes.Structure):
    """struct qp_card."""

    _fields_: ClassVar[Any] = [
        *_fields(c_uint64, "idle_release_ns slice_ns recovery_until_ns"),
        *_fields(c_uint32, "ungoverned ntenants"),
        *_fields(c_uint64, "last_ns preempt_from_ns online_busy_ns"),
        ("cls", QpClass * 2),
        *_fields(c_uint64, "wake_ns due_ns soft_ns"),
        *_fields(c_uint32, "preempting online_working awaits_online"),
        *_fields(c_int32, "last_user"),
        *_fields(c_uint32, "again padding"),
        ("tenant", QpTenant * MAX_TENANTS),
        ("history", QpHistory * MAX_TENANTS),
    ]


STRUCTS: dict[str, type[ctypes.Structure]] = {
    "qp_tenant": QpTenant,
    "qp_class": QpClass,
    "qp_window": QpWindow,
    "qp_history": QpHistory,
    "qp_card": QpCard,
}


class Policy:
    """One card's decision: fill in `card`, call decide(), read the gates and `card.wake_ns`."""

    def __init__(self, library: Path = LIBRARY) -> None:
        if not library.exists():
            raise FileNotFoundError(f"{library} is missing: run make native")
        self._lib = ctypes.CDLL(str(library))
        self.card = QpCard()
        self._lib.qp_init(ctypes.byref(self.card))

    def decide(self, now_ns: int) -> None:
        """A decision at a time that does not go backwards; where it asks for a look, that finds nothing new."""
        self.decide_once(now_ns)
        if self.card.again:
            self.card.again = 0
            self.decide_once(now_ns)

    def decide_once(self, now_ns: int) -> None:
        """The same up to the look that `card.again` may ask for."""
        self._lib.qp_decide(ctypes.byref(self.card), c_uint64(now_ns))

    def forget(self, index: int) -> None:
        """Give an entry back, before another tenant gets it."""
        self._lib.qp_forget(ctypes.byref(self.card), c_uint32(index))
