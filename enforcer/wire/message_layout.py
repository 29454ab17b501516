"""Constants and structures of enforcer/native/abi/qgpu_messages.h.

Generated from it by `make layouts`: edit the header, not this file. Its comments explain each
field.
"""

from __future__ import annotations

import ctypes
from ctypes import c_char, c_int32, c_int64, c_uint32, c_uint64
from typing import Any, ClassVar

MAX_GROUPS = 32
MAX_CHANNELS = 64

# enum qg_msg_type
MSG_REGISTER = 1
MSG_REGISTERED = 2
MSG_GROUPS = 3
MSG_ACT = 4
MSG_ACTED = 5
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
CTL_HARDWARE = 31
CTL_HWSTATS = 32
CTL_HWTENANT = 33
CTL_LIST = 34
CTL_HWCARD = 35
CTL_LISTED = 36
CTL_WANT = 37
CTL_MEMORY = 38

CARD_UNGOVERNED = 0x1
CARD_GANG_SUSPEND = 0x8
GRANT_UNGOVERNED = 0x1
GRANT_HELD = 0x2
LIST_BYTES = 32768
CLOSE_BUCKETS = 16
TENANT_PASSED_OVER = 0x2
TENANT_UNGOVERNED = 0x4
TENANT_SUSPENDED = 0x8

# enum qg_memory_action
MEMORY_WAIT = 1
MEMORY_NOWAIT = 2
MEMORY_RETRY = 3
MEMORY_FINAL = 4

GROUPS_LOST = 0x1
GROUPS_LEAVE = 0x2
GROUPS_MORE_CHANNELS = 0x4

# enum qg_action
ACT_CONTINUE = 0
ACT_STOP = 1
ACT_SLICE = 2
ACT_REPORT = 3

# enum qg_hw_method
HW_AUTO = 0
HW_SCHEDULE = 1
HW_DISABLE = 2
HW_TIMESLICE = 3

# enum qg_hw_actor
HW_ACTOR_AUTO = 0
HW_ACTOR_ARBITER = 1
HW_ACTOR_SHIM = 2

# enum qg_hw_state
HW_NONE = 0
HW_READY = 1
HW_STOPPED = 2
HW_FAILED = 3


class MsgHead(ctypes.Structure):
    """struct qg_msg_head: the start of every message."""

    _fields_: ClassVar[Any] = [
        ("magic", c_uint32),
        ("version", c_uint32),
        ("type", c_uint32),
        ("size", c_uint32),
    ]


class Register(ctypes.Structure):
    """struct qg_register: a process asks to be a tenant of one card."""

    _fields_: ClassVar[Any] = [
        ("head", MsgHead),
        ("job_id", c_uint64),
        ("uuid", c_char * 48),
        ("mem_used", c_uint64),
    ]


class Registered(ctypes.Structure):
    """struct qg_registered: the answer; status 0 comes with three descriptors."""

    _fields_: ClassVar[Any] = [
        ("head", MsgHead),
        ("status", c_int32),
        ("slot", c_uint32),
        ("mem_cap", c_uint64),
        ("message", c_char * 256),
    ]


class CtlCard(ctypes.Structure):
    """struct qg_ctl_card: settings of one card."""

    _fields_: ClassVar[Any] = [
        ("head", MsgHead),
        ("uuid", c_char * 48),
        ("idle_release_ms", c_uint32),
        ("window_us", c_uint32),
        ("slice_us", c_uint32),
        ("lease_ms", c_uint32),
        ("policy_online", c_uint32),
        ("policy_offline", c_uint32),
        ("flags", c_uint32),
        ("grace_ms", c_uint32),
        ("online_delay_us", c_uint32),
        ("online_share", c_uint32),
    ]


class CtlGrant(ctypes.Structure):
    """struct qg_ctl_grant: one (job, card)."""

    _fields_: ClassVar[Any] = [
        ("head", MsgHead),
        ("job_id", c_uint64),
        ("uid", c_uint32),
        ("job_class", c_uint32),
        ("uuid", c_char * 48),
        ("share", c_uint32),
        ("flags", c_uint32),
        ("mem_cap", c_uint64),
        ("mem_context", c_uint64),
        ("home", c_char * 48),
    ]


class CtlRevoke(ctypes.Structure):
    """struct qg_ctl_revoke: the job ended, or left one card."""

    _fields_: ClassVar[Any] = [
        ("head", MsgHead),
        ("job_id", c_uint64),
        ("uuid", c_char * 48),
    ]


class CtlList(ctypes.Structure):
    """struct qg_ctl_list: asks for a list; its answers share packets."""

    _fields_: ClassVar[Any] = [
        ("head", MsgHead),
        ("of", c_uint32),
        ("reserved", c_uint32),
    ]


class CtlAck(ctypes.Structure):
    """struct qg_ctl_ack: the answer to every command that is not a question."""

    _fields_: ClassVar[Any] = [
        ("head", MsgHead),
        ("status", c_int32),
        ("reserved", c_uint32),
        ("boot_id", c_uint64),
    ]


class CtlTenant(ctypes.Structure):
    """struct qg_ctl_tenant: the measured state of one tenant."""

    _fields_: ClassVar[Any] = [
        ("head", MsgHead),
        ("job_id", c_uint64),
        ("uuid", c_char * 48),
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
        ("closed_idle_ns", c_uint64),
        ("mem_refused", c_uint64),
        ("close_hist", c_uint32 * 16),
    ]


class CtlProcess(ctypes.Structure):
    """struct qg_ctl_process: QG_CTL_DIED, QG_CTL_GONE, QG_CTL_LISTED, QG_CTL_PROC, QG_CTL_WANT."""

    _fields_: ClassVar[Any] = [
        ("head", MsgHead),
        ("job_id", c_uint64),
        ("uuid", c_char * 48),
        ("pid", c_uint32),
        ("uid", c_uint32),
        ("mem_used", c_uint64),
        ("mem_pending", c_uint64),
        ("mem_contexts", c_uint64),
        ("contexts", c_uint32),
        ("reserved", c_uint32),
    ]


class CtlOverhead(ctypes.Structure):
    """struct qg_ctl_overhead: bytes of a tenant that NVML counts and no process reports."""

    _fields_: ClassVar[Any] = [
        ("head", MsgHead),
        ("job_id", c_uint64),
        ("uuid", c_char * 48),
        ("bytes", c_uint64),
        ("mem_context", c_uint64),
    ]


class CtlMemory(ctypes.Structure):
    """struct qg_ctl_memory: what allocations do that the driver refused on one card."""

    _fields_: ClassVar[Any] = [
        ("head", MsgHead),
        ("job_id", c_uint64),
        ("uuid", c_char * 48),
        ("action", c_uint32),
        ("reserved", c_uint32),
    ]


class GroupEntry(ctypes.Structure):
    """One entry of struct qg_groups.groups."""

    _fields_: ClassVar[Any] = [
        ("handle", c_uint32),
        ("engine", c_uint32),
    ]


class ChannelEntry(ctypes.Structure):
    """One entry of struct qg_groups.channels."""

    _fields_: ClassVar[Any] = [
        ("handle", c_uint32),
        ("group", c_uint32),
    ]


class Groups(ctypes.Structure):
    """struct qg_groups: all channel groups that the process has below one RM client on one card.
    Each message replaces the former one about this client. ngroups 0: none is left. All of it is a
    hint until the driver itself confirmed it.
    """

    _fields_: ClassVar[Any] = [
        ("head", MsgHead),
        ("job_id", c_uint64),
        ("uuid", c_char * 48),
        ("client", c_uint32),
        ("device", c_uint32),
        ("subdevice", c_uint32),
        ("ngroups", c_uint32),
        ("nchannels", c_uint32),
        ("flags", c_uint32),
        ("groups", GroupEntry * 32),
        ("channels", ChannelEntry * 64),
    ]


class Act(ctypes.Structure):
    """struct qg_act: QG_MSG_ACT and its answer QG_MSG_ACTED."""

    _fields_: ClassVar[Any] = [
        ("head", MsgHead),
        ("uuid", c_char * 48),
        ("action", c_uint32),
        ("method", c_uint32),
        ("value", c_uint64),
        ("serial", c_uint64),
        ("status", c_uint32),
        ("count", c_uint32),
    ]


class CtlHardware(ctypes.Structure):
    """struct qg_ctl_hardware: settings of hardware preemption of one card."""

    _fields_: ClassVar[Any] = [
        ("head", MsgHead),
        ("uuid", c_char * 48),
        ("enabled", c_uint32),
        ("method", c_uint32),
        ("actor", c_uint32),
        ("weights", c_uint32),
        ("driver_major", c_uint32),
        ("period_us", c_uint32),
        ("ctl_dev", c_uint64),
        ("ctl_ino", c_uint64),
        ("ctl_rdev", c_uint64),
    ]


class CtlHwCard(ctypes.Structure):
    """struct qg_ctl_hwcard: whether hardware preemption is on, as ordered. A card whose control
    calls hang again and again is left to its gates.
    """

    _fields_: ClassVar[Any] = [
        ("head", MsgHead),
        ("uuid", c_char * 48),
        ("ordered", c_uint32),
        ("on", c_uint32),
        ("hung", c_uint32),
        ("reserved", c_uint32),
    ]


class CtlHwTenant(ctypes.Structure):
    """struct qg_ctl_hwtenant: what hardware preemption did with one tenant."""

    _fields_: ClassVar[Any] = [
        ("head", MsgHead),
        ("job_id", c_uint64),
        ("uuid", c_char * 48),
        ("state", c_uint32),
        ("actor", c_uint32),
        ("method", c_uint32),
        ("ngroups", c_uint32),
        ("stops", c_uint64),
        ("continues", c_uint64),
        ("failures", c_uint64),
        ("stopped_ns", c_uint64),
        ("stop_max_ns", c_uint64),
        ("stop_hist", c_uint32 * 16),
        ("last_status", c_uint32),
        ("reserved", c_uint32),
        ("why", c_char * 128),
    ]


#: The class of each structure. OUTER.MEMBER: an entry of an array whose type has no name.
STRUCTS: dict[str, type[ctypes.Structure]] = {
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
    "qg_ctl_memory": CtlMemory,
    "qg_groups.groups": GroupEntry,
    "qg_groups.channels": ChannelEntry,
    "qg_groups": Groups,
    "qg_act": Act,
    "qg_ctl_hardware": CtlHardware,
    "qg_ctl_hwcard": CtlHwCard,
    "qg_ctl_hwtenant": CtlHwTenant,
}
