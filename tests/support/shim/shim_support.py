"""Support of the shim's tests: grants, an arbiter whose gate the test moves by hand, the probe
program.
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import socket
import struct
import subprocess
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

from enforcer.fdwait import readable_within, ready
from enforcer.wire import abi

ROOT = Path(__file__).resolve().parents[3]
BUILD = Path(os.environ.get("QGPU_TEST_BUILD", ROOT / "build"))
SHIM = BUILD / "shim" / "libcuda.so.1"
STUB = BUILD / "test" / "stub" / "libcuda.so.1"
PROBE = BUILD / "test" / "shim-probe"

CLOSED, NOTIFY, TRACK = abi.GATE_CLOSED, abi.GATE_NOTIFY, abi.GATE_TRACK
WINDOW, HOLD = abi.GATE_WINDOW, abi.GATE_HOLD
GIB, MIB = 1 << 30, 1 << 20
OUT_OF_MEMORY = 2
INVALID_HANDLE = 400
NOT_PERMITTED = 800
CAP = [24 * GIB]  # of most tests: one card, more than any of them asks for by accident
SEAL, SHRINK, GROW, WRITE, FUTURE_WRITE = 1, 2, 4, 8, 16
F_ADD_SEALS = 1033
UUID = "GPU-00000000-0000-0000-0000-0000000000{:02x}"
SYS_FUTEX, FUTEX_WAKE = 202, 1


def until(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    """Waits for a condition; fails the test when it does not come true in time."""
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit, "the condition did not come true in time"
        time.sleep(0.002)


def grant_bytes(
    run_dir: Path,
    caps: list[int],
    *,
    state: int = abi.GRANT_ACTIVE,
    driver: Path = STUB,
    uuids: list[str] | None = None,
    injection: int = 0,
    uid: int = 0,
    card_flags: int = 0,
    usable: int = 0,
) -> bytes:
    """A struct qg_grant for job 4711 with one card per cap."""
    page = abi.GrantPage(
        abi.MAGIC, abi.GRANT_VERSION, ctypes.sizeof(abi.GrantPage), state, 4711, uid
    )
    page.job_class, page.ncards, page.created_ns = abi.CLASS_OFFLINE, len(caps), 1
    page.node, page.run_dir, page.injection = b"n1", bytes(run_dir), injection
    page.usable = usable
    page.driver_path, page.shim_path = bytes(driver), bytes(SHIM)
    for number, cap in enumerate(caps):
        uuid = uuids[number] if uuids else UUID.format(number + 1)
        page.cards[number] = abi.GrantCardPage(
            uuid.encode(), share=30, flags=card_flags, mem_cap=cap, mem_total=80 * GIB
        )
    return bytes(page)


def sealed(name: str, content: bytes, seals: int = SEAL | SHRINK | GROW | WRITE) -> int:
    """An inheritable memfd with this content and these seals."""
    fd = os.memfd_create(name, os.MFD_ALLOW_SEALING)
    os.write(fd, content)
    fcntl.fcntl(fd, F_ADD_SEALS, seals)
    return fd


class Page:
    """A shared page that a test process reads and writes."""

    def __init__(self, name: str, size: int, seals: int) -> None:
        self.fd = os.memfd_create(name, os.MFD_ALLOW_SEALING)
        weakref.finalize(self, os.close, self.fd)
        os.ftruncate(self.fd, size)
        self.map = mmap.mmap(self.fd, size)
        fcntl.fcntl(self.fd, F_ADD_SEALS, seals)


class Tenant:
    """The pages of one card."""

    def __init__(self, cap: int, flags: int, lease_ms: int) -> None:
        self.gate = Page("gate", ctypes.sizeof(abi.GatePage), SEAL | SHRINK | GROW | FUTURE_WRITE)
        self.job = Page("job", ctypes.sizeof(abi.JobPage), SEAL | SHRINK | GROW)
        self.gate_page = abi.GatePage.from_buffer(self.gate.map)
        self.job_page = abi.JobPage.from_buffer(self.job.map)
        self.doorbell = os.eventfd(0, os.EFD_NONBLOCK)
        weakref.finalize(self, os.close, self.doorbell)
        self.asked: list[int] = []  # mem_used of each registration
        self.slots = 0
        for page in (self.gate_page, self.job_page):
            page.magic, page.version, page.size = abi.MAGIC, abi.ABI_VERSION, ctypes.sizeof(page)
        self.gate_page.job_id, self.gate_page.mem_cap = 4711, cap
        self.gate_page.window_us, self.gate_page.lease_ms = 500, lease_ms
        self.job_page.nslots = abi.MAX_PROCS
        self.set(flags)

    def beat(self) -> None:
        """The heartbeat, now."""
        self.gate_page.heartbeat_ns = time.monotonic_ns()

    def set(self, flags: int) -> int:
        """Moves the gate and wakes waiting threads; their number."""
        self.beat()
        self.gate_page.flags = flags
        self.gate_page.changed_ns = time.monotonic_ns()
        word = ctypes.c_void_p(ctypes.addressof(self.gate_page) + abi.GatePage.flags.offset)
        return ctypes.CDLL(None).syscall(SYS_FUTEX, word, FUTEX_WAKE, 1000, None, None, 0)

    def proc(self, field: str, slot: int = 0) -> int:
        """A field of a process's slot."""
        value: int = getattr(self.job_page.procs[slot], field)
        return value + sum(self.lanes(slot)) if field == "launches" else value

    def lanes(self, slot: int = 0) -> list[int]:
        """The launch counters of the threads; the last one is shared."""
        return [lane.launches for lane in self.job_page.procs[slot].lanes]

    def clear(self, slot: int) -> None:
        """What the arbiter does when a process died."""
        self.job_page.procs[slot] = abi.ProcSlot()

    def marker(self, index: int = 0, slot: int = 0) -> tuple[int, int]:
        """(submitted, done) of a stream."""
        marker = self.job_page.procs[slot].fences[index]
        return marker.submitted, marker.done

    def reach(self, index: int = 0, slot: int = 0) -> None:
        """What the GPU does at the end of a stream's work."""
        marker = self.job_page.procs[slot].fences[index]
        marker.done = marker.submitted

    def rings(self) -> int:
        """Rings since the last call."""
        try:
            return os.eventfd_read(self.doorbell)
        except BlockingIOError:
            return 0


class FakeArbiter:
    """Answers registrations; the gates are the test's."""

    def __init__(
        self,
        run_dir: Path,
        caps: list[int],
        flags: int = TRACK,
        lease_ms: int = 10000,
        speaks: int = abi.ABI_VERSION,
        uuids: list[str] | None = None,
    ) -> None:
        self.uuids = uuids or [UUID.format(n) for n in range(1, len(caps) + 1)]
        self.speaks = speaks  # the version of the messages that it understands
        self.run_dir = run_dir
        self.caps = caps
        self.flags = flags
        self.lease_ms = lease_ms
        self.status = 0
        self.unanswered = 0  # number of registrations to leave unanswered
        self.refused: dict[str, int] = {}  # cards with a status of their own
        self.tenants: dict[str, Tenant] = {}
        self.clients: list[socket.socket] = []
        self.grants_seen = 0
        self.versions: list[int] = []  # of each registration
        self.start()

    def start(self) -> None:
        """Fresh pages, fresh socket: as after a restart."""
        self.tenants = {
            uuid: Tenant(cap, self.flags, self.lease_ms)
            for uuid, cap in zip(self.uuids, self.caps, strict=True)
        }
        self.slots: dict[int, int] = {}
        path = self.run_dir / "enforcer.sock"
        path.unlink(missing_ok=True)
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listener.bind(str(path))
        self.listener.listen(16)
        self.stop_read, self.stop_write = os.pipe()
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def stop(self) -> None:
        """Dies: every connection ends. Once more does nothing."""
        if not self.thread.is_alive():
            return
        os.write(self.stop_write, b"x")
        self.thread.join()
        for sock in (self.listener, *self.clients):
            sock.close()
        for fd in (self.stop_read, self.stop_write):
            os.close(fd)
        self.clients = []
        (self.run_dir / "enforcer.sock").unlink(missing_ok=True)

    @property
    def card(self) -> Tenant:
        """The first card."""
        return self.tenants[self.uuids[0]]

    def run(self) -> None:
        """The thread."""
        while True:
            found = ready(
                [self.listener.fileno(), self.stop_read, *(c.fileno() for c in self.clients)], 3600
            )
            if self.stop_read in found:
                return
            for sock in [self.listener, *self.clients]:
                if sock.fileno() not in found:
                    continue
                if sock is self.listener:
                    self.clients.append(sock.accept()[0])
                elif not self.answer(sock):
                    self.clients.remove(sock)
                    sock.close()

    def answer(self, sock: socket.socket) -> bool:
        """One registration; False at the end of the connection."""
        try:
            data, control, _, _ = sock.recvmsg(4096, socket.CMSG_SPACE(4))
        except OSError:
            return False
        if not data:
            return False
        for _, _, payload in control:
            fds = array.array("i", payload)
            self.grants_seen += len(fds)
            for fd in fds:
                os.close(fd)
        head = abi.MsgHead.from_buffer_copy(data)
        version = head.version
        if head.type != abi.MSG_REGISTER:
            return True  # channel groups: nothing here stops them
        self.versions.append(version)
        if self.unanswered:
            self.unanswered -= 1
            return True
        if version != self.speaks:
            sock.sendmsg([self.registered(self.speaks, errno.EPROTO)])
            return False
        pid = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
        asked = abi.parse(abi.Register, data, "registration")
        uuid = asked.uuid.decode()
        tenant, status = self.tenants[uuid], self.refused.get(uuid, self.status)
        tenant.asked.append(asked.mem_used)
        slot = self.slots.setdefault(pid, len(self.slots))
        answer = self.registered(version, status, slot)
        fds = array.array(
            "i", [tenant.gate.fd, tenant.job.fd, tenant.doorbell] if not status else []
        )
        tenant.beat()
        sock.sendmsg([answer], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)] if fds else [])
        return True

    @staticmethod
    def registered(version: int, status: int, slot: int = 0) -> bytes:
        head = abi.MsgHead(abi.MAGIC, version, abi.MSG_REGISTERED, ctypes.sizeof(abi.Registered))
        return bytes(abi.Registered(head, status, slot))


class Probe:
    """The probe program under the shim."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def send(self, command: str) -> None:
        """Gives an order without waiting for the answer."""
        assert self.process.stdin
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()

    def answered(self, seconds: float = 0.0) -> bool:
        """True if an answer is there within the time."""
        return readable_within(self.process.stdout.fileno(), seconds)

    def answer(self, seconds: float = 60.0) -> str:
        """The next answer."""
        assert self.answered(seconds), "no answer: the program hangs"
        assert self.process.stdout
        return self.process.stdout.readline().strip()

    def ask(self, command: str) -> int:
        """An order and its numeric answer."""
        self.send(command)
        return int(self.answer())

    def text(self, command: str) -> str:
        """An order and its answer as text."""
        self.send(command)
        return self.answer()

    def counts(self) -> dict[str, int]:
        """Calls that reached the stub driver."""
        names = ("launches", "writes", "registers", "event_records", "allocs", "copies", "queries")
        return dict(zip(names, map(int, self.text("counts").split()), strict=True))

    def finish(self) -> str:
        """Ends the program normally; its stderr. Fails if it crashed."""
        out, err = self.process.communicate(timeout=60)
        assert self.process.returncode == 0, (self.process.returncode, out, err)
        return err


def in_usual_place(driver: Path = STUB) -> tuple[str, ...]:
    """A command before a program: this driver is where a shim without a grant searches it."""
    script = (
        "D=/run/opengl-driver/lib; mount -t tmpfs none /run && mkdir -p $D && cp $0 "
        "$D/libcuda.so.1 && exec $*"
    )
    return ("unshare", "--mount", "sh", "-c", script, str(driver))


def launch(
    run_dir: Path,
    env: dict[str, str],
    fds: tuple[int, ...] = (),
    wrap: tuple[str, ...] = (),
    shim: Path = SHIM,
) -> Probe:
    """Starts the probe with the shim preloaded and this environment. wrap: a command in front of
    it.
    """
    base = {"PATH": os.environ["PATH"], "LD_PRELOAD": str(shim), "QGPU_TEST_STUB": str(STUB)}
    twin = shim.with_name("shim-probe")  # a sanitizer's shim needs a program of the same kind
    process = subprocess.Popen(
        [*wrap, str(twin if twin.exists() else PROBE)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        bufsize=1,
        env=base | env,
        pass_fds=fds,
        cwd=run_dir,
    )
    return Probe(process)


@contextlib.contextmanager
def governed(
    run_dir: Path,
    caps: list[int],
    wrap: tuple[str, ...] = (),
    *,
    shim: Path = SHIM,
    env: dict[str, str] | None = None,
    usable: int = 0,
) -> Iterator[Probe]:
    """A probe with a grant in a sealed descriptor; killed at the end if it still lives."""
    fd = sealed("grant", grant_bytes(run_dir, caps, usable=usable))
    probe = launch(run_dir, {"QGPU_GRANT_FD": str(fd)} | (env or {}), (fd,), wrap, shim)
    os.close(fd)
    try:
        yield probe
    finally:
        if probe.process.poll() is None:
            probe.process.kill()
        probe.process.wait()


def learned(arbiter: FakeArbiter, probe: Probe, kernel_us: int, launches: int = 5) -> None:
    """In window mode, after `kernel_us` was sampled for function 0x10 in several launches."""
    assert probe.ask(f"elapsed_us {kernel_us}") == 0
    arbiter.card.set(WINDOW | TRACK)
    for _ in range(launches):
        assert probe.ask("launch 0 0x10 1") == 0
        assert probe.ask("sync 0") == 0


def started(probe: Probe, device: int = 0) -> Probe:
    """After cuInit and a context."""
    assert probe.ask("init") == 0
    assert probe.ask(f"ctx {device}") == 0
    return probe
