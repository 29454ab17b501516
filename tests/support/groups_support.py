"""Support of tests of channel groups: simulated control device, an
arbiter with groups, a program.
"""

from __future__ import annotations

import array
import contextlib
import fcntl
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
import sim_tools

from enforcer.fdwait import readable_within
from simulator.sim import Simulator

SIM_DRIVER = s.BUILD / "sim" / "libcuda.so.1"
GROUPS, ACT, ACTED = 3, 4, 5
LOST, LEAVE = 1, 2
CONTINUE, STOP, SLICE = 0, 1, 2
SCHEDULE, DISABLE, TIMESLICE = 1, 2, 3
GRAPHICS, COPY = 1, 9
RM_CONTROL = 0xC020462A
BAD_STATE, TIMEOUT = 0x40, 0x65
_HEAD = struct.Struct("<4I Q48s 6I")
_ACT = struct.Struct("<4I 48s 2I 2Q 2I")


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
        assert len(data) == 864
        _, _, _, _, job, uuid, client, device, sub, ngroups, nchannels, flags = _HEAD.unpack_from(data)
        assert job == 4711
        words = struct.unpack_from(f"<{2 * ngroups}I", data, _HEAD.size)
        channels = struct.unpack_from(f"<{2 * nchannels}I", data, _HEAD.size + 8 * 32)
        return Told(
            uuid.rstrip(b"\0").decode(),
            client,
            device,
            sub,
            flags,
            dict(zip(words[::2], words[1::2], strict=True)),
            dict(zip(channels[::2], channels[1::2], strict=True)),
            fd,
            pid,
        )

    def command(self, handle: int, cmd: int, params: bytes) -> int:
        """A control command through the descriptor that came along; its NV_STATUS."""
        room = array.array("B", params)
        ask = array.array(
            "B", struct.pack("<4I Q 2I", self.client, handle, cmd, 0, room.buffer_info()[0], len(params), 0)
        )
        fcntl.ioctl(self.fd, RM_CONTROL, ask, True)
        self.answer = room.tobytes()
        return int(struct.unpack_from("<I", ask, 28)[0])

    def schedule(self, on: bool) -> list[int]:
        """Stops or continues all, as the arbiter does."""
        return [self.command(handle, 0xA06C0101, bytes([on, 0, 0])) for handle in self.groups]

    def slices(self) -> list[int]:
        """The slice of each group."""
        found = []
        for handle in self.groups:
            assert self.command(handle, 0xA06C0104, bytes(8)) == 0
            found.append(struct.unpack("<Q", self.answer)[0])
        return found

    def set_slices(self, us: int) -> None:
        for handle in self.groups:
            assert self.command(handle, 0xA06C0103, struct.pack("<Q", us)) == 0


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
        kind = struct.unpack_from("<I", head.ljust(16, b"\0"), 8)[0]
        if kind not in (GROUPS, ACTED):
            return super().answer(sock)
        data, control, _, _ = sock.recvmsg(4096, socket.CMSG_SPACE(16))
        fds = [fd for _, _, payload in control for fd in array.array("i", payload)]
        pid = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
        with self.news:
            if kind == GROUPS:
                assert len(fds) <= 1
                self.told.append(Told.parse(data, fds[0] if fds else -1, pid))
                self.left(sock, self.told[-1])
            else:
                _, _, _, _, _, _, _, _, serial, status, count = _ACT.unpack(data)
                self.acted.append(Acted(serial, status, count))
            self.news.notify_all()
        return True

    def left(self, sock: socket.socket, told: Told) -> None:
        if told.flags & LEAVE and self.leaves:
            told.schedule(True)
            with contextlib.suppress(OSError):  # the process is gone
                sock.send(self.message(told.uuid, CONTINUE, 0, told.client, 0))

    def message(self, uuid: str, action: int, method: int, value: int, serial: int) -> bytes:
        return _ACT.pack(s.MAGIC, 2, ACT, _ACT.size, uuid.encode(), action, method, value, serial, 0, 0)

    def hear(self, what: Callable[[], bool], seconds: float = 10.0) -> None:
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
        self, code: str = SERVE, *, preload: str = str(s.SHIM), wrap: tuple[str, ...] = (), **env: str
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
            pytest.skip("this machine allows no simulated control device (FUSE on a detached mount)")
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
