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
FINE_NS = 100_000
FINE_PARTS = 8
UNSAMPLED_NS = 100_000_000
NOTIFY_NS = 2_000_000
COMPETES_NS = 1_000_000
PAUSE_NS = 400_000
LATE_PAUSE_NS = 500_000
PAUSE_POLL_NS = 300_000
SHORT_PAUSE_NS = 100_000
REAL_PAUSES = 3
LATE_THREAD = 4
LATE_THREAD_NS = 1_200_000
TIMEOUT_MEMORY_NS = 1_000_000_000
PAUSE_MEMORY_NS = 1_000_000_000
START_NS = 1_000_000
DRAIN_POLL_NS = 50000
DRAIN_TIMEOUT_NS = 100_000_000
DRAIN_TIMEOUT_MIN_NS = 25_000_000
DRAIN_MULTIPLE = 8
UNEVEN_DRAINS = 16
UNEVEN_POLLS = 8
FIXED_POLLS = 16
REPORTED_POLL_NS = 500_000
TIMEOUT_HALVINGS = 6
KEEP_CREDIT_NS = 5_000_000
DEFICIT_MAX_NS = 1_000_000_000
BUDGET_MAX_NS = 50_000_000
MARGIN_NS = 2_000_000
OVERSTAY_NS = 250_000
LATE_REPORT_NS = 500_000
LONG_QUANTUM = 10
LONG_QUANTUM_MANY = 7
REOPEN_SLICES = 3
LONE_WINDOW_US = 20000
SHARED_WINDOW_US = 4000
FIXED_WINDOW_US = 2000
FIXED_WINDOW_MAX_US = 5000
HOLD_NS = 1_000_000
DEEP_DRAIN_NS = 3_000_000
DEEP_WINDOW_US = 24000
DEEP_QUANTUM_NS = 14_000_000
LEAD_NS = 150_000
OVERLAP_NS = 1_500_000
OVERLAP_POLL_NS = 200_000
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
        ("runnable", c_uint32),
        ("undrained", c_uint32),
        ("granted", c_uint32),
        ("ungoverned", c_uint32),
        ("suspended", c_uint32),
        ("hung", c_uint32),
        ("at_gate", c_uint32),
        ("doubted", c_uint32),
        ("predicted_end_ns", c_uint64),
        ("used_from_ns", c_uint64),
        ("reported_end_ns", c_uint64),
        ("inactive_since_ns", c_uint64),
        ("gate", c_uint32),
        ("ever_runnable", c_uint32),
        ("was_undrained", c_uint32),
        ("was_busy", c_uint32),
        ("was_competing", c_uint32),
        ("was_runnable", c_uint32),
        ("budgeted", c_uint32),
        ("backlogged", c_uint32),
        ("drain_unknown", c_uint32),
        ("slow_drain", c_uint32),
        ("deep_window", c_uint32),
        ("real_pauses", c_uint32),
        ("passed_on", c_uint32),
        ("out_of_budget", c_uint32),
        ("uneven_drains", c_uint32),
        ("misses", c_uint32),
        ("deficit_ns", c_int64),
        ("budget_ns", c_int64),
        ("last_runnable_ns", c_uint64),
        ("idle_since_ns", c_uint64),
        ("online_idle_since_ns", c_uint64),
        ("busy_since_ns", c_uint64),
        ("paused_ns", c_uint64),
        ("service_ns", c_uint64),
        ("used_ns", c_uint64),
        ("unsampled_ns", c_uint64),
        ("mean_drain_ns", c_uint64),
        ("short_drain_ns", c_uint64),
        ("max_drain_ns", c_uint64),
        ("max_drain_long_ns", c_uint64),
        ("drain_timeouts", c_uint64),
        ("timed_out_close_ns", c_uint64),
        ("until_ns", c_uint64),
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
        ("seen_draining", c_uint32),
        ("recent_timeout", c_uint32),
        ("same_tenant", c_uint32),
        ("closed_idle", c_uint32),
        ("opened_early", c_uint32),
        ("competitors", c_uint32),
        ("weight_sum", c_int64),
        ("slice_end_ns", c_uint64),
        ("quantum_end_ns", c_uint64),
        ("opened_ns", c_uint64),
        ("use_from_ns", c_uint64),
        ("charged_until_ns", c_uint64),
        ("predicted_end_ns", c_uint64),
        ("drain_from_ns", c_uint64),
        ("drain_until_ns", c_uint64),
        ("last_timeout_ns", c_uint64),
    ]


class QpWindow(ctypes.Structure):
    """struct qp_window: sum of use over the last second, or over the last ten."""

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
        ("resample", c_uint32),
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
