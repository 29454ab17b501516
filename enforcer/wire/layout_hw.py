"""The part of qgpu_abi.h about hardware preemption, mirrored like enforcer/wire/layout.py (docs/specs/hardware.md)."""

from __future__ import annotations

import ctypes
from ctypes import c_char, c_uint32, c_uint64
from typing import ClassVar

from enforcer.wire.layout import CLOSE_BUCKETS, UUID_LEN, MsgHead

MAX_GROUPS = 32
MAX_CHANNELS = 64

MSG_GROUPS = 3
MSG_ACT = 4
MSG_ACTED = 5
CTL_HARDWARE = 31
CTL_HWSTATS = 32
CTL_HWTENANT = 33
CTL_HWCARD = 35

GROUPS_LOST = 0x1
GROUPS_LEAVE = 0x2
GROUPS_MORE_CHANNELS = 0x4
ACT_CONTINUE = 0
ACT_STOP = 1
ACT_SLICE = 2
ACT_TELL = 3
HW_AUTO = 0
HW_SCHEDULE = 1
HW_DISABLE = 2
HW_TIMESLICE = 3
HW_ACTOR_AUTO = 0
HW_ACTOR_ARBITER = 1
HW_ACTOR_SHIM = 2
HW_NONE = 0
HW_READY = 1
HW_STOPPED = 2
HW_FAILED = 3


class GroupEntry(ctypes.Structure):
    """One group of struct qg_groups."""

    _fields_: ClassVar = [("handle", c_uint32), ("engine", c_uint32)]


class ChannelEntry(ctypes.Structure):
    """One channel of struct qg_groups."""

    _fields_: ClassVar = [("handle", c_uint32), ("group", c_uint32)]


class Groups(ctypes.Structure):
    """struct qg_groups: what a process has below one client of the driver on one card."""

    _fields_: ClassVar = [
        ("head", MsgHead),
        ("job_id", c_uint64),
        ("uuid", c_char * UUID_LEN),
        ("client", c_uint32),
        ("device", c_uint32),
        ("subdevice", c_uint32),
        ("ngroups", c_uint32),
        ("nchannels", c_uint32),
        ("flags", c_uint32),
        ("groups", GroupEntry * MAX_GROUPS),
        ("channels", ChannelEntry * MAX_CHANNELS),
    ]


class Act(ctypes.Structure):
    """struct qg_act: an order to the shim, and its answer."""

    _fields_: ClassVar = [
        ("head", MsgHead),
        ("uuid", c_char * UUID_LEN),
        ("action", c_uint32),
        ("method", c_uint32),
        ("value", c_uint64),
        ("serial", c_uint64),
        ("status", c_uint32),
        ("count", c_uint32),
    ]


class CtlHardware(ctypes.Structure):
    """struct qg_ctl_hardware: settings of hardware preemption of one card."""

    _fields_: ClassVar = [
        ("head", MsgHead),
        ("uuid", c_char * UUID_LEN),
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


class CtlHwTenant(ctypes.Structure):
    """struct qg_ctl_hwtenant: what hardware preemption did with one tenant."""

    _fields_: ClassVar = [
        ("head", MsgHead),
        ("job_id", c_uint64),
        ("uuid", c_char * UUID_LEN),
        ("state", c_uint32),
        ("actor", c_uint32),
        ("method", c_uint32),
        ("ngroups", c_uint32),
        ("stops", c_uint64),
        ("continues", c_uint64),
        ("failures", c_uint64),
        ("stopped_ns", c_uint64),
        ("stop_max_ns", c_uint64),
        ("stop_hist", c_uint32 * CLOSE_BUCKETS),
        ("last_status", c_uint32),
        ("reserved", c_uint32),
        ("why", c_char * 128),
    ]


class CtlHwCard(ctypes.Structure):
    """struct qg_ctl_hwcard: whether hardware preemption of one card goes on as ordered."""

    _fields_: ClassVar = [
        ("head", MsgHead),
        ("uuid", c_char * UUID_LEN),
        ("ordered", c_uint32),
        ("on", c_uint32),
        ("hung", c_uint32),
        ("reserved", c_uint32),
    ]


HW_STRUCTS: dict[str, type[ctypes.Structure]] = {
    "qg_groups": Groups,
    "qg_act": Act,
    "qg_ctl_hardware": CtlHardware,
    "qg_ctl_hwtenant": CtlHwTenant,
    "qg_ctl_hwcard": CtlHwCard,
}
