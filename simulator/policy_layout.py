"""Constants and structures of enforcer/native/arbiter/policy/policy.h.

Generated from it by `make layouts`: edit the header, not this file. Its comments explain each field.
"""

from __future__ import annotations

import ctypes
from ctypes import c_int32, c_int64, c_uint32, c_uint64
from typing import Any, ClassVar

MAX_TENANTS = 256
NEVER = 18_446_744_073_709_551_615
MS = 1_000_000
TICK_NS = 1_000_000
SOLO_TICK_NS = 5_000_000
FINE_NS = 100_000
FINE_PARTS = 8
UNSEEN_NS = 100_000_000
NOTIFY_NS = 2_000_000
PASS_ON_NS = 1_000_000
PAUSE_NS = 400_000
LATE_PAUSE_NS = 500_000
CLOSE_LOOK_NS = 300_000
REST_NS = 100_000
RESTING = 3
LATE = 4
SOON_NS = 1_200_000
WARY_NS = 1_000_000_000
PAUSES_NS = 1_000_000_000
START_NS = 1_000_000
DRAIN_POLL_NS = 50000
DRAIN_MAX_NS = 100_000_000
DRAIN_LEAST_NS = 25_000_000
DRAIN_TAILS = 8
UNEVEN = 16
UNEVEN_LOOKS = 8
LIMITED_LOOKS = 16
TOLD_LOOK_NS = 500_000
OVERDUE_MAX = 6
KEEP_NS = 5_000_000
DEFICIT_MAX_NS = 1_000_000_000
BUDGET_MAX_NS = 50_000_000
MARGIN_NS = 2_000_000
OVERSTAY_NS = 250_000
LATE_NS = 500_000
LONG_TURN = 10
CROWD_TURN = 7
PORTION = 3
LONE_WINDOW_US = 20000
SHARED_WINDOW_US = 4000
FIXED_WINDOW_US = 2000
FIXED_MOST_US = 5000
HOLD_NS = 1_000_000
DEEP_TAIL_NS = 3_000_000
DEEP_WINDOW_US = 24000
DEEP_ROOM_NS = 14_000_000
LEAD_NS = 150_000
OVERLAP_NS = 1_500_000
LATE_LOOK_NS = 200_000
MISS = 64
MISSES_MAX = 256
BINS = 256


class QpTenant(ctypes.Structure):
    """struct qp_tenant."""

    _fields_: ClassVar[Any] = [
        ("live", c_uint32),
        ("job_class", c_uint32),
        ("share", c_uint32),
        ("procs", c_uint32),
        ("wants", c_uint32),
        ("undrained", c_uint32),
        ("granted", c_uint32),
        ("free", c_uint32),
        ("suspended", c_uint32),
        ("hung", c_uint32),
        ("stands", c_uint32),
        ("unsure", c_uint32),
        ("ends_ns", c_uint64),
        ("used_from_ns", c_uint64),
        ("ended_ns", c_uint64),
        ("silent_ns", c_uint64),
        ("gate", c_uint32),
        ("worked", c_uint32),
        ("flew", c_uint32),
        ("was_busy", c_uint32),
        ("wished", c_uint32),
        ("wanted", c_uint32),
        ("budgeted", c_uint32),
        ("greedy", c_uint32),
        ("drains", c_uint32),
        ("heavy", c_uint32),
        ("roomy", c_uint32),
        ("resting", c_uint32),
        ("away", c_uint32),
        ("spent", c_uint32),
        ("uneven", c_uint32),
        ("misses", c_uint32),
        ("deficit_ns", c_int64),
        ("budget_ns", c_int64),
        ("last_work_ns", c_uint64),
        ("idle_since_ns", c_uint64),
        ("rests_ns", c_uint64),
        ("busy_since_ns", c_uint64),
        ("paused_ns", c_uint64),
        ("service_ns", c_uint64),
        ("used_ns", c_uint64),
        ("unseen_ns", c_uint64),
        ("drain_ns", c_uint64),
        ("early_ns", c_uint64),
        ("tail_ns", c_uint64),
        ("longest_ns", c_uint64),
        ("overdue", c_uint64),
        ("cut_off_ns", c_uint64),
        ("until_ns", c_uint64),
    ]


class QpClass(ctypes.Structure):
    """struct qp_class."""

    _fields_: ClassVar[Any] = [
        ("policy", c_uint32),
        ("sliced", c_uint32),
        ("holder", c_int32),
        ("draining", c_int32),
        ("contended", c_uint32),
        ("resumed", c_uint32),
        ("looked", c_uint32),
        ("wary", c_uint32),
        ("stayed", c_uint32),
        ("bare", c_uint32),
        ("early", c_uint32),
        ("rivals", c_uint32),
        ("weights", c_int64),
        ("slice_end_ns", c_uint64),
        ("turn_end_ns", c_uint64),
        ("opened_ns", c_uint64),
        ("use_ns", c_uint64),
        ("booked_ns", c_uint64),
        ("foreseen_ns", c_uint64),
        ("drain_from_ns", c_uint64),
        ("drain_until_ns", c_uint64),
        ("cut_off_ns", c_uint64),
    ]


class QpWindow(ctypes.Structure):
    """struct qp_window: what was used in the last second, or the last ten."""

    _fields_: ClassVar[Any] = [
        ("bin", c_uint64),
        ("sum", c_uint64),
        ("used", c_uint32 * 256),
    ]


class QpHistory(ctypes.Structure):
    """struct qp_history."""

    _fields_: ClassVar[Any] = [
        ("one", QpWindow),
        ("ten", QpWindow),
    ]


class QpCard(ctypes.Structure):
    """struct qp_card."""

    _fields_: ClassVar[Any] = [
        ("idle_release_ns", c_uint64),
        ("slice_ns", c_uint64),
        ("recovery_until_ns", c_uint64),
        ("ungoverned", c_uint32),
        ("ntenants", c_uint32),
        ("last_ns", c_uint64),
        ("preempt_from_ns", c_uint64),
        ("online_busy_ns", c_uint64),
        ("cls", QpClass * 2),
        ("wake_ns", c_uint64),
        ("due_ns", c_uint64),
        ("soft_ns", c_uint64),
        ("preempting", c_uint32),
        ("online_working", c_uint32),
        ("awaits_online", c_uint32),
        ("last_user", c_int32),
        ("again", c_uint32),
        ("padding", c_uint32),
        ("tenant", QpTenant * 256),
        ("history", QpHistory * 256),
    ]


#: The class of each structure. OUTER.MEMBER: an entry of an array whose type has no name.
STRUCTS: dict[str, type[ctypes.Structure]] = {
    "qp_tenant": QpTenant,
    "qp_class": QpClass,
    "qp_window": QpWindow,
    "qp_history": QpHistory,
    "qp_card": QpCard,
}
