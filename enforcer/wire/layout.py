"""Constants and structures of enforcer/native/abi/qgpu_abi.h.

Generated from it by `make layouts`: edit the header, not this file. Its comments explain each
field.
"""

from __future__ import annotations

import ctypes
from ctypes import c_char, c_uint8, c_uint32, c_uint64
from typing import Any, ClassVar

MAGIC = 0x55504751
ABI_VERSION = 3
GRANT_VERSION = 1
UUID_LEN = 48
MAX_CARDS = 16
MAX_PROCS = 128
FENCES = 64
LANES = 16
PAGE = 4096
SOCK_REGISTER = "enforcer.sock"
SOCK_CONTROL = "arbiter.sock"
SOCK_HOOK = "hook.sock"
GRANTS_DIR = "grants"
TASK_DIR = "/run/qgpu-task"
TASK_GRANT = "/run/qgpu-task/grant"
TASK_REAL = "/run/qgpu-task/real"
ENV_GRANT_FD = "QGPU_GRANT_FD"
ENV_GRANT = "QGPU_GRANT"

# enum qg_class
CLASS_ONLINE = 1
CLASS_OFFLINE = 2

# enum qg_policy
POLICY_BEST_EFFORT = 1
POLICY_FIXED_SHARE = 2
POLICY_BURST_SHARE = 3

POLICY_FIRST = 1
POLICY_LAST = 3

# enum qg_injection
INJECT_PRELOAD = 0
INJECT_MOUNT = 1

# enum qg_grant_state
GRANT_ACTIVE = 1
GRANT_REFUSED = 2
GRANT_WHOLE = 3

GRANT_CARD_MANAGED_RESIDENT = 0x1
GRANT_CARD_RECLAIMABLE = 0x2
GRANT_CARD_MOVED = 0x4
GATE_CLOSED = 0x1
GATE_NOTIFY = 0x2
GATE_TRACK = 0x4
GATE_WINDOW = 0x8
GATE_HOLD = 0x10
GATE_IDLE = 0x20
GATE_WHY_MASK = 0xF00
GATE_WHY_PREEMPTED = 0x100
GATE_WHY_SHARE = 0x200
GATE_WHY_RECOVERY = 0x400
GATE_WHY_MEMORY = 0x800
BEAT_LEFT = 0x8000000000000000


class GrantCardPage(ctypes.Structure):
    """struct qg_grant_card: one card of a grant."""

    _fields_: ClassVar[Any] = [
        ("uuid", c_char * 48),
        ("minor", c_uint32),
        ("index", c_uint32),
        ("share", c_uint32),
        ("flags", c_uint32),
        ("mem_cap", c_uint64),
        ("mem_total", c_uint64),
        ("home", c_char * 48),
    ]


class GrantPage(ctypes.Structure):
    """struct qg_grant: content of JOBID.grant and of the sealed memfd."""

    _fields_: ClassVar[Any] = [
        ("magic", c_uint32),
        ("version", c_uint32),
        ("size", c_uint32),
        ("state", c_uint32),
        ("job_id", c_uint64),
        ("uid", c_uint32),
        ("gid", c_uint32),
        ("job_class", c_uint32),
        ("ncards", c_uint32),
        ("created_ns", c_uint64),
        ("node", c_char * 64),
        ("run_dir", c_char * 160),
        ("driver_path", c_char * 256),
        ("shim_path", c_char * 256),
        ("message", c_char * 512),
        ("injection", c_uint32),
        ("usable", c_uint32),
        ("reserved", c_uint8 * 232),
        ("cards", GrantCardPage * 16),
    ]


class GatePage(ctypes.Structure):
    """struct qg_gate_page: written by the arbiter, read-only for the job."""

    _fields_: ClassVar[Any] = [
        ("magic", c_uint32),
        ("version", c_uint32),
        ("size", c_uint32),
        ("reserved", c_uint32),
        ("job_id", c_uint64),
        ("mem_cap", c_uint64),
        ("window_us", c_uint32),
        ("lease_ms", c_uint32),
        ("mem_extra", c_uint64),
        ("until_ns", c_uint64),
        ("mem_context", c_uint64),
        ("flags", c_uint32),
        ("reserved2", c_uint32),
        ("heartbeat_ns", c_uint64),
        ("changed_ns", c_uint64),
        ("changes", c_uint64),
        ("mem_wait", c_uint32),
        ("mem_retry", c_uint32),
        ("mem_final", c_uint32),
        ("mem_changes", c_uint32),
        ("pad1", c_uint8 * 16),
    ]


class Fence(ctypes.Structure):
    """struct qg_fence: one stream."""

    _fields_: ClassVar[Any] = [
        ("submitted", c_uint32),
        ("done", c_uint32),
    ]


class Lane(ctypes.Structure):
    """struct qg_lane: a launch counter that one thread writes without an atomic operation (all but
    the last lane). The arbiter makes such launches visible by membarrier(2) before it goes to sleep
    on the tenant.
    """

    _fields_: ClassVar[Any] = [
        ("launches", c_uint64),
        ("pad", c_uint8 * 56),
    ]


class ProcSlot(ctypes.Structure):
    """struct qg_proc: one process of the job; only the pid is the arbiter's."""

    _fields_: ClassVar[Any] = [
        ("pid", c_uint32),
        ("waiting", c_uint32),
        ("launches", c_uint64),
        ("mem_used", c_uint64),
        ("mem_pending", c_uint64),
        ("mem_peak", c_uint64),
        ("mem_denied", c_uint64),
        ("gate_waits", c_uint64),
        ("gate_wait_ns", c_uint64),
        ("inflight_us", c_uint64),
        ("window_bypass", c_uint64),
        ("copy_bytes", c_uint64),
        ("unfenced", c_uint32),
        ("reserved", c_uint32),
        ("quantum_start_ns", c_uint64),
        ("queued", c_uint32),
        ("made", c_uint32),
        ("idle_ns", c_uint64),
        ("idle_launches", c_uint64),
        ("mem_contexts", c_uint64),
        ("mem_wanted", c_uint64),
        ("mem_refused", c_uint64),
        ("pad", c_uint8 * 360),
        ("fences", Fence * 64),
        ("lanes", Lane * 16),
        ("tail", c_uint8 * 2048),
    ]


class JobPage(ctypes.Structure):
    """struct qg_job_page: a header page, and one page per process slot."""

    _fields_: ClassVar[Any] = [
        ("magic", c_uint32),
        ("version", c_uint32),
        ("size", c_uint32),
        ("nslots", c_uint32),
        ("pad", c_uint8 * 4080),
        ("procs", ProcSlot * 128),
    ]


class GateEvent(ctypes.Structure):
    """struct qg_gate_event: gate trace (qgpu-arbiter --trace FILE): fixed records, appended, for
    benchmarks and the demo.
    """

    _fields_: ClassVar[Any] = [
        ("t_ns", c_uint64),
        ("job_id", c_uint64),
        ("card", c_uint32),
        ("flags", c_uint32),
    ]


#: The class of each structure. OUTER.MEMBER: an entry of an array whose type has no name.
STRUCTS: dict[str, type[ctypes.Structure]] = {
    "qg_grant_card": GrantCardPage,
    "qg_grant": GrantPage,
    "qg_gate_page": GatePage,
    "qg_fence": Fence,
    "qg_lane": Lane,
    "qg_proc": ProcSlot,
    "qg_job_page": JobPage,
    "qg_gate_event": GateEvent,
}
