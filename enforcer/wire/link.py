"""Client of run_dir/arbiter.sock: sends cards and grants to the arbiter, and reads its figures.

Protocol: docs/specs/control.md. One thread at a time uses a link. After `ArbiterGone` the next call
connects again; the caller then sends all by `sync` and compares `boot_id`. An arbiter of another
version refuses each command (EPROTO).
"""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Generic, TypeVar

from enforcer.wire import abi
from enforcer.wire import messages as arbiter_wire
from enforcer.wire.messages import CardSettings as CardSettings
from enforcer.wire.messages import HardwareCard as HardwareCard
from enforcer.wire.messages import HardwareSettings as HardwareSettings
from enforcer.wire.messages import HardwareTenant as HardwareTenant
from enforcer.wire.messages import MemoryAction as MemoryAction
from enforcer.wire.messages import ProcessStats as ProcessStats
from enforcer.wire.messages import TenantStats as TenantStats
from enforcer.wire.messages import Want as Want
from enforcer.wire.messages import (
    card_message,
    grant_messages,
    hardware_message,
    memory_message,
)
from gres.grant.store import Grant

T = TypeVar("T")
_HEAD = ctypes.sizeof(abi.MsgHead)
_NO_COSTS: Mapping[str, int] = MappingProxyType({})


class ArbiterError(RuntimeError):
    """The arbiter refused a command; the text is a sentence, `errno` the reason as a number."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.errno = code


class ArbiterGone(ConnectionError):
    """The arbiter does not answer: not started, restarting, or stuck. Try again soon."""


_REFUSALS = {
    errno.EINVAL: "a value is out of range, contradicts another grant of the job, or is unknown to"
    " this version of it",
    errno.ENODEV: "the card is not known yet; send its settings first",
    errno.ENOSPC: "there is no room for more",
    errno.EEXIST: "the job is known with another user",
    errno.EBUSY: "control calls of the driver hang there",
    errno.EPROTO: "it speaks another version of the protocol",
}


def _hardware(data: bytes) -> HardwareTenant | HardwareCard:
    card = abi.MsgHead.from_buffer_copy(data).type == abi.CTL_HWCARD
    return arbiter_wire.hardware_card(data) if card else arbiter_wire.hardware_tenant(data)


class _Memory(Generic[T]):
    """Parsed answers of the last list, by their bytes: an unchanged one is the same object."""

    def __init__(self, parse: Callable[[bytes], T]) -> None:
        self._parse = parse
        self._known: dict[bytes, T] = {}

    def values(self, items: list[bytes]) -> list[T]:
        """The parsed messages."""
        known, parse = self._known, self._parse
        found = [known.get(data) or parse(data) for data in items]
        self._known = dict(zip(items, found, strict=True))
        return found


def _connect(path: Path, timeout: float) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
    sock.settimeout(timeout)
    try:
        sock.connect(str(path))
    except OSError as error:
        sock.close()
        raise ArbiterGone(f"no arbiter at {path}: {error.strerror or error}") from error
    return sock


class ArbiterLink:
    """A connection to the arbiter of one node. `timeout` is seconds for each answer.

    A command raises ArbiterGone without an answer, and ArbiterError if refused. `again`: each
    command may connect anew; else only `hello` does, so that a new arbiter is not mistaken for the
    old one.
    """

    def __init__(self, run_dir: str | Path, timeout: float = 2.0, again: bool = True) -> None:
        self._again = again
        self.path = Path(run_dir) / abi.SOCK_CONTROL
        self.timeout = timeout
        self.boot_id: int | None = None
        self._sock: socket.socket | None = None
        self._stats = _Memory(arbiter_wire.stats)
        self._procs = _Memory(arbiter_wire.process)
        self._hardware = _Memory(_hardware)

    def __enter__(self) -> ArbiterLink:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def connected(self) -> bool:
        """Whether a connection is held; the next command shows whether it is alive."""
        return self._sock is not None

    def fileno(self) -> int | None:
        """Descriptor that becomes readable when the arbiter ends; None while there is no
        connection.
        """
        return self._sock.fileno() if self._sock is not None else None

    def close(self) -> None:
        """Close the connection; the next command connects again."""
        if self._sock is not None:
            self._sock.close()
            self._sock = None

    def hello(self) -> int:
        """Begin a full list of grants; returns the arbiter's boot id."""
        self._sock = self._sock or _connect(self.path, self.timeout)
        return self._command(abi.head(abi.CTL_HELLO, abi.MsgHead), "hello")

    def card(self, settings: CardSettings) -> None:
        """Send the settings of one card; a repeated card is updated."""
        self._command(card_message(settings), f"the settings of card {settings.uuid}")

    def hardware(self, settings: HardwareSettings) -> None:
        """Send the settings of hardware preemption of one card.

        ArbiterError with ENOTSUP: this card or driver has no hardware preemption.
        """
        message = hardware_message(settings)
        try:
            self._command(message, f"hardware preemption of card {settings.uuid}")
        except ArbiterError as error:
            if error.errno == errno.ENOTSUP:
                why = (
                    f"card {settings.uuid} with driver {settings.driver_major} cannot be preempted"
                    " by hardware"
                )
                raise ArbiterError(f"the arbiter refused: {why}", error.errno) from None
            raise

    def grant(
        self, grant: Grant, contexts: Mapping[str, int] = _NO_COSTS, held: bool = False
    ) -> None:
        """Send a grant, one command per card; nothing if it is not active.

        `contexts` is bytes of a context by card. `held`: its gates are closed for its memory.
        """
        for message in grant_messages(grant, contexts, held):
            self._command(message, f"the grant of job {grant.job_id}")

    def revoke(self, job_id: int, uuid: str = "") -> None:
        """End a job, or with `uuid` its tenant of that card alone, whose processes then register
        again. Call `stats` first: totals are dropped. Unknown ones are no error.
        """
        message = abi.CtlRevoke(head=abi.head(abi.CTL_REVOKE, abi.CtlRevoke), job_id=job_id)
        message.uuid = abi.c_text(uuid, abi.UUID_LEN, "card UUID")
        self._command(message, f"the end of job {job_id}")

    def synced(self) -> None:
        """End the full list: the arbiter revokes grants not repeated since `hello`."""
        self._command(abi.head(abi.CTL_SYNCED, abi.MsgHead), "the end of the list")

    def sync(self, cards: Iterable[CardSettings], grants: Iterable[Grant]) -> int:
        """Send all: hello, cards, grants, synced. Returns the boot id."""
        boot_id = self.hello()
        for settings in cards:
            self.card(settings)
        for grant in grants:
            self.grant(grant)
        self.synced()
        return boot_id

    def stats(self) -> Sequence[TenantStats]:
        """The counters of all tenants, unordered. An unchanged tenant is the same object."""
        return self._stats.values(self._list(abi.CTL_STATS, abi.CTL_TENANT))

    def processes(self) -> list[ProcessStats]:
        """Every registered process."""
        return self._procs.values(self._list(abi.CTL_PROCS, abi.CTL_PROC))

    def hardware_tenants(self) -> list[HardwareTenant]:
        """The hardware preemption of each tenant."""
        return self.hardware_use()[0]

    def hardware_use(self) -> tuple[list[HardwareTenant], list[HardwareCard]]:
        """The same, and its state on each card."""
        items = self._list(abi.CTL_HWSTATS, abi.CTL_HWTENANT, abi.CTL_HWCARD)
        found = self._hardware.values(items)
        tenants = [item for item in found if isinstance(item, HardwareTenant)]
        return tenants, [item for item in found if isinstance(item, HardwareCard)]

    def gone(self, job_id: int, uuid: str, pid: int) -> None:
        """NVML does not list this dead process any more: its memory is free. Unknown ones are no
        error.
        """
        self._of_dead(abi.CTL_GONE, job_id, uuid, pid)

    def listed(self, job_id: int, uuid: str, pid: int) -> None:
        """NVML still lists this dead process: its memory stays charged."""
        self._of_dead(abi.CTL_LISTED, job_id, uuid, pid)

    def _of_dead(self, kind: int, job_id: int, uuid: str, pid: int) -> None:
        message = abi.CtlProcess(head=abi.head(kind, abi.CtlProcess), job_id=job_id, pid=pid)
        message.uuid = abi.c_text(uuid, abi.UUID_LEN, "card UUID")
        self._command(message, f"the end of process {pid}")

    def overhead(self, job_id: int, uuid: str, size: int, context: int = 0) -> None:
        """Charge bytes of contexts and modules of live processes, beside what these report.

        `context` is bytes that each new context reserves.
        """
        message = abi.CtlOverhead(head=abi.head(abi.CTL_OVERHEAD, abi.CtlOverhead), job_id=job_id)
        message.uuid = abi.c_text(uuid, abi.UUID_LEN, "card UUID")
        message.bytes = abi.bounded(size, 0, 2**64 - 1, "overhead")
        message.mem_context = abi.bounded(context, 0, 2**64 - 1, "context")
        self._command(message, f"the overhead of job {job_id}")

    def watch(self) -> socket.socket:
        """Turn this connection into one on which the arbiter reports; the link is of no more
        use.
        """
        self._command(abi.head(abi.CTL_WATCH, abi.MsgHead), "to watch processes")
        assert self._sock is not None
        sock, self._sock = self._sock, None
        return sock

    def memory(self, job_id: int, uuid: str, action: MemoryAction) -> None:
        """Say what allocations do that the driver refused. `job_id` 0: of all jobs of the card."""
        what = f"{action.name} for the memory of card {uuid}"
        self._command(memory_message(job_id, uuid, action), what)

    def _list(self, ask: int, *kinds: int) -> list[bytes]:
        """Ask for a list of messages of these kinds; the raw messages of it."""
        self._send(abi.CtlList(abi.head(abi.CTL_LIST, abi.CtlList), ask))
        items: list[bytes] = []
        while (end := self._packet(self._next(), kinds, items)) is None:
            pass
        kind, data = end
        if kind == abi.CTL_ACK and not items:
            raise ArbiterError("the arbiter does not know this question", errno.EPROTO)
        if kind != abi.CTL_END:
            raise self._gone(f"sent message type {kind} inside a list")
        self._note_boot(abi.parse(abi.CtlAck, data, "end of the list"))
        return items

    def _packet(
        self, data: bytes, kinds: tuple[int, ...], items: list[bytes]
    ) -> tuple[int, bytes] | None:
        """Add the messages of one packet to `items`; the first of another kind ends the list."""
        at, size, head = 0, 0, b""
        while True:
            one = data[at : at + size]
            # the same head as before needs no check
            if size and one.startswith(head) and len(one) == size:
                items.append(one)
                at += size
                continue
            if at and at == len(data):
                return None
            size = int.from_bytes(data[at + _HEAD - 4 : at + _HEAD], sys.byteorder)
            one = data[at : at + size] if size else data[at:]
            head = one[:_HEAD]
            kind = self._check(one)
            if kind not in kinds:
                return kind, one

    def _command(self, message: ctypes.Structure, what: str) -> int:
        self._send(message)
        data = self._next()
        kind = self._check(data)
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

    def _send(self, message: ctypes.Structure) -> None:
        if self._sock is None and not self._again:
            raise ArbiterGone(f"the connection to {self.path} ended")
        sock = self._sock = self._sock or _connect(self.path, self.timeout)
        try:
            sock.send(bytes(message))
        except OSError as error:
            raise self._gone(error.strerror or str(error)) from error

    def _next(self) -> bytes:
        """The next message, empty at the end of the connection."""
        if self._sock is None:
            raise ArbiterGone(f"the connection to {self.path} is closed")
        try:
            try:
                # recv() would first poll
                return os.read(self._sock.fileno(), abi.LIST_BYTES)
            except BlockingIOError:
                return self._sock.recv(abi.LIST_BYTES)
        except OSError as error:
            raise self._gone(error.strerror or str(error)) from error

    def _check(self, data: bytes) -> int:
        """Type of a message. Raises ArbiterGone if it is malformed."""
        if len(data) < _HEAD:
            raise self._gone("closed the connection")
        head = abi.MsgHead.from_buffer_copy(data)
        if head.version != abi.ABI_VERSION:
            raise self._gone(
                f"speaks version {head.version} of the protocol, and not version {abi.ABI_VERSION}"
            )
        if (head.magic, head.size) != (abi.MAGIC, len(data)):
            raise self._gone("sent what is no message")
        return int(head.type)

    def _gone(self, why: str) -> ArbiterGone:
        self.close()
        return ArbiterGone(f"the arbiter at {self.path}: {why}")
