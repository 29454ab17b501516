"""A real arbiter process and fake tenants that speak the shim's side of the protocol, for tests."""

from __future__ import annotations

import array
import contextlib
import ctypes
import fcntl
import mmap
import os
import re
import signal
import socket
import struct
import subprocess
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from enforcer.wire import abi
from enforcer.wire.link import ArbiterLink, CardSettings
from gres.grant.store import Grant, GrantCard

ROOT = Path(__file__).resolve().parents[3]
# or a sanitized one
ARBITER = Path(os.environ.get("QGPU_TEST_ARBITER", ROOT / "build/bin/qgpu-arbiter"))
ARBITER_ASAN = ROOT / "build/test/qgpu-arbiter-asan"
ARBITER_TSAN = ROOT / "build/test/qgpu-arbiter-tsan"
ARBITER_NOHW = ROOT / "build/test/qgpu-arbiter-nohw"
# has 8 records of hardware preemption, and places for 512 processes
ARBITER_FEW = ROOT / "build/test/qgpu-arbiter-few"
CARD = "GPU-00000000-0000-0000-0000-000000000001"
CARD2 = "GPU-00000000-0000-0000-0000-000000000002"
GIB = 1 << 30
SLACK = 4  # times the deadline of an idle machine, for a busy one
DEADLINE_S = SLACK * 15.0


def wait_for(
    condition: Callable[[], object], what: str, seconds: float = DEADLINE_S / SLACK
) -> None:
    """Wait until the condition holds; fail with the sentence otherwise."""
    seconds *= SLACK
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"did not happen within {seconds} s: {what}"
        time.sleep(0.002)


def grant(
    job_id: int, job_class: str = "offline", share: int = 50, cap: int = 8 * GIB, *cards: str
) -> Grant:
    """An active grant of the current user."""
    return Grant(
        job_id=job_id,
        uid=os.getuid(),
        gid=os.getgid(),
        node="n1",
        state="active",
        job_class=job_class,  # type: ignore[arg-type]
        cards=tuple(
            GrantCard(uuid, i, i, share, cap, 80 * GIB) for i, uuid in enumerate(cards or (CARD,))
        ),
        run_dir="/run/qgpu",
        driver_path="/usr/lib/libcuda.so.1",
        shim_path="/usr/lib/qgpu/1/libcuda.so.1",
    )


def sealed(content: bytes, seals: int | None = None) -> int:
    """A memfd with the content and all seals, as SPANK makes it."""
    fd = os.memfd_create("qgpu-grant", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
    os.write(fd, content)
    every = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, every if seals is None else seals)
    return fd


def confined() -> tuple[str, ...]:
    """A command that takes away what the unit file does not leave the arbiter; only root has
    more than that.
    """
    unit = (ROOT / "configs/systemd/qgpu-arbiter.service.in").read_text()
    (line,) = re.findall(r"^CapabilityBoundingSet=(.*)$", unit, re.M)
    kept = ",".join("+" + word.removeprefix("CAP_").lower() for word in line.split())
    return ("setpriv", f"--bounding-set=-all,{kept}", "--no-new-privs") if os.geteuid() == 0 else ()


def bpf_arrays() -> bool:
    """Whether the kernel allows these, as for the arbiter: not in every container."""
    sys_bpf, map_create, array, mmapable = 321, 0, 2, 1 << 10
    attr = ctypes.create_string_buffer(struct.pack("IIIII", array, 4, 4096, 1, mmapable), 128)
    fd: int = ctypes.CDLL(None).syscall(sys_bpf, map_create, attr, len(attr))
    if fd >= 0:
        os.close(fd)
    return fd >= 0


@dataclass
class Arbiter:
    """A running arbiter."""

    run_dir: Path
    binary: Path = ARBITER
    args: tuple[str, ...] = ()
    prefix: tuple[str, ...] = ()  # a command that runs it

    def start(self) -> Arbiter:
        read, write = os.pipe()
        self.log = self.run_dir.parent / "arbiter.log"
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [
                    *self.prefix,
                    self.binary,
                    "--run-dir",
                    self.run_dir,
                    "--ready-fd",
                    str(write),
                    *self.args,
                ],
                pass_fds=[write],
                stderr=log,
                stdin=subprocess.DEVNULL,
            )
        os.close(write)
        ready = os.read(read, 16)
        os.close(read)
        assert ready == b"ready\n", f"the arbiter did not start: {self.log.read_text()}"
        return self

    def link(self) -> ArbiterLink:
        return ArbiterLink(self.run_dir, timeout=DEADLINE_S)

    def stop(self, sig: int = signal.SIGTERM) -> int:
        if self.process.poll() is None:
            self.process.send_signal(sig)
        return self.process.wait(timeout=DEADLINE_S)


@contextlib.contextmanager
def arbiter(
    tmp_path: Path, *args: str, binary: Path = ARBITER, prefix: tuple[str, ...] = ()
) -> Iterator[Arbiter]:
    """An arbiter that must still be alive and end with status 0 when the test is done."""
    run_dir = tmp_path / "run"
    run_dir.mkdir(mode=0o755, exist_ok=True)
    one = Arbiter(run_dir, binary, args, prefix).start()
    try:
        yield one
        alive = one.process.poll() is None
        assert alive, f"the arbiter ended by itself: {one.log.read_text()}"
    finally:
        status = one.stop()
    assert status == 0, one.log.read_text()


def settings(uuid: str = CARD, **changes: object) -> CardSettings:
    """Settings of a card with a short recovery."""
    return CardSettings(uuid, **{"grace_ms": 300, **changes})  # type: ignore[arg-type]


def register_message(job_id: int, uuid: str = CARD, mem_used: int = 0) -> bytes:
    """QG_MSG_REGISTER."""
    head = abi.head(abi.MSG_REGISTER, abi.Register)
    return bytes(abi.Register(head=head, job_id=job_id, uuid=uuid.encode(), mem_used=mem_used))


def let_others_in(path: Path) -> None:
    """Other users may reach what lies in this directory of a test."""
    # all of them: each run of pytest shuts the one that all runs share
    for each in (path, *path.parents):
        if each.stat().st_mode & 0o005 != 0o005:
            each.chmod(0o755)


def connect(run_dir: Path) -> socket.socket:
    """A connection to enforcer.sock."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sock.settimeout(DEADLINE_S)
    sock.connect(str(run_dir / abi.SOCK_REGISTER))
    return sock


def exchange(
    sock: socket.socket, message: bytes, fds: tuple[int, ...] = ()
) -> tuple[abi.Registered, list[int]]:
    """Send one message, return the answer and the descriptors that came with it."""
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    sock.sendmsg([message], rights)
    data, control, _, _ = sock.recvmsg(4096, socket.CMSG_SPACE(16))
    received = array.array("i")
    for _, _, payload in control:
        received.frombytes(payload)
    return abi.parse(abi.Registered, data, "answer"), list(received)


def held_by_family(one: Arbiter) -> set[str]:
    """What the arbiter's descriptors, and those of all processes that it made, stand for."""
    held: set[str] = set()
    for process in (one.process.pid, *children(one.process.pid)):
        with contextlib.suppress(OSError):
            for each in Path(f"/proc/{process}/fd").iterdir():
                with contextlib.suppress(OSError):
                    held.add(str(each.readlink()))
    return held


def children(pid: int) -> list[int]:
    """Of a process, and theirs."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                found += [int(child), *children(int(child))]
    return found


def close_all(fds: list[int]) -> None:
    for fd in fds:
        os.close(fd)


class Tenant:
    """One process (this one) as a tenant of one card."""

    def __init__(self, run_dir: Path, of: Grant, uuid: str = CARD, mem_used: int = 0) -> None:
        self.job_id = of.job_id
        self.sock = connect(run_dir)
        proof = sealed(abi.pack_grant(of))
        message = register_message(of.job_id, uuid, mem_used)
        self.answer, fds = exchange(self.sock, message, (proof,))
        os.close(proof)
        assert self.answer.status == 0, self.answer.message
        self.gate_fd, self.job_fd, self.bell_fd = fds
        self._ended = weakref.finalize(self, close_all, fds)  # also without an explicit close
        self.gate_map = mmap.mmap(self.gate_fd, abi.PAGE, mmap.MAP_SHARED, mmap.PROT_READ)
        self.job_map = mmap.mmap(self.job_fd, ctypes.sizeof(abi.JobPage))
        self.job = abi.JobPage.from_buffer(self.job_map)
        self.slot: abi.ProcSlot = self.job.procs[self.answer.slot]
        self.marker = 0

    @property
    def gate(self) -> abi.GatePage:
        return abi.GatePage.from_buffer_copy(self.gate_map[: ctypes.sizeof(abi.GatePage)])

    @property
    def flags(self) -> int:
        return int.from_bytes(self.gate_map[64:68], "little")

    @property
    def closed(self) -> bool:
        return bool(self.flags & abi.GATE_CLOSED)

    def ring(self) -> None:
        os.write(self.bell_fd, (1).to_bytes(8, "little"))

    def begin(self, stream: int = 0) -> bool:
        """A launch with a fence behind it, as the shim does it. False: the gate is closed."""
        if not self.slot.waiting:
            self.slot.launches += 1
        flags = self.flags
        if flags & abi.GATE_CLOSED:
            if not self.slot.waiting:
                self.slot.waiting = 1
                self.ring()
            return False
        self.slot.waiting = 0
        self.marker += 1
        self.slot.fences[stream].submitted = self.marker
        if flags & abi.GATE_NOTIFY:
            self.ring()
        return True

    def finish(self, stream: int = 0) -> None:
        """The card reaches the marker."""
        self.slot.fences[stream].done = self.slot.fences[stream].submitted

    def close(self) -> None:
        self.sock.close()
        self._ended()


def tenant_stats(link: ArbiterLink, job_id: int, uuid: str = CARD):  # type: ignore[no-untyped-def]
    """The measured state of one tenant, None when the arbiter does not know it."""
    return next((t for t in link.stats() if (t.job_id, t.uuid) == (job_id, uuid)), None)
