"""Support of the shim's tests: grants, an arbiter whose gate the test moves by hand, the probe program."""

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

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("QGPU_TEST_BUILD", ROOT / "build"))
SHIM = BUILD / "shim" / "libcuda.so.1"
STUB = BUILD / "test" / "stub" / "libcuda.so.1"
PROBE = BUILD / "test" / "shim-probe"

MAGIC, VERSION, GRANT_VERSION, PAGE = 0x55504751, 2, 1, 4096
REGISTER = 1  # the type of a message
CLOSED, NOTIFY, TRACK, WINDOW, HOLD = 1, 2, 4, 8, 16
ACTIVE, WHOLE = 1, 3
GIB, MIB = 1 << 30, 1 << 20
OUT_OF_MEMORY = 2
INVALID_HANDLE = 400
NOT_PERMITTED = 800
CAP = [24 * GIB]  # of most tests: one card, more than any of them asks for by accident
SEAL, SHRINK, GROW, WRITE, FUTURE_WRITE = 1, 2, 4, 8, 16
F_ADD_SEALS = 1033
UUID = "GPU-00000000-0000-0000-0000-0000000000{:02x}"
SYS_FUTEX, FUTEX_WAKE = 202, 1
# Offsets in struct qg_proc.
FIELDS = {"waiting": (4, "I"), "launches": (8, "Q"), "mem_used": (16, "Q"), "mem_pending": (24, "Q")}
FIELDS |= {"mem_peak": (32, "Q"), "mem_denied": (40, "Q"), "gate_waits": (48, "Q"), "gate_wait_ns": (56, "Q")}
FIELDS |= {
    "inflight_us": (64, "Q"),
    "window_bypass": (72, "Q"),
    "rests_ns": (120, "Q"),
    "rests_launches": (128, "Q"),
    "copy_bytes": (80, "Q"),
    "unmarked": (88, "I"),
    "turn_ns": (104, "Q"),
    "queued": (112, "I"),
}


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
    state: int = ACTIVE,
    driver: Path = STUB,
    uuids: list[str] | None = None,
    injection: int = 0,
    uid: int = 0,
) -> bytes:
    """A struct qg_grant for job 4711 with one card per cap."""
    head = struct.pack(
        "<4I Q 4I Q", MAGIC, GRANT_VERSION, 1536 + 128 * 16, state, 4711, uid, 0, 2, len(caps), 1
    )
    strings = [(b"n1", 64), (bytes(run_dir), 160), (bytes(driver), 256), (bytes(SHIM), 256), (b"", 512)]
    body = head + b"".join(text.ljust(size, b"\0") for text, size in strings)
    body = (body + struct.pack("<I", injection)).ljust(1536, b"\0")
    for number, cap in enumerate(caps, 1):
        uuid = (uuids[number - 1] if uuids else UUID.format(number)).encode().ljust(48, b"\0")
        body += (uuid + struct.pack("<4I 2Q", 0, 0, 30, 0, cap, 80 * GIB)).ljust(128, b"\0")
    return body.ljust(1536 + 128 * 16, b"\0")


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

    def get(self, offset: int, kind: str) -> int:
        """Reads one integer."""
        return int(struct.unpack_from("<" + kind, self.map, offset)[0])

    def put(self, offset: int, kind: str, value: int) -> None:
        """Writes one integer at once: a reader must never see half of a heartbeat."""
        word = ctypes.c_uint64 if kind == "Q" else ctypes.c_uint32
        word.from_buffer(self.map, offset).value = value


class Tenant:
    """The pages of one card."""

    def __init__(self, cap: int, flags: int, lease_ms: int) -> None:
        self.gate = Page("gate", 128, SEAL | SHRINK | GROW | FUTURE_WRITE)
        self.job = Page("job", PAGE * 129, SEAL | SHRINK | GROW)
        self.doorbell = os.eventfd(0, os.EFD_NONBLOCK)
        weakref.finalize(self, os.close, self.doorbell)
        self.asked: list[int] = []  # mem_used of each registration
        self.slots = 0
        struct.pack_into("<4I 2Q 2I", self.gate.map, 0, MAGIC, VERSION, 128, 0, 4711, cap, 500, lease_ms)
        struct.pack_into("<4I", self.job.map, 0, MAGIC, VERSION, PAGE * 129, 128)
        self.set(flags)

    def beat(self) -> None:
        """The heartbeat, now."""
        self.gate.put(72, "Q", time.monotonic_ns())

    def set(self, flags: int) -> int:
        """Moves the gate and wakes waiting threads; their number."""
        self.beat()
        self.gate.put(64, "I", flags)
        self.gate.put(80, "Q", time.monotonic_ns())
        address = ctypes.addressof(ctypes.c_char.from_buffer(self.gate.map, 64))
        word = ctypes.c_void_p(address)
        return ctypes.CDLL(None).syscall(SYS_FUTEX, word, FUTEX_WAKE, 1000, None, None, 0)

    def proc(self, field: str, slot: int = 0) -> int:
        """A field of a process's slot."""
        offset, kind = FIELDS[field]
        value = self.job.get(PAGE * (1 + slot) + offset, kind)
        return value + sum(self.lanes(slot)) if field == "launches" else value

    def lanes(self, slot: int = 0) -> list[int]:
        """The launch counters of the threads; the last one is shared."""
        return [self.job.get(PAGE * (1 + slot) + 1024 + 64 * lane, "Q") for lane in range(16)]

    def clear(self, slot: int) -> None:
        """What the arbiter does when a process died."""
        self.job.map[PAGE * (1 + slot) : PAGE * (2 + slot)] = bytes(PAGE)

    def marker(self, index: int = 0, slot: int = 0) -> tuple[int, int]:
        """(submitted, done) of a stream."""
        at = PAGE * (1 + slot) + 512 + 8 * index
        return self.job.get(at, "I"), self.job.get(at + 4, "I")

    def reach(self, index: int = 0, slot: int = 0) -> None:
        """What the GPU does at the end of a stream's work."""
        at = PAGE * (1 + slot) + 512 + 8 * index
        self.job.put(at + 4, "I", self.job.get(at, "I"))

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
        speaks: int = VERSION,
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
            found = ready([self.listener.fileno(), self.stop_read, *(c.fileno() for c in self.clients)], 3600)
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
        version, kind = struct.unpack_from("<2I", data, 4)
        if kind != REGISTER:
            return True  # channel groups: nothing here stops them
        self.versions.append(version)
        if self.unanswered:
            self.unanswered -= 1
            return True
        if version != self.speaks:
            refusal = struct.pack("<4I iI Q", MAGIC, self.speaks, 2, 288, errno.EPROTO, 0, 0)
            sock.sendmsg([refusal.ljust(288, b"\0")])
            return False
        pid = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
        uuid = data[24:72].rstrip(b"\0").decode()
        tenant, status = self.tenants[uuid], self.refused.get(uuid, self.status)
        tenant.asked.append(struct.unpack_from("<Q", data, 72)[0])
        slot = self.slots.setdefault(pid, len(self.slots))
        head = struct.pack("<4I iI Q", MAGIC, version, 2, 288, status, slot, 0).ljust(288, b"\0")
        fds = array.array("i", [tenant.gate.fd, tenant.job.fd, tenant.doorbell] if not status else [])
        tenant.beat()
        sock.sendmsg([head], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)] if fds else [])
        return True


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
        out, err = self.process.communicate(timeout=20)
        assert self.process.returncode == 0, (self.process.returncode, out, err)
        return err


def in_usual_place(driver: Path = STUB) -> tuple[str, ...]:
    """A command before a program: this driver is where a shim without a grant searches it."""
    script = "D=/run/opengl-driver/lib; mount -t tmpfs none /run && mkdir -p $D && cp $0 $D/libcuda.so.1 && exec $*"
    return ("unshare", "--mount", "sh", "-c", script, str(driver))


def launch(
    run_dir: Path,
    env: dict[str, str],
    fds: tuple[int, ...] = (),
    wrap: tuple[str, ...] = (),
    shim: Path = SHIM,
) -> Probe:
    """Starts the probe with the shim preloaded and this environment. wrap: a command in front of it."""
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
) -> Iterator[Probe]:
    """A probe with a grant in a sealed descriptor; killed at the end if it still lives."""
    fd = sealed("grant", grant_bytes(run_dir, caps))
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
