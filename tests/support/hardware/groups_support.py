"""Support of tests of channel groups: simulated control device, an
arbiter with groups, a program.
"""

from __future__ import annotations

import array
import contextlib
import json
import os
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import shim_support as s
import sim_rm
import sim_tools

from enforcer.fdwait import readable_within
from enforcer.wire import abi
from simulator.sim import Simulator

SIM_DRIVER = s.BUILD / "sim" / "libcuda.so.1"
LOST, LEAVE = abi.GROUPS_LOST, abi.GROUPS_LEAVE
CONTINUE, STOP, SLICE = abi.ACT_CONTINUE, abi.ACT_STOP, abi.ACT_SLICE
SCHEDULE, DISABLE, TIMESLICE = abi.HW_SCHEDULE, abi.HW_DISABLE, abi.HW_TIMESLICE
GRAPHICS, COPY = 1, 9
BAD_STATE, TIMEOUT = 0x40, 0x65


@dataclass
class Told:
    """One QG_MSG_GROUPS."""

    uuid: str
    client: int
    device: int
    subdevice: int
    flags: int
    groups: dict[int, int]
    channels: dict[int, int]
    fd: int
    pid: int

    @staticmethod
    def parse(data: bytes, fd: int, pid: int) -> Told:
        found = abi.parse(abi.Groups, data, "groups")
        assert found.job_id == 4711
        return Told(
            found.uuid.decode(),
            found.client,
            found.device,
            found.subdevice,
            found.flags,
            {group.handle: group.engine for group in found.groups[: found.ngroups]},
            {channel.handle: channel.group for channel in found.channels[: found.nchannels]},
            fd,
            pid,
        )

    def command(self, handle: int, cmd: int, params: bytes) -> int:
        """A control command through the descriptor that came along; its NV_STATUS."""
        room = bytearray(params)
        status = sim_rm.Rm(self.fd).control(self.client, handle, cmd, room)
        self.answer = bytes(room)
        return status

    def schedule(self, on: bool) -> list[int]:
        """Stops or continues all, as the arbiter does."""
        return [self.command(handle, sim_rm.SCHEDULE, bytes([on, 0, 0])) for handle in self.groups]

    def slices(self) -> list[int]:
        """The slice of each group."""
        found = []
        for handle in self.groups:
            assert self.command(handle, sim_rm.GET_TIMESLICE, bytes(8)) == 0
            found.append(struct.unpack("<Q", self.answer)[0])
        return found

    def set_slices(self, us: int) -> None:
        for handle in self.groups:
            assert self.command(handle, sim_rm.SET_TIMESLICE, struct.pack("<Q", us)) == 0


@dataclass
class Acted:
    """One QG_MSG_ACTED."""

    serial: int
    status: int
    count: int


class GroupsArbiter(s.FakeArbiter):
    """Also receives groups, answers those that leave, and gives orders."""

    def __init__(self, run_dir: Path, uuids: list[str], *, lease_ms: int = 10000) -> None:
        self.told: list[Told] = []
        self.acted: list[Acted] = []
        self.news = threading.Condition()
        self.leaves = True  # reports when it has left a client alone
        self.serial = 0
        super().__init__(run_dir, [24 * s.GIB] * len(uuids), lease_ms=lease_ms, uuids=uuids)

    def answer(self, sock: socket.socket) -> bool:
        try:
            head = sock.recv(16, socket.MSG_PEEK)
        except OSError:
            return False
        kind = abi.MsgHead.from_buffer_copy(head.ljust(16, b"\0")).type
        if kind not in (abi.MSG_GROUPS, abi.MSG_ACTED):
            return super().answer(sock)
        data, control, _, _ = sock.recvmsg(4096, socket.CMSG_SPACE(16))
        fds = [fd for _, _, payload in control for fd in array.array("i", payload)]
        pid = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
        with self.news:
            if kind == abi.MSG_GROUPS:
                assert len(fds) <= 1
                self.told.append(Told.parse(data, fds[0] if fds else -1, pid))
                self.left(sock, self.told[-1])
            else:
                act = abi.parse(abi.Act, data, "answer")
                self.acted.append(Acted(act.serial, act.status, act.count))
            self.news.notify_all()
        return True

    def left(self, sock: socket.socket, told: Told) -> None:
        if told.flags & LEAVE and self.leaves:
            told.schedule(True)
            with contextlib.suppress(OSError):  # the process is gone
                sock.send(self.message(told.uuid, CONTINUE, 0, told.client, 0))

    def message(self, uuid: str, action: int, method: int, value: int, serial: int) -> bytes:
        return bytes(
            abi.Act(abi.head(abi.MSG_ACT, abi.Act), uuid.encode(), action, method, value, serial)
        )

    def hear(self, what: Callable[[], bool], seconds: float = 60.0) -> None:
        """Waits until received messages make it true."""
        with self.news:
            assert self.news.wait_for(what, seconds), (self.told, self.acted)

    def known(self, uuid: str | None = None) -> list[Told]:
        """The arbiter's present state: the last message of each client and device, if it has
        groups.
        """
        last = {(t.pid, t.client, t.device): t for t in self.told}
        return [t for t in last.values() if t.groups and (uuid is None or t.uuid == uuid)]

    def order(
        self, action: int, method: int, value: int = 0, card: int = 0, wait: bool = True
    ) -> Acted | None:
        """To every process."""
        self.serial += 1
        serial = self.serial
        for client in self.clients:
            client.send(self.message(self.uuids[card], action, method, value, serial))
        if not wait:
            return None
        self.hear(lambda: any(a.serial == serial for a in self.acted))
        return next(a for a in self.acted if a.serial == serial)

    def stop(self) -> None:
        super().stop()
        for told in self.told:
            if told.fd >= 0:
                os.close(told.fd)
        self.told.clear()


SERVE = """
import ctypes as c, json, os, signal, sys, threading, time
from sim_client import Cuda
lib = c.CDLL("libcuda.so.1")
names = globals()
for line in sys.stdin:
    try:
        answer = eval(line, names)
    except SyntaxError:
        answer = exec(line.replace("; ", "\\n"), names)
    print(json.dumps(answer), flush=True)
"""


class Program:
    """A Python program under the shim that executes lines from the test."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def send(self, code: str) -> None:
        assert self.process.stdin
        self.process.stdin.write(code + "\n")
        self.process.stdin.flush()

    def answered(self, seconds: float) -> bool:
        assert self.process.stdout
        return readable_within(self.process.stdout.fileno(), seconds)

    def answer(self, seconds: float = 60.0) -> object:
        assert self.answered(seconds), "no answer: the program hangs"
        assert self.process.stdout
        line = self.process.stdout.readline()
        assert line, self.process.communicate()[1]
        return json.loads(line)

    def ask(self, code: str, seconds: float = 60.0) -> object:
        self.send(code)
        return self.answer(seconds)

    def context(self) -> None:
        """A primary context with the kernel."""
        self.ask("cuda = Cuda()")

    def finish(self) -> str:
        out, err = self.process.communicate(timeout=60)
        assert self.process.returncode == 0, (self.process.returncode, out, err)
        return err


@dataclass
class Place:
    """A simulator with a control device, an arbiter and programs of one job."""

    sim: Simulator
    arbiter: GroupsArbiter
    directory: Path
    programs: list[subprocess.Popen[str]]

    @property
    def log(self) -> list[dict[str, object]]:
        """Calls of the control device, as the device saw them."""
        lines = (self.directory / "control.log").read_text(encoding="utf-8").splitlines()
        return [json.loads(line) for line in lines]

    def grant(self, injection: int = 0) -> bytes:
        caps = [24 * s.GIB] * len(self.arbiter.uuids)
        return s.grant_bytes(
            self.directory, caps, driver=SIM_DRIVER, uuids=self.arbiter.uuids, injection=injection
        )

    def program(
        self,
        code: str = SERVE,
        *,
        preload: str = str(s.SHIM),
        wrap: tuple[str, ...] = (),
        **env: str,
    ) -> Program:
        """Starts one."""
        fd = s.sealed("grant", self.grant())
        environment = sim_tools.client_env(self.sim, QGPU_GRANT_FD=str(fd), **env)
        if preload:
            environment["LD_PRELOAD"] = preload
        process = subprocess.Popen(
            [*wrap, sys.executable, "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
            pass_fds=(fd,),
        )
        os.close(fd)
        self.programs.append(process)
        return Program(process)


@contextlib.contextmanager
def place(
    directory: Path, cards: int = 1, lease_ms: int = 10000, extra: tuple[str, ...] = ()
) -> Iterator[Place]:
    """Skips where this machine allows no control device."""
    sim = sim_tools.start(
        directory, cards=cards, extra=("--control-log", str(directory / "control.log"), *extra)
    )
    try:
        if sim.control_device() is None:
            pytest.skip(
                "this machine allows no simulated control device (FUSE on a detached mount)"
            )
        arbiter = GroupsArbiter(directory, sim_tools.uuids(sim), lease_ms=lease_ms)
        here = Place(sim, arbiter, directory, [])
        try:
            yield here
        finally:
            for process in here.programs:
                if process.poll() is None:
                    process.kill()
                process.wait()
            arbiter.stop()
    finally:
        sim.stop()
