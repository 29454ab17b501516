"""Client of run_dir/arbiter.sock: how qgpud tells the arbiter about cards and grants, and asks for figures.

The protocol is docs/specs/control.md. A link is used by one thread at a time. After any `ArbiterGone` the
next call connects again; the caller then pushes everything once more with `sync` and compares `boot_id`.
"""

from __future__ import annotations

import ctypes
import errno
import os
import socket
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from enforcer import abi
from gres.grants import Grant


class ArbiterError(RuntimeError):
    """The arbiter refused a command; the text is a sentence, `errno` the reason as a number."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.errno = code


class ArbiterGone(ConnectionError):
    """The arbiter does not answer: not started, restarting, or stuck. Try again soon."""


@dataclass(frozen=True)
class CardSettings:
    """Settings of one card. Durations as their names say; policies by name."""

    uuid: str
    idle_release_ms: int = 100
    window_us: int = 500
    slice_us: int = 2000
    lease_ms: int = 10_000
    grace_ms: int = 2000
    policy_online: str = "burst-share"
    policy_offline: str = "burst-share"
    governed: bool = True


@dataclass(frozen=True)
class TenantStats:
    """What the arbiter measured of one (job, card) since the grant. ns and bytes; counters only grow."""

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


_CLASS_NAMES = {code: name for name, code in abi.CLASS_CODES.items()}
_REFUSALS = {
    errno.EINVAL: "a value is out of range",
    errno.ENODEV: "the card is not known yet; send its settings first",
    errno.ENOSPC: "there is no room for more",
    errno.ENOTSUP: "fixed-share is not supported by this version; use burst-share or best-effort",
    errno.EEXIST: "the job is known with another user",
    errno.EPROTO: "it speaks another version of the protocol",
}


def card_message(card: CardSettings) -> abi.CtlCard:
    """QG_CTL_CARD for these settings. Raises AbiError when one does not fit or a policy is unknown."""
    msg = abi.CtlCard(head=abi.head(abi.CTL_CARD, abi.CtlCard))
    msg.uuid = abi.c_text(card.uuid, abi.UUID_LEN, "card UUID")
    for name in ("idle_release_ms", "window_us", "slice_us", "lease_ms", "grace_ms"):
        setattr(msg, name, abi.bounded(getattr(card, name), 0, 2**32 - 1, name))
    for name in ("policy_online", "policy_offline"):
        policy = getattr(card, name)
        if policy not in abi.POLICY_CODES:
            raise abi.AbiError(
                f"policy {policy!r} is unknown; it must be one of {', '.join(abi.POLICY_CODES)}"
            )
        setattr(msg, name, abi.POLICY_CODES[policy])
    msg.flags = 0 if card.governed else abi.CARD_UNGOVERNED
    return msg


def grant_messages(grant: Grant) -> list[abi.CtlGrant]:
    """One QG_CTL_GRANT per card of an active grant; none for refused and whole-card jobs."""
    if grant.state != "active" or grant.job_class is None:
        return []
    messages = []
    for card in grant.cards:
        msg = abi.CtlGrant(head=abi.head(abi.CTL_GRANT, abi.CtlGrant))
        msg.job_id = grant.job_id
        msg.uid = grant.uid
        msg.job_class = abi.CLASS_CODES[grant.job_class]
        msg.uuid = abi.c_text(card.uuid, abi.UUID_LEN, "card UUID")
        msg.share = card.share
        msg.mem_cap = card.mem_cap
        messages.append(msg)
    return messages


def _stats(msg: abi.CtlTenant) -> TenantStats:
    plain = {name: getattr(msg, name) for name in TenantStats.__dataclass_fields__}
    plain["uuid"] = msg.uuid.decode(errors="replace")
    plain["job_class"] = _CLASS_NAMES.get(msg.job_class, f"class {msg.job_class}")
    plain["busy"] = bool(msg.busy)
    return TenantStats(**plain)


class ArbiterLink:
    """A connection to the arbiter of one node. `timeout` is seconds for each answer.

    Every command raises ArbiterGone when there is no answer and ArbiterError when the answer is no.
    """

    def __init__(self, run_dir: str | Path, timeout: float = 2.0) -> None:
        self.path = Path(run_dir) / abi.SOCK_CONTROL
        self.timeout = timeout
        self.boot_id: int | None = None
        self._sock: socket.socket | None = None

    def __enter__(self) -> ArbiterLink:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()

    @property
    def connected(self) -> bool:
        """Whether a connection is held (it may be dead already; the next command tells)."""
        return self._sock is not None

    def fileno(self) -> int | None:
        """Descriptor that becomes readable when the arbiter ends; None while there is no connection."""
        return self._sock.fileno() if self._sock is not None else None

    def close(self) -> None:
        """Give the connection up; the next command connects again."""
        if self._sock is not None:
            self._sock.close()
            self._sock = None

    def hello(self) -> int:
        """Begin a full list of grants; returns the arbiter's boot id."""
        return self._command(abi.head(abi.CTL_HELLO, abi.MsgHead), "hello")

    def card(self, settings: CardSettings) -> None:
        """Tell the settings of one card; the same card again updates it."""
        self._command(card_message(settings), f"the settings of card {settings.uuid}")

    def grant(self, grant: Grant) -> None:
        """Tell a grant, one command per card. Grants that are not active need no arbiter and send nothing."""
        for message in grant_messages(grant):
            self._command(message, f"the grant of job {grant.job_id}")

    def revoke(self, job_id: int) -> None:
        """The job ended. Ask `stats` before: its totals are gone afterwards. Unknown jobs are no error."""
        message = abi.CtlRevoke(head=abi.head(abi.CTL_REVOKE, abi.CtlRevoke), job_id=job_id)
        self._command(message, f"the end of job {job_id}")

    def synced(self) -> None:
        """End the full list: grants that were not repeated since `hello` are revoked."""
        self._command(abi.head(abi.CTL_SYNCED, abi.MsgHead), "the end of the list")

    def sync(self, cards: Iterable[CardSettings], grants: Iterable[Grant]) -> int:
        """Push everything: hello, cards, grants, synced. Returns the boot id."""
        boot_id = self.hello()
        for settings in cards:
            self.card(settings)
        for grant in grants:
            self.grant(grant)
        self.synced()
        return boot_id

    def stats(self) -> Sequence[TenantStats]:
        """What every tenant did so far, in no particular order."""
        self._send(abi.head(abi.CTL_STATS, abi.MsgHead))
        tenants: list[TenantStats] = []
        while (kind_data := self._receive())[0] == abi.CTL_TENANT:
            tenants.append(_stats(abi.parse(abi.CtlTenant, kind_data[1], "tenant message")))
        if kind_data[0] != abi.CTL_END:
            raise self._gone(f"sent message type {kind_data[0]} inside the list of tenants")
        self._note_boot(abi.parse(abi.CtlAck, kind_data[1], "end of the list"))
        return tenants

    def _command(self, message: ctypes.Structure, what: str) -> int:
        self._send(message)
        kind, data = self._receive()
        if kind != abi.CTL_ACK:
            raise self._gone(f"answered {what} with message type {kind}")
        ack = abi.parse(abi.CtlAck, data, "acknowledgement")
        if ack.status:
            why = _REFUSALS.get(ack.status, os.strerror(ack.status))
            raise ArbiterError(f"the arbiter refused {what}: {why}", ack.status)
        return self._note_boot(ack)

    def _note_boot(self, ack: abi.CtlAck) -> int:
        self.boot_id = int(ack.boot_id)
        return self.boot_id

    def _connect(self) -> socket.socket:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
        sock.settimeout(self.timeout)
        try:
            sock.connect(str(self.path))
        except OSError as error:
            sock.close()
            raise ArbiterGone(f"no arbiter at {self.path}: {error.strerror or error}") from error
        return sock

    def _send(self, message: ctypes.Structure) -> None:
        sock = self._sock = self._sock or self._connect()
        try:
            sock.send(bytes(message))
        except OSError as error:
            raise self._gone(error.strerror or str(error)) from error

    def _receive(self) -> tuple[int, bytes]:
        if self._sock is None:
            raise ArbiterGone(f"the connection to {self.path} is closed")
        try:
            data = self._sock.recv(4096)
        except OSError as error:
            raise self._gone(error.strerror or str(error)) from error
        if len(data) < ctypes.sizeof(abi.MsgHead):
            raise self._gone("closed the connection")
        head = abi.MsgHead.from_buffer_copy(data)
        if (head.magic, head.version, head.size) != (abi.MAGIC, abi.ABI_VERSION, len(data)):
            raise self._gone(f"sent a message of version {head.version}")
        return int(head.type), data

    def _gone(self, why: str) -> ArbiterGone:
        self.close()
        return ArbiterGone(f"the arbiter at {self.path}: {why}")
