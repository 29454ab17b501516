"""Constants and structures of simulator/native/protocol/sim_proto.h.

Generated from it by `make layouts`: edit the header, not this file. Its comments explain each
field.
"""

from __future__ import annotations

import ctypes
from ctypes import c_char, c_double, c_int32, c_uint32, c_uint64
from typing import Any, ClassVar

MAGIC = 0x4D495351
VERSION = 6
SOCK = "sim.sock"
TRACE = "trace.bin"
CONTROL = "control"
ENV_DIR = "QGPU_SIM_DIR"
ENV_DEBUG = "QGPU_SIM_DEBUG"
ENV_EXPORTS = "QGPU_SIM_EXPORTS"
DEFAULT_DIR = "/var/lib/qgpu-sim"
MAX_CARDS = 16
MIG_MOST = 7
MIG_GI_MINOR = 262_144
MIG_CARD_MINOR = 524_288
UUID_LEN = 48
RING = 4096
STREAMS = 4096
STREAM_PT = 1
STREAM_PT_N = 16
STREAM_USER = 17
STREAM_ALL = 4095
EVENTS = 16384

# enum sim_op
OP_KERNEL = 1
OP_HTOD = 2
OP_DTOH = 3
OP_DTOD = 4
OP_MEMSET = 5
OP_PEER = 6
OP_EVENT = 16
OP_WAIT = 17
OP_WRITE32 = 18
OP_WAIT32 = 19
OP_FENCE = 20
OP_HOST = 21
OP_FREE = 22
OP_WRITE64 = 23
OP_WAIT64 = 24

# enum sim_cost
COST_DEFAULT = 0
COST_WORK = 1
COST_RULE = 2

CMD_NONBLOCKING = 0x1
CMD_NODE = 0x2

# enum sim_req_type
REQ_HELLO = 1
REQ_CARD = 2
REQ_CTX_CREATE = 3
REQ_CTX_DESTROY = 4
REQ_ALLOC = 5
REQ_FREE = 6
REQ_PROCS = 7
REQ_UTIL = 8
REQ_CONTROL_FILE = 9
REQ_CTX_GROUPS = 11
REQ_PIN = 12
REQ_UNPIN = 13
REQ_REACHED = 14
REQ_HOLD = 15
REQ_LET_GO = 16
REQ_CHECKPOINT = 17
REQ_AGENT = 18
REQ_CTX_BYTES = 19
REQ_PARK = 20
REQ_UNPARK = 21
REQ_CONTROL = 32
REQ_LIMIT_SET = 33
REQ_LIMIT_GET = 34

# enum sim_order_what
ORDER_STATE = 0
ORDER_THREAD = 1
ORDER_LOCK = 2
ORDER_CHECKPOINT = 3
ORDER_RESTORE = 4
ORDER_UNLOCK = 5
ORDER_CANCEL = 6

TEXT = 1024
EPERM = -1
ENOSYS = -2
MAX_LINKS = 18
MAX_PROCS = 2048

# enum sim_listed
LISTED_COMPUTE = 0
LISTED_GRAPHICS = 1
LISTED_MPS = 2

FAULTS = 8
RULES = 96
CALL_LEN = 64

# enum sim_fault_kind
FAULT_NONE = 0
FAULT_ERROR = 1
FAULT_DELAY = 2
FAULT_HANG = 3
FAULT_MIDWAY = 4

OPTION_CLIENT_PER_CONTEXT = 1
OPTION_PEERS = 2
TRACE_MAGIC = "QGSIMTRC"
TRACE_VERSION = 1
TRACE_LAST = 0x1
TRACE_CUT = 0x2


class Cmd(ctypes.Structure):
    """struct sim_cmd: sequence number = position in the ring + 1, counted from the start of the
    context.
    """

    _fields_: ClassVar[Any] = [
        ("op", c_uint32),
        ("stream", c_uint32),
        ("flags", c_uint32),
        ("reserved", c_uint32),
        ("t_submit", c_uint64),
        ("a", c_uint64),
        ("b", c_uint64),
        ("c", c_uint64),
        ("pad", c_uint64 * 2),
    ]


class StreamWord(ctypes.Structure):
    """struct sim_stream_word."""

    _fields_: ClassVar[Any] = [
        ("done_seq", c_uint64),
        ("host_done", c_uint64),
        ("gen", c_uint32),
        ("waiters", c_uint32),
    ]


class EventWord(ctypes.Structure):
    """struct sim_event_word."""

    _fields_: ClassVar[Any] = [
        ("done_seq", c_uint64),
        ("done_ns", c_uint64),
        ("gen", c_uint32),
        ("waiters", c_uint32),
    ]


class Shared(ctypes.Structure):
    """struct sim_shared."""

    _fields_: ClassVar[Any] = [
        ("magic", c_uint32),
        ("version", c_uint32),
        ("ctx_id", c_uint32),
        ("card", c_uint32),
        ("depth", c_uint32),
        ("sticky", c_uint32),
        ("pad0", c_uint64 * 5),
        ("head", c_uint64),
        ("pad1", c_uint64 * 7),
        ("tail", c_uint64),
        ("space_gen", c_uint32),
        ("space_waiters", c_uint32),
        ("dead", c_uint32),
        ("need_bell", c_uint32),
        ("finished", c_uint64),
        ("pad2", c_uint64 * 4),
        ("ring", Cmd * 4096),
        ("streams", StreamWord * 4096),
        ("events", EventWord * 16384),
    ]


class Order(ctypes.Structure):
    """struct sim_order: the device side to the thread of a process, and its answer. One at a time,
    but for CANCEL.
    """

    _fields_: ClassVar[Any] = [
        ("number", c_uint64),
        ("what", c_uint32),
        ("moves", c_uint32),
        ("where_to", c_uint64),
        ("deadline_ns", c_uint64),
    ]


class OrderDone(ctypes.Structure):
    """struct sim_order_done."""

    _fields_: ClassVar[Any] = [
        ("number", c_uint64),
        ("status", c_int32),
        ("broken", c_uint32),
    ]


class Req(ctypes.Structure):
    """struct sim_req."""

    _fields_: ClassVar[Any] = [
        ("magic", c_uint32),
        ("version", c_uint32),
        ("type", c_uint32),
        ("size", c_uint32),
        ("a", c_uint64),
        ("b", c_uint64),
        ("c", c_uint64),
        ("d", c_uint64),
    ]


class TextReq(ctypes.Structure):
    """struct sim_text_req."""

    _fields_: ClassVar[Any] = [
        ("req", Req),
        ("text", c_char * 1024),
    ]


class Rep(ctypes.Structure):
    """struct sim_rep."""

    _fields_: ClassVar[Any] = [
        ("magic", c_uint32),
        ("version", c_uint32),
        ("size", c_uint32),
        ("status", c_int32),
        ("a", c_uint64),
        ("b", c_uint64),
        ("c", c_uint64),
        ("d", c_uint64),
    ]


class Node(ctypes.Structure):
    """struct sim_node."""

    _fields_: ClassVar[Any] = [
        ("rep", Rep),
        ("ncards", c_uint32),
        ("major", c_uint32),
        ("generation", c_uint32),
        ("mig", c_uint32),
        ("node", c_char * 64),
        ("driver", c_char * 64),
        ("dir", c_char * 160),
    ]


class CardInfo(ctypes.Structure):
    """struct sim_card_info."""

    _fields_: ClassVar[Any] = [
        ("rep", Rep),
        ("index", c_uint32),
        ("minor", c_uint32),
        ("mem_total", c_uint64),
        ("mem_used", c_uint64),
        ("uuid", c_char * 48),
        ("name", c_char * 96),
        ("path", c_char * 192),
        ("links", c_uint32 * 16),
        ("switch_links", c_uint32),
        ("reserved", c_uint32),
    ]


class ProcInfo(ctypes.Structure):
    """struct sim_proc_info."""

    _fields_: ClassVar[Any] = [
        ("pid", c_uint32),
        ("contexts", c_uint32),
        ("listed", c_uint32),
        ("reserved", c_uint32),
        ("mem", c_uint64),
        ("busy_ns", c_uint64),
    ]


class Procs(ctypes.Structure):
    """struct sim_procs."""

    _fields_: ClassVar[Any] = [
        ("rep", Rep),
        ("procs", ProcInfo * 2048),
    ]


class UtilProc(ctypes.Structure):
    """One entry of struct sim_util.procs."""

    _fields_: ClassVar[Any] = [
        ("pid", c_uint32),
        ("percent", c_uint32),
    ]


class Util(ctypes.Structure):
    """struct sim_util."""

    _fields_: ClassVar[Any] = [
        ("rep", Rep),
        ("gpu_percent", c_uint32),
        ("mem_percent", c_uint32),
        ("stamp_us", c_uint64),
        ("busy_ns", c_uint64),
        ("copy_ns", c_uint64),
        ("switches", c_uint64),
        ("switch_ns", c_uint64),
        ("procs", UtilProc * 2048),
    ]


class Fault(ctypes.Structure):
    """struct sim_fault."""

    _fields_: ClassVar[Any] = [
        ("call", c_char * 64),
        ("kind", c_uint32),
        ("value", c_uint32),
        ("left", c_int32),
        ("reserved", c_uint32),
    ]


class Rule(ctypes.Structure):
    """struct sim_rule: duration of kernels whose name matches the pattern."""

    _fields_: ClassVar[Any] = [
        ("pattern", c_char * 64),
        ("base_ns", c_double),
        ("block_ns", c_double),
        ("thread_ns", c_double),
        ("wave_ns", c_double),
        ("stop_ns", c_double),
    ]


class Page(ctypes.Structure):
    """struct sim_page."""

    _fields_: ClassVar[Any] = [
        ("magic", c_uint32),
        ("nrules", c_uint32),
        ("nfaults", c_uint32),
        ("options", c_uint32),
        ("faults", Fault * 8),
        ("rules", Rule * 96),
    ]


class TraceHead(ctypes.Structure):
    """struct sim_trace_head."""

    _fields_: ClassVar[Any] = [
        ("magic", c_char * 8),
        ("version", c_uint32),
        ("record_size", c_uint32),
        ("ncards", c_uint32),
        ("reserved", c_uint32),
        ("start_ns", c_uint64),
        ("node", c_char * 32),
    ]


class TraceRec(ctypes.Structure):
    """struct sim_trace_rec."""

    _fields_: ClassVar[Any] = [
        ("t_start", c_uint64),
        ("t_end", c_uint64),
        ("t_submit", c_uint64),
        ("pid", c_uint32),
        ("card", c_uint32),
        ("ctx", c_uint32),
        ("stream", c_uint32),
        ("kind", c_uint32),
        ("flags", c_uint32),
        ("seq", c_uint64),
        ("work", c_uint64),
    ]


#: The class of each structure. OUTER.MEMBER: an entry of an array whose type has no name.
STRUCTS: dict[str, type[ctypes.Structure]] = {
    "sim_cmd": Cmd,
    "sim_stream_word": StreamWord,
    "sim_event_word": EventWord,
    "sim_shared": Shared,
    "sim_order": Order,
    "sim_order_done": OrderDone,
    "sim_req": Req,
    "sim_text_req": TextReq,
    "sim_rep": Rep,
    "sim_node": Node,
    "sim_card_info": CardInfo,
    "sim_proc_info": ProcInfo,
    "sim_procs": Procs,
    "sim_util.procs": UtilProc,
    "sim_util": Util,
    "sim_fault": Fault,
    "sim_rule": Rule,
    "sim_page": Page,
    "sim_trace_head": TraceHead,
    "sim_trace_rec": TraceRec,
}
