"""Every structure and constant of enforcer/native/abi/qgpu_abi.h, mirrored with ctypes field by field.

tests/unit/wire/test_abi.py compiles the header and compares each offset, size and constant: the two cannot drift
apart. Import these names from `enforcer.wire.abi`. docs/specs/abi.md explains each word.
"""

from __future__ import annotations

import ctypes
from ctypes import c_char, c_int32, c_int64, c_uint8, c_uint32, c_uint64
from typing import ClassVar

MAGIC = 0x55504751
ABI_VERSION = 2
GRANT_VERSION = 1
UUID_LEN = 48
MAX_CARDS = 16
MAX_PROCS = 128
MARKERS = 64
LANES = 16
PAGE = 4096

SOCK_REGISTER = "enforcer.sock"
SOCK_CONTROL = "arbiter.sock"
SOCK_HOOK = "hook.sock"
GRANTS_DIR = "grants"
ENV_GRANT_FD = "QGPU_GRANT_FD"
ENV_GRANT = "QGPU_GRANT"

CLASS_ONLINE = 1
CLASS_OFFLINE = 2
POLICY_BEST_EFFORT = 1
POLICY_FIXED_SHARE = 2
POLICY_BURST_SHARE = 3
GRANT_ACTIVE = 1
GRANT_REFUSED = 2
GRANT_WHOLE = 3
INJECT_PRELOAD = 0
INJECT_MOUNT = 1

GATE_CLOSED = 0x1
GATE_NOTIFY = 0x2
GATE_TRACK = 0x4
GATE_WINDOW = 0x8
GATE_HOLD = 0x10
GATE_EARLY = 0x20
GATE_WHY_MASK = 0xF00
GATE_WHY_PREEMPTED = 0x100
GATE_WHY_SHARE = 0x200
GATE_WHY_RECOVERY = 0x400

MSG_REGISTER = 1
MSG_REGISTERED = 2
CTL_HELLO = 16
CTL_CARD = 17
CTL_GRANT = 18
CTL_REVOKE = 19
CTL_SYNCED = 20
CTL_STATS = 21
CTL_TENANT = 22
CTL_END = 23
CTL_ACK = 24
CTL_WATCH = 25
CTL_DIED = 26
CTL_GONE = 27
CTL_OVERHEAD = 28
CTL_PROCS = 29
CTL_PROC = 30
CTL_LIST = 34
CTL_LISTED = 36
LIST_BYTES = 32768
CARD_UNGOVERNED = 0x1
CARD_TOGETHER = 0x8
GRANT_UNGOVERNED = 0x1
CLOSE_BUCKETS = 16
TENANT_ESTIMATED = 0x1
TENANT_PASSED_OVER = 0x2
TENANT_UNGOVERNED = 0x4
TENANT_SUSPENDED = 0x8


class GrantCardPage(ctypes.Structure):
    """struct qg_grant_card: one card of a grant."""

    _fields_: ClassVar = [
        ("uuid", c_char * UUID_LEN),
        ("minor", c_uint32),
        ("index", c_uint32),
        ("share", c_uint32),
        ("flags", c_uint32),
        ("mem_cap", c_uint64),
        ("mem_total", c_uint64),
        ("reserved", c_uint8 * 48),
    ]


class GrantPage(ctypes.Structure):
    """struct qg_grant: the content of JOBID.grant and of the sealed memfd."""

    _fields_: ClassVar = [
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
        ("reserved", c_uint8 * 236),
        ("cards", GrantCardPage * MAX_CARDS),
    ]


class GatePage(ctypes.Structure):
    """struct qg_gate_page: written by the arbiter, read-only for the job."""

    _fields_: ClassVar = [
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
        ("pad0", c_uint8 * 8),
        ("flags", c_uint32),
        ("reserved2", c_uint32),
        ("heartbeat_ns", c_uint64),
        ("changed_ns", c_uint64),
        ("changes", c_uint64),
        ("pad1", c_uint8 * 32),
    ]


class Marker(ctypes.Structure):
    """struct qg_marker: completion words of one stream."""

    _fields_: ClassVar = [("submitted", c_uint32), ("done", c_uint32)]


class Lane(ctypes.Structure):
    """struct qg_lane: launches of one thread, in a cache line of its own (version 2)."""

    _fields_: ClassVar = [("launches", c_uint64), ("pad", c_uint8 * 56)]


class ProcSlot(ctypes.Structure):
    """struct qg_proc: one process of the job on one card; everything but pid is the job's own word."""

    _fields_: ClassVar = [
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
        ("unmarked", c_uint32),
        ("contexts", c_uint32),
        ("ends_ns", c_uint64),
        ("turn_ns", c_uint64),
        ("queued", c_uint32),
        ("spare", c_uint32),
        ("rests_ns", c_uint64),
        ("rests_launches", c_uint64),
        ("pad", c_uint8 * 376),
        ("markers", Marker * MARKERS),
        ("lanes", Lane * LANES),
        ("tail", c_uint8 * (PAGE - 1024 - 64 * LANES)),
    ]


class JobPage(ctypes.Structure):
    """struct qg_job_page: header page and one page per process slot."""

    _fields_: ClassVar = [
        ("magic", c_uint32),
        ("version", c_uint32),
        ("size", c_uint32),
        ("nslots", c_uint32),
        ("pad", c_uint8 * (PAGE - 16)),
        ("procs", ProcSlot * MAX_PROCS),
    ]


class MsgHead(ctypes.Structure):
    """struct qg_msg_head: the start of every message."""

    _fields_: ClassVar = [("magic", c_uint32), ("version", c_uint32), ("type", c_uint32), ("size", c_uint32)]


class Register(ctypes.Structure):
    """struct qg_register: a process asks to be a tenant of one card."""

    _fields_: ClassVar = [
        ("head", MsgHead),
        ("job_id", c_uint64),
        ("uuid", c_char * UUID_LEN),
        ("mem_used", c_uint64),
    ]


class Registered(ctypes.Structure):
    """struct qg_registered: the answer; status 0 comes with three descriptors."""

    _fields_: ClassVar = [
        ("head", MsgHead),
        ("status", c_int32),
        ("slot", c_uint32),
        ("mem_cap", c_uint64),
        ("message", c_char * 256),
    ]


class CtlCard(ctypes.Structure):
    """struct qg_ctl_card: settings of one card."""

    _fields_: ClassVar = [
        ("head", MsgHead),
        ("uuid", c_char * UUID_LEN),
        ("idle_release_ms", c_uint32),
        ("window_us", c_uint32),
        ("slice_us", c_uint32),
        ("lease_ms", c_uint32),
        ("policy_online", c_uint32),
        ("policy_offline", c_uint32),
        ("flags", c_uint32),
        ("grace_ms", c_uint32),
    ]


class CtlGrant(ctypes.Structure):
    """struct qg_ctl_grant: one (job, card)."""

    _fields_: ClassVar = [
        ("head", MsgHead),
        ("job_id", c_uint64),
        ("uid", c_uint32),
        ("job_class", c_uint32),
        ("uuid", c_char * UUID_LEN),
        ("share", c_uint32),
        ("flags", c_uint32),
        ("mem_cap", c_uint64),
    ]


class CtlRevoke(ctypes.Structure):
    """struct qg_ctl_revoke: the job ended."""

    _fields_: ClassVar = [("head", MsgHead), ("job_id", c_uint64)]


class CtlList(ctypes.Structure):
    """struct qg_ctl_list: ask for a list whose messages share packets."""

    _fields_: ClassVar = [("head", MsgHead), ("of", c_uint32), ("reserved", c_uint32)]


class CtlAck(ctypes.Structure):
    """struct qg_ctl_ack: the answer to every command that is not a question."""

    _fields_: ClassVar = [
        ("head", MsgHead),
        ("status", c_int32),
        ("reserved", c_uint32),
        ("boot_id", c_uint64),
    ]


class CtlTenant(ctypes.Structure):
    """struct qg_ctl_tenant: the measured state of one tenant."""

    _fields_: ClassVar = [
        ("head", MsgHead),
        ("job_id", c_uint64),
        ("uuid", c_char * UUID_LEN),
        ("uid", c_uint32),
        ("job_class", c_uint32),
        ("share", c_uint32),
        ("gate", c_uint32),
        ("procs", c_uint32),
        ("busy", c_uint32),
        ("mem_cap", c_uint64),
        ("mem_used", c_uint64),
        ("mem_peak", c_uint64),
        ("mem_denied", c_uint64),
        ("launches", c_uint64),
        ("busy_ns", c_uint64),
        ("closed_preempted_ns", c_uint64),
        ("closed_share_ns", c_uint64),
        ("preemptions", c_uint64),
        ("gate_close_max_ns", c_uint64),
        ("granted_ns", c_uint64),
        ("flags", c_uint32),
        ("policy", c_uint32),
        ("deficit_ns", c_int64),
        ("mem_extra", c_uint64),
        ("closed_suspended_ns", c_uint64),
        ("held_ns", c_uint64),
        ("close_hist", c_uint32 * CLOSE_BUCKETS),
    ]


class CtlProcess(ctypes.Structure):
    """struct qg_ctl_process: one process of a tenant (CTL_DIED, CTL_GONE, CTL_PROC)."""

    _fields_: ClassVar = [
        ("head", MsgHead),
        ("job_id", c_uint64),
        ("uuid", c_char * UUID_LEN),
        ("pid", c_uint32),
        ("uid", c_uint32),
        ("mem_used", c_uint64),
        ("mem_pending", c_uint64),
    ]


class CtlOverhead(ctypes.Structure):
    """struct qg_ctl_overhead: bytes of contexts and modules of a tenant, as NVML counts them."""

    _fields_: ClassVar = [
        ("head", MsgHead),
        ("job_id", c_uint64),
        ("uuid", c_char * UUID_LEN),
        ("bytes", c_uint64),
    ]


class GateEvent(ctypes.Structure):
    """struct qg_gate_event: one record of the arbiter's --trace file."""

    _fields_: ClassVar = [("t_ns", c_uint64), ("job_id", c_uint64), ("card", c_uint32), ("flags", c_uint32)]


#: C name of every mirrored structure, for the test that compares the layouts.
STRUCTS: dict[str, type[ctypes.Structure]] = {
    "qg_grant_card": GrantCardPage,
    "qg_grant": GrantPage,
    "qg_gate_page": GatePage,
    "qg_marker": Marker,
    "qg_lane": Lane,
    "qg_proc": ProcSlot,
    "qg_job_page": JobPage,
    "qg_msg_head": MsgHead,
    "qg_register": Register,
    "qg_registered": Registered,
    "qg_ctl_card": CtlCard,
    "qg_ctl_grant": CtlGrant,
    "qg_ctl_revoke": CtlRevoke,
    "qg_ctl_list": CtlList,
    "qg_ctl_ack": CtlAck,
    "qg_ctl_tenant": CtlTenant,
    "qg_ctl_process": CtlProcess,
    "qg_ctl_overhead": CtlOverhead,
    "qg_gate_event": GateEvent,
}
