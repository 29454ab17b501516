"""Hostile tenants against the sanitized arbiter: it must not crash, not spin, not keep others
waiting.
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import mmap
import os
import random
import socket
import threading
import time
from pathlib import Path

import pytest
from arbiter_support import (
    ARBITER_ASAN,
    Arbiter,
    Tenant,
    arbiter,
    bpf_arrays,
    confined,
    connect,
    grant,
    register_message,
    settings,
    tenant_stats,
    wait_for,
)

from enforcer.wire import abi

pytestmark = pytest.mark.native
ARRAY = ("--job-memory", "array")


def cpu_seconds(one: Arbiter) -> float:
    """CPU time that the arbiter used so far."""
    fields = Path(f"/proc/{one.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def descriptors(one: Arbiter) -> int:
    """Number of descriptors that the arbiter holds."""
    return len(list(Path(f"/proc/{one.process.pid}/fd").iterdir()))


def still_serves(one: Arbiter, job_id: int) -> None:
    """Another job registers and gets its gate while somebody misbehaves."""
    tenant = Tenant(one.run_dir, grant(job_id))
    assert tenant.gate.magic == abi.MAGIC
    tenant.close()


def garbage(rng: random.Random) -> bytes:
    """A message that is damaged in one of many ways."""
    message = bytearray(register_message(rng.choice([0, 1, 2**64 - 1]), mem_used=2**64 - 1))
    kind = rng.randrange(5)
    if kind == 0:
        return rng.randbytes(rng.randrange(1, 600))
    if kind == 1:
        return bytes(message[: rng.randrange(1, len(message))])
    if kind == 2:
        message[24:72] = b"G" * 48
    elif kind == 3:
        message += rng.randbytes(rng.randrange(1, 2000))
    else:
        message[rng.randrange(16)] ^= 1 << rng.randrange(8)
    return bytes(message)


def test_garbage_on_the_public_socket(tmp_path: Path) -> None:
    rng = random.Random(4711)
    with arbiter(tmp_path, "--log-level", "error", binary=ARBITER_ASAN) as one, one.link() as link:
        link.sync([settings()], [grant(1), grant(2)])
        before = descriptors(one)
        for i in range(400):
            with connect(one.run_dir) as sock:
                for _ in range(3):
                    try:
                        sock.send(garbage(rng))
                    except (BrokenPipeError, ConnectionResetError):
                        break
            if i % 100 == 0:
                still_serves(one, 2)
        wait_for(
            lambda: descriptors(one) <= before + 4,
            "descriptors of garbage connections are given back",
        )
        still_serves(one, 2)


def test_garbage_on_the_control_socket(tmp_path: Path) -> None:
    rng = random.Random(42)
    with arbiter(tmp_path, binary=ARBITER_ASAN) as one, one.link() as link:
        link.sync([settings()], [grant(1)])
        for kind in range(0, 40):
            for size in (8, 16, 24, 96, 97, 216, 511):
                head = bytes(abi.MsgHead(abi.MAGIC, abi.ABI_VERSION, kind, size))
                with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
                    sock.connect(str(one.run_dir / abi.SOCK_CONTROL))
                    body = rng.randbytes(max(0, size - 16))
                    if kind == abi.CTL_CARD:
                        body = b"G" * len(body)
                    sock.settimeout(10)
                    sock.send((head + body)[:size])
                    with contextlib.suppress(ConnectionResetError):
                        drain(sock)
        link.sync([settings()], [grant(1)])
        assert [t.job_id for t in link.stats()] == [1]


def drain(sock: socket.socket) -> None:
    """Read one answer (of STATS: the list), or the end."""
    while data := sock.recv(4096):
        if abi.MsgHead.from_buffer_copy(data).type != abi.CTL_TENANT:
            return


def test_many_descriptors_in_one_message_do_not_leak(tmp_path: Path) -> None:
    with arbiter(tmp_path, binary=ARBITER_ASAN) as one, one.link() as link:
        link.sync([settings()], [grant(1), grant(2)])
        before = descriptors(one)
        fds = array.array("i", [0] * 40)
        for _ in range(20):
            with connect(one.run_dir) as sock:
                sock.sendmsg([register_message(1)], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)])
                assert sock.recv(4096) == b"", "refused by hanging up"
        wait_for(lambda: descriptors(one) <= before + 2, "nothing stays open")
        still_serves(one, 2)


def test_scribbling_over_the_job_page(tmp_path: Path) -> None:
    rng = random.Random(7)
    with arbiter(tmp_path, binary=ARBITER_ASAN) as one, one.link() as link:
        link.sync([settings()], [grant(1), grant(2, "online")])
        evil, good = Tenant(one.run_dir, grant(1)), Tenant(one.run_dir, grant(2, "online"))
        size = ctypes.sizeof(abi.JobPage)
        last = tenant_stats(link, 1)
        for _ in range(60):
            fill = rng.choice([b"\xff", b"\x00", b"\x7f", rng.randbytes(1)])
            evil.job_map[:] = fill * size if rng.random() < 0.5 else rng.randbytes(size)
            evil.ring()
            good.begin()
            good.finish()
            stats = tenant_stats(link, 1)
            assert stats.launches >= last.launches and stats.mem_denied >= last.mem_denied
            assert stats.busy_ns >= last.busy_ns and stats.mem_used <= 1 << 48
            last = stats
        assert not good.closed, "online is not touched by what another job writes"
        assert tenant_stats(link, 2).closed_share_ns == 0


def test_doorbell_storm_delays_no_other_tenant(tmp_path: Path) -> None:
    """Threads that ring without pause: the thread of the card stays mostly idle, online still
    preempts.
    """
    on, off = grant(1, "online"), grant(2)
    with arbiter(tmp_path) as one, one.link() as link:
        link.sync([settings()], [on, off])
        online, offline = Tenant(one.run_dir, on), Tenant(one.run_dir, off)
        stop = threading.Event()

        def storm() -> None:
            one_ring = (1).to_bytes(8, "little")
            while not stop.is_set():
                for _ in range(200):
                    os.write(offline.bell_fd, one_ring)
                time.sleep(0.0001)

        thread = threading.Thread(target=storm)
        thread.start()
        try:
            begin, used = time.monotonic(), cpu_seconds(one)
            time.sleep(0.7)
            share = (cpu_seconds(one) - used) / (time.monotonic() - begin)
            assert online.begin()
            wait_for(lambda: offline.closed, "online preempts during the storm", 2)
        finally:
            stop.set()
            thread.join()
        assert share < 0.3, f"the storm costs {share:.0%} of a core"
        online.finish()
        wait_for(lambda: not offline.closed, "the storm's doorbell works again", 5)


def test_blocking_doorbell_does_not_stop_the_arbiter(tmp_path: Path) -> None:
    """A job clears O_NONBLOCK on the shared description and drains the counter: nobody else
    reads it.
    """
    on, off = grant(1, "online"), grant(2)
    with arbiter(tmp_path, binary=ARBITER_ASAN) as one, one.link() as link:
        link.sync([settings()], [on, off])
        online, offline = Tenant(one.run_dir, on), Tenant(one.run_dir, off)
        os.set_blocking(offline.bell_fd, True)
        offline.ring()
        os.read(offline.bell_fd, 8)
        wait_for(lambda: not offline.closed, "open")
        assert online.begin()
        wait_for(lambda: offline.closed, "preempted as ever")


def punch(tenant: Tenant) -> int:
    """Tries every way of taking the job page's memory away; how many of them worked."""
    libc = ctypes.CDLL(None, use_errno=True)
    keep_size, hole, collapse, zero, done = 1, 2, 8, 16, 0
    with contextlib.suppress(OSError):
        tenant.job_map.madvise(
            mmap.MADV_REMOVE, 0, len(tenant.job_map) // mmap.PAGESIZE * mmap.PAGESIZE
        )
        done += 1
    for mode in (hole | keep_size, collapse, zero, zero | keep_size):
        length = ctypes.c_int64(len(tenant.job_map))
        done += libc.fallocate(tenant.job_fd, mode, ctypes.c_int64(0), length) == 0
    with contextlib.suppress(OSError):
        os.ftruncate(tenant.job_fd, 0)
        done += 1
    return done


@pytest.mark.skipif(not bpf_arrays(), reason="the kernel makes no BPF arrays here")
def test_no_job_can_take_memory_away_that_the_arbiter_reads(tmp_path: Path) -> None:
    """A reader of a page with a hole waits for whoever punches it, and that one may be given no
    processor at all.
    """
    with (
        arbiter(tmp_path, *ARRAY, binary=ARBITER_ASAN, prefix=confined()) as one,
        one.link() as link,
    ):
        link.sync([settings()], [grant(1), grant(2)])
        evil = Tenant(one.run_dir, grant(1))
        evil.begin()
        assert punch(evil) == 0
        assert evil.slot.fences[0].submitted == 1, "and what it wrote is there"
        still_serves(one, 2)
    assert "memory files" not in one.log.read_text()


@pytest.mark.parametrize("options", [(), ARRAY], ids=["default", "refused"])
def test_holes_in_a_job_page_that_is_a_file_only_delay(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    """By default, and where the kernel refuses the arbiter a BPF array: it says so, and jobs run
    all the same.
    """
    none = ("setpriv", "--bounding-set=-bpf,-sys_admin")
    with arbiter(tmp_path, *options, binary=ARBITER_ASAN, prefix=none) as one, one.link() as link:
        link.sync([settings()], [grant(1), grant(2)])
        assert one.log.read_text().count("no BPF array for job pages") == len(options) // 2
        evil = Tenant(one.run_dir, grant(1))
        evil.begin()
        assert punch(evil) >= 1
        evil.ring()
        wait_for(lambda: not tenant_stats(link, 1).busy, "an empty page shows no work")
        still_serves(one, 2)
