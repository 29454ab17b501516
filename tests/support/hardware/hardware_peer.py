"""A process with groups of the simulated driver that reports them to an arbiter, truly or falsely.

Runs in processes of its own (see hardware_support.Program).
"""

from __future__ import annotations

import array
import ctypes as c
import os
import socket
import time
from pathlib import Path

import sim_rm
from arbiter_support import GIB, Tenant, grant, wait_for
from sim_client import Cuda

from enforcer.wire import abi

NOT_READY = 600


class Peer:
    """A context on one card, a registration for its job, and what the card's driver made of the
    context.
    """

    def __init__(self, run_dir: str, job: int, kind: str, card: int, cards: list[str]) -> None:
        self.cuda = Cuda(card)
        self.job, self.uuid, self.run_dir = job, cards[card], Path(run_dir)
        self.grant = grant(job, kind, 50, 8 * GIB, *cards)
        self.tenant: Tenant | None = None
        self.register()
        self.learn()

    def register(self) -> None:
        """With the arbiter that serves now, over a new connection; the end of the one before may
        be news to it.
        """
        if self.tenant is not None:
            self.tenant.close()
        limit = time.monotonic() + 60
        while True:
            try:
                self.tenant = Tenant(self.run_dir, self.grant, self.uuid)
                return
            except AssertionError as error:
                if b"ask again" not in str(error).encode() or time.monotonic() > limit:
                    raise
            time.sleep(0.05)

    def learn(self) -> None:
        """Reads what is below the client, by the driver."""
        rm = self.rm = sim_rm.Rm()
        self.client = sim_rm.FIRST_CLIENT
        while rm.info(self.client, self.client, 2) < 0 and self.client < sim_rm.FIRST_CLIENT + 64:
            self.client += 1
        objects = rm.objects(self.client)
        raw = bytes.fromhex(self.uuid[4:].replace("-", ""))
        subs = [h for h, kind in objects.items() if kind == sim_rm.SUBDEVICE]
        self.subdevice = next(h for h in subs if rm.gid(self.client, h) == raw)
        self.device = rm.info(self.client, self.subdevice, 1)
        self.groups = [
            h
            for h, kind in objects.items()
            if kind == sim_rm.GROUP and rm.info(self.client, h, 1) == self.device
        ]
        self.channels = [
            (h, rm.info(self.client, h, 1))
            for h, kind in objects.items()
            if kind == sim_rm.CHANNEL and rm.info(self.client, h, 1) in self.groups
        ]

    def message(self, flags: int = 0, **changes: object) -> bytes:
        """QG_MSG_GROUPS with the truth, but for the changes."""
        told = {
            "client": self.client,
            "device": self.device,
            "subdevice": self.subdevice,
            "uuid": self.uuid,
        }
        told |= {"job": self.job, "groups": self.groups, "channels": self.channels, **changes}
        m = abi.Groups(head=abi.head(abi.MSG_GROUPS, abi.Groups), job_id=told["job"], flags=flags)
        m.uuid = str(told["uuid"]).encode()
        m.client, m.device, m.subdevice = told["client"], told["device"], told["subdevice"]
        groups, channels = list(told["groups"]), list(told["channels"])  # type: ignore[call-overload]
        m.ngroups, m.nchannels = len(groups), len(channels)
        for i, handle in enumerate(groups[: abi.MAX_GROUPS]):
            m.groups[i].handle, m.groups[i].engine = handle, 1 if i == 0 else 8 + i
        for i, (handle, group) in enumerate(channels[: abi.MAX_CHANNELS]):
            m.channels[i].handle, m.channels[i].group = handle, group
        return bytes(m)

    def send(self, message: bytes, fd: int | None = -1) -> None:
        """Sends it with a descriptor: -1 the control device, None none."""
        fds = [] if fd is None else [self.rm.fd if fd == -1 else fd]
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        self.tenant.sock.sendmsg([message], rights)

    def tell(self, flags: int = 0, fd: int | None = -1, **changes: object) -> None:
        self.send(self.message(flags, **changes), fd)

    def flood(self, messages: int) -> int:
        """Sends messages as fast as possible, registering again after a
        hang-up; the number sent.
        """
        sent = 0
        for _ in range(messages):
            try:
                self.tell()
                sent += 1
            except OSError:
                self.register()
        return sent

    def order(self, seconds: float = 15.0) -> dict[str, int]:
        """The next order of the arbiter."""
        self.tenant.sock.settimeout(seconds)
        m = abi.parse(abi.Act, self.tenant.sock.recv(4096), "order")
        return {name: getattr(m, name) for name in ("action", "method", "value", "serial")}

    def acted(self, order: dict[str, int], status: int = 0, do: bool = True) -> None:
        """Executes the order and answers it."""
        if do and order["action"] != abi.ACT_SLICE:
            for group in self.groups:
                self.rm.schedule(self.client, group, order["action"] == abi.ACT_CONTINUE)
        m = abi.Act(
            head=abi.head(abi.MSG_ACTED, abi.Act), status=status, count=len(self.groups), **order
        )
        m.uuid = self.uuid.encode()
        self.tenant.sock.send(bytes(m))

    def work(self, us: float) -> None:
        """One kernel, with its marker behind it."""
        wait_for(self.tenant.begin, "the gate opens")
        self.cuda.launch(us)

    def running(self) -> bool:
        """Whether the kernel is unfinished; reports to the arbiter if it is finished."""
        status = self.cuda.raw("cuStreamQuery", None)
        assert status in (0, NOT_READY), status
        if status == 0:
            self.tenant.finish()
        return status == NOT_READY

    def slices(self) -> list[int]:
        return [self.rm.get_slice(self.client, group) for group in self.groups]


__all__ = ["Peer", "abi", "c", "os", "sim_rm", "socket"]
