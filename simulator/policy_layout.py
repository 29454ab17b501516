"""Constants and structures of enforcer/native/arbiter/policy/policy.h.

Generated from it by `make layouts`: edit the header, not this file. Its comments explain each
field.
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
GAP_NS = 1_000_000
PAUSE_NS = 200_000
START_NS = 1_000_000
DRAIN_POLL_NS = 50000
DRAIN_PARTS = 8
DRAIN_TIMEOUT_NS = 100_000_000
LONG_QUANTUM = 10
DEFICIT_MAX_NS = 1_000_000_000
BUDGET_MAX_NS = 50_000_000
FIXED_WINDOW_US = 2000
OVERSTAY_NS = 250_000
LONE_WINDOW_US = 20000
SHARED_WINDOW_US = 4000
HOLD_NS = 1_000_000
ENTRY_COST = 4
LATE_COST = 128
TAKE_NS = 150_000
GAPS_KEPT = 128
GAPS = 16
WAY_NS = 128_000_000
WAY_REST_LEAST_NS = 2_000_000_000
WAY_REST_NS = 16_000_000_000
BINS = 256

# enum qp_way
WAY_QUANTA = 0
WAY_LEND = 1
WAY_OPEN = 2


class QpTenant(ctypes.Structure):
    """struct qp_tenant."""

    _fields_: ClassVar[Any] = [
        ("live", c_uint32),
        ("job_class", c_uint32),
        ("share", c_uint32),
        ("ungoverned", c_uint32),
        ("suspended", c_uint32),
        ("held", c_uint32),
        ("runnable", c_uint32),
        ("undrained", c_uint32),
        ("at_gate", c_uint32),
        ("preempts", c_uint32),
        ("used_from_ns", c_uint64),
        ("reported_end_ns", c_uint64),
        ("launches", c_uint64),
        ("gate", c_uint32),
        ("until_ns", c_uint64),
        ("was_runnable", c_uint32),
        ("was_undrained", c_uint32),
        ("backlogged", c_uint32),
        ("returned", c_uint32),
        ("out_of_budget", c_uint32),
        ("deficit_ns", c_int64),
        ("budget_ns", c_int64),
        ("idle_since_ns", c_uint64),
        ("pause_ns", c_uint64),
        ("online_idle_since_ns", c_uint64),
        ("service_ns", c_uint64),
        ("late", c_uint32),
        ("owed", c_uint32),
        ("leaving_ns", c_uint64),
        ("compared", c_uint32),
        ("launches_before", c_uint64),
        ("service_before_ns", c_uint64),
        ("had_work_before_ns", c_uint64),
        ("had_work_ns", c_uint64),
        ("quanta_launches", c_uint64),
        ("quanta_service_ns", c_uint64),
        ("best_launches", c_uint64),
        ("best_work_ns", c_uint64),
        ("gaps", c_uint32 * 16),
        ("gap_us", c_uint32 * 16),
    ]


class QpClass(ctypes.Structure):
    """struct qp_class."""

    _fields_: ClassVar[Any] = [
        ("policy", c_uint32),
        ("sliced", c_uint32),
        ("current", c_int32),
        ("draining", c_int32),
        ("contended", c_uint32),
        ("resumed", c_uint32),
        ("closed_idle", c_uint32),
        ("slice_end_ns", c_uint64),
        ("quantum_end_ns", c_uint64),
        ("opened_ns", c_uint64),
        ("use_from_ns", c_uint64),
        ("charged_until_ns", c_uint64),
        ("began_deficit_ns", c_int64),
        ("began_weight", c_int64),
        ("drain_from_ns", c_uint64),
        ("way", c_uint32),
        ("trial", c_uint32),
        ("best", c_uint32),
        ("best_by_weight", c_uint32),
        ("members", c_uint32),
        ("last_way", c_uint32),
        ("barred_way", c_uint32),
        ("reserved", c_uint32),
        ("counted_ns", c_uint64),
        ("settled_until_ns", c_uint64),
        ("look_ns", c_uint64),
        ("rest_ns", c_uint64),
        ("barred_until_ns", c_uint64),
        ("bar_ns", c_uint64),
        ("unused_ns", c_uint64),
        ("best_ns", c_uint64),
    ]


class QpHistory(ctypes.Structure):
    """struct qp_history: fixed-share: use in the last second."""

    _fields_: ClassVar[Any] = [
        ("bin", c_uint64),
        ("sum", c_uint64),
        ("used", c_uint32 * 256),
    ]


class QpCard(ctypes.Structure):
    """struct qp_card."""

    _fields_: ClassVar[Any] = [
        ("idle_release_ns", c_uint64),
        ("online_delay_ns", c_uint64),
        ("online_share", c_uint32),
        ("slice_ns", c_uint64),
        ("recovery_until_ns", c_uint64),
        ("ungoverned", c_uint32),
        ("ntenants", c_uint32),
        ("last_ns", c_uint64),
        ("preempt_from_ns", c_uint64),
        ("online_busy_ns", c_uint64),
        ("online_working", c_uint32),
        ("fell_idle", c_int32),
        ("hold_ns", c_uint64),
        ("release_ns", c_uint64),
        ("leave_ns", c_uint64),
        ("spare_ns", c_int64),
        ("beside", c_uint32),
        ("crowd", c_uint32),
        ("cls", QpClass * 2),
        ("preempting", c_uint32),
        ("resample", c_uint32),
        ("wake_ns", c_uint64),
        ("due_ns", c_uint64),
        ("tenant", QpTenant * 256),
        ("history", QpHistory * 256),
    ]


#: The class of each structure. OUTER.MEMBER: an entry of an array whose type has no name.
STRUCTS: dict[str, type[ctypes.Structure]] = {
    "qp_tenant": QpTenant,
    "qp_class": QpClass,
    "qp_history": QpHistory,
    "qp_card": QpCard,
}
