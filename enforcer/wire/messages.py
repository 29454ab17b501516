"""The messages of arbiter.sock as Python values: settings and grants out, measurements in."""

from __future__ import annotations

import enum
import functools
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

from enforcer.wire import abi
from enforcer.wire.records import record
from gres.grant.store import Grant


@dataclass(frozen=True)
class CardSettings:
    """Settings of one card. Durations as their names say; policies by name.

    `governed`: False opens all gates (benchmarks). `together`: gang suspend, so an offline job
    preempted here is suspended on its other cards too. `online_delay_us`: 0 unless idle_release is
    auto, and `online_share` (percent) too.
    """

    uuid: str
    idle_release_ms: int = 100
    window_us: int = 275
    slice_us: int = 2000
    lease_ms: int = 10_000
    grace_ms: int = 2000
    policy_online: str = "burst-share"
    policy_offline: str = "burst-share"
    governed: bool = True
    together: bool = True
    online_delay_us: int = 0
    online_share: int = 0


class TenantStats(NamedTuple):
    """The arbiter's counters of one (job, card) since the grant, in ns and bytes; they only grow.

    The job's memory on the card is mem_used (live processes) + mem_extra (contexts, modules, dead
    processes); mem_peak is of the sum. A tuple, as a busy node reads a hundred per poll.
    """

    job_id: int
    uuid: str
    uid: int
    job_class: str
    share: int
    gate: int
    procs: int
    busy: bool
    mem_cap: int
    mem_used: int
    mem_peak: int
    mem_denied: int
    launches: int
    busy_ns: int
    closed_preempted_ns: int
    closed_share_ns: int
    preemptions: int
    gate_close_max_ns: int
    granted_ns: int
    policy: str = ""
    deficit_ns: int = 0
    mem_extra: int = 0
    passed_over: bool = False
    ungoverned: bool = False
    suspended: bool = False
    closed_suspended_ns: int = 0
    held_ns: int = 0
    closed_idle_ns: int = 0
    mem_refused: int = 0
    close_hist: tuple[int, ...] = (0,) * abi.CLOSE_BUCKETS


@dataclass(frozen=True)
class ProcessStats:
    """One process of a job on a card: registered now, or just ended (DeathWatch). It reports the
    bytes.
    """

    job_id: int
    uuid: str
    pid: int
    uid: int
    mem_used: int
    mem_pending: int
    mem_contexts: int = 0
    contexts: int = 0


class Want(NamedTuple):
    """Bytes that allocations of one process wait for, which the driver refused; 0: none waits."""

    job_id: int
    uuid: str
    pid: int
    wanted: int


class MemoryAction(enum.IntEnum):
    """What allocations do that the driver refused, from now on (WAIT, NOWAIT) or once."""

    WAIT = abi.MEMORY_WAIT
    NOWAIT = abi.MEMORY_NOWAIT
    RETRY = abi.MEMORY_RETRY
    FINAL = abi.MEMORY_FINAL


@dataclass(frozen=True)
class HardwareSettings:
    """Hardware preemption of one card (docs/specs/hardware.md). ctl_rdev 0: a simulated control
    device.
    """

    uuid: str
    enabled: bool = False
    method: str = "auto"
    actor: str = "auto"
    weights: bool = False
    driver_major: int = 0
    period_us: int = 10_000
    ctl_dev: int = 0
    ctl_ino: int = 0
    ctl_rdev: int = 0


@dataclass(frozen=True)
class HardwareTenant:
    """Hardware preemption of one (job, card). Counters only grow; `why` is the reason of state
    failed.
    """

    job_id: int
    uuid: str
    state: str
    actor: str
    method: str
    ngroups: int
    stops: int
    continues: int
    failures: int
    stopped_ns: int
    stop_max_ns: int
    stop_hist: tuple[int, ...]
    last_status: int
    why: str


@dataclass(frozen=True)
class HardwareCard:
    """Whether hardware preemption is on as ordered; `hung`: calls that never returned."""

    uuid: str
    ordered: bool
    on: bool
    hung: int


_METHODS = ("auto", "schedule", "disable", "timeslice")
_ACTORS = ("auto", "arbiter", "shim")
_STATES = ("none", "ready", "stopped", "failed")
_CLASS_NAMES = {code: name for name, code in abi.CLASS_CODES.items()}
_POLICY_NAMES = {code: name for name, code in abi.POLICY_CODES.items()}
# bits of the fields passed_over, ungoverned and suspended of TenantStats, in order
_FLAG_BITS = (
    abi.TENANT_PASSED_OVER,
    abi.TENANT_UNGOVERNED,
    abi.TENANT_SUSPENDED,
)
_TENANT = record(abi.CtlTenant)
_PROCESS = record(abi.CtlProcess)


# The few UUIDs recur at each poll: one string each keeps its hash.
@functools.lru_cache(maxsize=1024)
def _text(field: bytes) -> str:
    return field.partition(b"\0")[0].decode(errors="replace")


def card_message(card: CardSettings) -> abi.CtlCard:
    """QG_CTL_CARD for these settings. Raises AbiError when one does not
    fit or a policy is unknown.
    """
    msg = abi.CtlCard(head=abi.head(abi.CTL_CARD, abi.CtlCard))
    msg.uuid = abi.c_text(card.uuid, abi.UUID_LEN, "card UUID")
    for name in (
        "idle_release_ms",
        "window_us",
        "slice_us",
        "lease_ms",
        "grace_ms",
        "online_delay_us",
        "online_share",
    ):
        setattr(msg, name, abi.bounded(getattr(card, name), 0, 2**32 - 1, name))
    for name in ("policy_online", "policy_offline"):
        policy = getattr(card, name)
        if policy not in abi.POLICY_CODES:
            raise abi.AbiError(
                f"policy {policy!r} is unknown; it must be one of {', '.join(abi.POLICY_CODES)}"
            )
        setattr(msg, name, abi.POLICY_CODES[policy])
    msg.flags = 0 if card.governed else abi.CARD_UNGOVERNED
    msg.flags |= abi.CARD_GANG_SUSPEND if card.together else 0
    return msg


def grant_messages(
    grant: Grant, contexts: Mapping[str, int] = MappingProxyType({}), held: bool = False
) -> list[abi.CtlGrant]:
    """One QG_CTL_GRANT per card of an active grant; none for refused and whole-card jobs.

    `contexts` is bytes of a context by card. `held`: its gates are closed for its memory.
    """
    if grant.state != "active" or grant.job_class is None:
        return []
    messages = []
    for card in grant.cards:
        msg = abi.CtlGrant(head=abi.head(abi.CTL_GRANT, abi.CtlGrant))
        msg.job_id = grant.job_id
        msg.uid = grant.uid
        msg.job_class = abi.CLASS_CODES[grant.job_class]
        msg.uuid = abi.c_text(card.uuid, abi.UUID_LEN, "card UUID")
        msg.home = abi.c_text(card.home, abi.UUID_LEN, "UUID of the card's home")
        msg.share = card.share
        msg.mem_cap = card.mem_cap
        msg.mem_context = abi.bounded(contexts.get(card.uuid, 0), 0, 2**64 - 1, "context")
        msg.flags = 0 if card.governed else abi.GRANT_UNGOVERNED
        msg.flags |= abi.GRANT_HELD if held else 0
        messages.append(msg)
    return messages


@functools.lru_cache(maxsize=64)
def _flags(flags: int) -> tuple[bool, ...]:
    return tuple(flags & bit != 0 for bit in _FLAG_BITS)


def stats(data: bytes) -> TenantStats:
    """The answer about one tenant.

    Read hundreds of times a second on a busy node, so by one `unpack` in the order of struct
    qg_ctl_tenant.
    """
    if len(data) != _TENANT.size:
        abi.parse(abi.CtlTenant, data, "tenant message")  # says what is wrong with it
    value = _TENANT.unpack(data)
    flags, policy, deficit_ns, mem_extra, suspended_ns, held_ns, idle_ns, refused = value[23:31]
    fields = (
        value[4],
        _text(value[5]),
        value[6],
        _CLASS_NAMES.get(value[7]) or f"class {value[7]}",
        *value[8:11],
        bool(value[11]),
        *value[12:23],
        _POLICY_NAMES.get(policy, ""),
        deficit_ns,
        mem_extra,
        *_flags(flags),
        suspended_ns,
        held_ns,
        idle_ns,
        refused,
        value[31:],
    )
    return TenantStats._make(fields)


def _place(word: str, words: tuple[str, ...], what: str) -> int:
    if word not in words:
        raise abi.AbiError(f"{what} {word!r} is unknown; it must be one of {', '.join(words)}")
    return words.index(word)


def _word(code: int, words: tuple[str, ...]) -> str:
    return words[code] if code < len(words) else str(code)


def hardware_message(card: HardwareSettings) -> abi.CtlHardware:
    """QG_CTL_HARDWARE for these settings. Raises AbiError when one does not fit."""
    msg = abi.CtlHardware(head=abi.head(abi.CTL_HARDWARE, abi.CtlHardware))
    msg.uuid = abi.c_text(card.uuid, abi.UUID_LEN, "card UUID")
    msg.enabled, msg.weights = card.enabled, card.weights
    msg.method = _place(card.method, _METHODS, "method")
    msg.actor = _place(card.actor, _ACTORS, "actor")
    for name in ("driver_major", "period_us"):
        setattr(msg, name, abi.bounded(getattr(card, name), 0, 2**32 - 1, name))
    for name in ("ctl_dev", "ctl_ino", "ctl_rdev"):
        setattr(msg, name, abi.bounded(getattr(card, name), 0, 2**64 - 1, name))
    return msg


def hardware_tenant(data: bytes) -> HardwareTenant:
    """The answer about one tenant."""
    msg = abi.parse(abi.CtlHwTenant, data, "hardware message")
    special = {"uuid", "state", "actor", "method", "stop_hist", "why"}
    plain = {
        name: getattr(msg, name)
        for name in HardwareTenant.__dataclass_fields__
        if name not in special
    }
    return HardwareTenant(
        uuid=msg.uuid.decode(errors="replace"),
        state=_word(msg.state, _STATES),
        actor=_word(msg.actor, _ACTORS),
        method=_word(msg.method, _METHODS),
        stop_hist=tuple(msg.stop_hist),
        why=msg.why.decode(errors="replace"),
        **plain,
    )


def process(data: bytes) -> ProcessStats:
    """A QG_CTL_PROC or QG_CTL_DIED."""
    if len(data) != _PROCESS.size:
        abi.parse(abi.CtlProcess, data, "process message")  # says what is wrong with it
    job_id, uuid, pid, uid, used, pending, reserved, contexts, _ = _PROCESS.unpack(data)[4:]
    return ProcessStats(job_id, _text(uuid), pid, uid, used, pending, reserved, contexts)


def memory_message(job_id: int, uuid: str, action: MemoryAction) -> abi.CtlMemory:
    """QG_CTL_MEMORY. Raises AbiError when the UUID does not fit."""
    msg = abi.CtlMemory(head=abi.head(abi.CTL_MEMORY, abi.CtlMemory), job_id=job_id)
    msg.uuid = abi.c_text(uuid, abi.UUID_LEN, "card UUID")
    msg.action = action
    return msg


def want(data: bytes) -> Want:
    """A QG_CTL_WANT."""
    found = process(data)
    return Want(found.job_id, found.uuid, found.pid, found.mem_used)


def hardware_card(data: bytes) -> HardwareCard:
    """The answer about one card."""
    msg = abi.parse(abi.CtlHwCard, data, "card message")
    return HardwareCard(
        msg.uuid.decode(errors="replace"), bool(msg.ordered), bool(msg.on), msg.hung
    )
