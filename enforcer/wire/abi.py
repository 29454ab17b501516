"""The native ABI (enforcer/native/abi) as seen from Python.

The structures themselves are in layout.py and message_layout.py beside this module, which are
generated from the headers, and are offered again here. On top stand `pack_grant` and `unpack_grant`
for the content of ``run_dir/grants/JOBID.grant``, and what the arbiter's socket needs.

Nothing here does I/O. Memory is in bytes, times in nanoseconds unless a name says otherwise. What
does not fit into its field is an `AbiError` with a sentence: a truncated path would be a wrong
path.
"""

from __future__ import annotations

import ctypes
from typing import TypeVar

from enforcer.wire.layout import *  # noqa: F403
from enforcer.wire.layout import (
    ABI_VERSION,
    CLASS_OFFLINE,
    CLASS_ONLINE,
    GRANT_ACTIVE,
    GRANT_CARD_MANAGED_RESIDENT,
    GRANT_CARD_MOVED,
    GRANT_CARD_RECLAIMABLE,
    GRANT_REFUSED,
    GRANT_VERSION,
    GRANT_WHOLE,
    INJECT_MOUNT,
    INJECT_PRELOAD,
    MAGIC,
    MAX_CARDS,
    POLICY_BEST_EFFORT,
    POLICY_BURST_SHARE,
    POLICY_FIXED_SHARE,
    UUID_LEN,
    GrantCardPage,
    GrantPage,
)
from enforcer.wire.message_layout import *  # noqa: F403
from enforcer.wire.message_layout import MsgHead
from gres.config.schema import Managed
from gres.config.site import Injection
from gres.grant.store import Grant, GrantCard

CLASS_CODES: dict[str, int] = {"online": CLASS_ONLINE, "offline": CLASS_OFFLINE}
POLICY_CODES: dict[str, int] = {
    "best-effort": POLICY_BEST_EFFORT,
    "fixed-share": POLICY_FIXED_SHARE,
    "burst-share": POLICY_BURST_SHARE,
}
INJECTION_CODES: dict[str, int] = {"preload": INJECT_PRELOAD, "mount": INJECT_MOUNT}
STATE_CODES: dict[str, int] = {
    "active": GRANT_ACTIVE,
    "refused": GRANT_REFUSED,
    "whole": GRANT_WHOLE,
}


class AbiError(ValueError):
    """A value that the native layout cannot hold, or bytes that are not what they claim to be."""


S = TypeVar("S", bound=ctypes.Structure)


def c_text(value: str, capacity: int, what: str) -> bytes:
    """Encode `value` for a NUL-terminated field of `capacity` bytes; raise AbiError when it does
    not fit.
    """
    raw = value.encode()
    if b"\0" in raw:
        raise AbiError(
            f"{what} {value!r} contains a NUL byte; the native layout ends strings with one"
        )
    if len(raw) >= capacity:
        raise AbiError(
            f"{what} {value!r} has {len(raw)} bytes; the native layout holds at most {capacity - 1}"
        )
    return raw


def bounded(value: int, low: int, high: int, what: str) -> int:
    """Return `value` when low <= value <= high; raise AbiError otherwise (ctypes would silently
    wrap it).
    """
    if not low <= value <= high:
        raise AbiError(f"{what} is {value}; it must lie between {low} and {high}")
    return value


def head(msg_type: int, cls: type[ctypes.Structure]) -> MsgHead:
    """Build the head of a message whose body is `cls`."""
    return MsgHead(MAGIC, ABI_VERSION, msg_type, ctypes.sizeof(cls))


def parse(cls: type[S], data: bytes, what: str) -> S:
    """Read exactly one `cls` out of `data`; raise AbiError when the length differs."""
    if len(data) != ctypes.sizeof(cls):
        raise AbiError(
            f"{what} has {len(data)} bytes; version {ABI_VERSION} of it has {ctypes.sizeof(cls)}"
        )
    return cls.from_buffer_copy(data)


def _code(table: dict[str, int], value: str, what: str) -> int:
    """Native code of a word such as "online"; a str-valued enum works as well."""
    word = str(getattr(value, "value", value))
    if word not in table:
        raise AbiError(f"{what} {word!r} is unknown; it must be one of {', '.join(sorted(table))}")
    return table[word]


def _clip(message: str, capacity: int) -> bytes:
    """Shorten a sentence meant for people to its field without splitting a character."""
    raw = message.replace("\0", " ").encode()
    if len(raw) < capacity:
        return raw
    return raw[: capacity - 4].decode(errors="ignore").encode() + b"..."


def pack_card(
    card: GrantCard, managed: Managed = "full", reclaimable: bool = False
) -> GrantCardPage:
    """Native form of one card of an active or whole grant."""
    page = GrantCardPage()
    page.flags = GRANT_CARD_MANAGED_RESIDENT if managed == "resident" else 0
    page.flags |= GRANT_CARD_RECLAIMABLE if reclaimable else 0
    page.flags |= GRANT_CARD_MOVED if card.home else 0
    page.uuid = c_text(card.uuid, UUID_LEN, "card UUID")
    page.home = c_text(card.home, UUID_LEN, "UUID of the card's home")
    page.minor = bounded(card.minor, 0, 2**32 - 1, "minor number of the card")
    page.index = bounded(card.index, 0, 2**32 - 1, "index of the card")
    page.share = bounded(card.share, 1, 100, f"share on card {card.uuid}")
    page.mem_cap = bounded(card.mem_cap, 0, 2**64 - 1, f"memory cap on card {card.uuid}")
    page.mem_total = bounded(card.mem_total, 0, 2**64 - 1, f"memory of card {card.uuid}")
    return page


def pack_grant(
    grant: Grant, injection: Injection = "preload", managed: Managed = "full", usable: int = 0
) -> bytes:
    """Bytes of struct qg_grant for `grant`; `injection` is how SPANK brings the shim into its
    tasks, `managed` how managed memory is charged, `usable` MiB that shares have of a card.

    Raises AbiError when a number or a path does not fit; only `message` is shortened, since it is
    for people.
    """
    page = GrantPage(magic=MAGIC, version=GRANT_VERSION, size=ctypes.sizeof(GrantPage))
    page.state = _code(STATE_CODES, grant.state, "grant state")
    page.job_id = bounded(grant.job_id, 1, 2**64 - 1, "job id")
    page.uid = bounded(grant.uid, 0, 2**32 - 2, "uid")
    page.gid = bounded(grant.gid, 0, 2**32 - 2, "gid")
    page.job_class = _code(CLASS_CODES, grant.job_class, "class") if grant.job_class else 0
    page.ncards = bounded(len(grant.cards), 0, MAX_CARDS, "number of cards of the job on this node")
    page.created_ns = bounded(grant.created_ns, 0, 2**64 - 1, "creation time")
    page.node = c_text(grant.node, 64, "node name")
    page.run_dir = c_text(grant.run_dir, 160, "run_dir")
    page.driver_path = c_text(grant.driver_path, 256, "driver path")
    page.shim_path = c_text(grant.shim_path, 256, "shim path")
    page.message = _clip(grant.message, 512)
    page.injection = _code(INJECTION_CODES, injection, "injection")
    page.usable = bounded(usable, 0, 2**32 - 1, "memory of a card for shares")
    for i, card in enumerate(grant.cards):
        page.cards[i] = pack_card(card, managed, grant.reclaimable)
    _require_complete(page)
    return bytes(page)


def _require_complete(page: GrantPage) -> None:
    """Refuse an active grant without class, cards or paths, which could not be enforced."""
    if page.state != GRANT_ACTIVE:
        return
    if not page.ncards or not page.job_class:
        raise AbiError(f"the active grant of job {page.job_id} needs a class and at least one card")
    for name in ("run_dir", "driver_path", "shim_path"):
        if not getattr(page, name).startswith(b"/"):
            raise AbiError(f"the active grant of job {page.job_id} needs an absolute {name}")


def unpack_grant(data: bytes) -> GrantPage:
    """Check and return a struct qg_grant; AbiError says what is wrong with it."""
    page = parse(GrantPage, data, "grant")
    if (page.magic, page.version, page.size) != (MAGIC, GRANT_VERSION, ctypes.sizeof(GrantPage)):
        raise AbiError(
            f"grant has magic {page.magic:#x}, version {page.version}, size {page.size}; "
            f"expected {MAGIC:#x}, {GRANT_VERSION}, {ctypes.sizeof(GrantPage)}"
        )
    bounded(page.state, GRANT_ACTIVE, GRANT_WHOLE, "state of the grant")
    bounded(page.ncards, 0, MAX_CARDS, "number of cards in the grant")
    bounded(page.job_class, 0, CLASS_OFFLINE, "class code of the grant")
    _require_terminated(page)
    return page


def _require_terminated(page: GrantPage) -> None:
    """Every string of a grant ends inside its field (ctypes hides a missing NUL)."""
    for name in ("node", "run_dir", "driver_path", "shim_path", "message"):
        field = getattr(GrantPage, name)
        if len(getattr(page, name)) >= field.size:
            raise AbiError(f"the field {name} of the grant is not terminated")
    for i in range(page.ncards):
        if max(len(page.cards[i].uuid), len(page.cards[i].home)) >= UUID_LEN:
            raise AbiError(f"a UUID of card {i} of the grant is not terminated")
