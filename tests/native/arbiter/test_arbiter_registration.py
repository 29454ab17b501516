"""Who may become part of a tenant, what a process gets, and what its death and the arbiter's
leave behind.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from arbiter_support import (
    CARD,
    CARD2,
    Arbiter,
    Tenant,
    arbiter,
    close_all,
    connect,
    exchange,
    grant,
    let_others_in,
    register_message,
    sealed,
    settings,
    tenant_stats,
    wait_for,
)

from enforcer.wire import abi

pytestmark = pytest.mark.native
HERE = Path(__file__).resolve().parents[2] / "support/node"
CHILD = """
import sys, time
sys.path.insert(0, {here!r})
from arbiter_support import Tenant, grant
from pathlib import Path
tenant = Tenant(Path({run_dir!r}), grant({job}, {job_class!r}), mem_used=123456)
tenant.slot.launches = 7
tenant.slot.mem_denied = 3
{extra}
print("registered", flush=True)
time.sleep(600)
"""


def child(one: Arbiter, job: int, job_class: str, extra: str = "") -> subprocess.Popen[str]:
    """A process that registered and now sleeps."""
    code = CHILD.format(
        here=str(HERE), run_dir=str(one.run_dir), job=job, job_class=job_class, extra=extra
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "registered\n"
    return process


def status_of(one: Arbiter, message: bytes, *proof: int) -> tuple[int, str]:
    """Send one registration, return the answer's status and sentence."""
    with connect(one.run_dir) as sock:
        answer, fds = exchange(sock, message, proof)
    for fd in (*fds, *proof):
        os.close(fd)
    return answer.status, answer.message.decode()


def test_pages_say_what_they_are(tmp_path: Path) -> None:
    mine = grant(9, "offline", 30, 3 << 30)
    with arbiter(tmp_path) as one, one.link() as link:
        link.sync([settings(window_us=700, lease_ms=9000)], [mine, grant(10, "online")])
        tenant = Tenant(one.run_dir, mine, mem_used=5000)
        gate = tenant.gate
        assert (gate.magic, gate.version, gate.size, gate.job_id) == (
            abi.MAGIC,
            abi.ABI_VERSION,
            128,
            9,
        )
        assert (gate.mem_cap, gate.window_us, gate.lease_ms) == (3 << 30, 700, 9000)
        assert (tenant.job.magic, tenant.job.nslots) == (abi.MAGIC, 128)
        assert (tenant.slot.pid, tenant.slot.mem_used) == (os.getpid(), 5000)
        assert tenant.answer.mem_cap == 3 << 30
        stats = tenant_stats(link, 9)
        assert (stats.mem_used, stats.mem_peak, stats.procs, stats.job_class) == (
            5000,
            5000,
            1,
            "offline",
        )
        link.revoke(10)
        assert tenant.gate.window_us == 20_000, "alone on the card, and nobody is expected"


def test_job_cannot_change_its_gate_or_the_sizes(tmp_path: Path) -> None:
    mine = grant(9)
    with arbiter(tmp_path) as one, one.link() as link:
        link.sync([settings()], [mine])
        tenant = Tenant(one.run_dir, mine)
        with pytest.raises(PermissionError):
            mmap.mmap(tenant.gate_fd, abi.PAGE, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        with pytest.raises(PermissionError):
            os.pwrite(tenant.gate_fd, b"\0\0\0\0", 64)
        reopened = os.open(f"/proc/self/fd/{tenant.gate_fd}", os.O_RDWR)
        with pytest.raises(PermissionError):
            mmap.mmap(reopened, abi.PAGE, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        os.close(reopened)
        for fd in (tenant.gate_fd, tenant.job_fd):
            for size in (0, 1 << 30):
                with pytest.raises(OSError):
                    os.ftruncate(fd, size)
            with pytest.raises(OSError):
                fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
        assert tenant.gate.magic == abi.MAGIC


def test_proof_of_membership(tmp_path: Path) -> None:
    mine, other = grant(1), grant(2)
    with arbiter(tmp_path) as one, one.link() as link:
        link.sync([settings()], [mine, other])
        good = abi.pack_grant(mine)
        assert status_of(one, register_message(1), sealed(good))[0] == 0
        for message, proof, why in [
            (register_message(1), (), "it sent no grant"),
            (register_message(1), (sealed(good, fcntl.F_SEAL_SEAL),), "not a sealed memory file"),
            (register_message(2), (sealed(good),), "the grant it sent is another job's"),
            (register_message(1), (sealed(good[:-1]),), "wrong size"),
            (register_message(1), (sealed(b"x" + good[1:]),), "another version"),
            (register_message(1), (os.open("/dev/zero", os.O_RDONLY),), "not a sealed memory file"),
            (register_message(77), (sealed(good),), "job 77 has no grant on card"),
            (register_message(1, CARD2), (sealed(good),), "has no card"),
        ]:
            status, text = status_of(one, message, *proof)
            assert status == errno.EPERM and why in text, text


@pytest.mark.skipif(os.getuid() != 0, reason="changing the user needs root")
def test_another_user_is_refused(tmp_path: Path) -> None:
    mine = grant(1)
    let_others_in(tmp_path)
    code = (
        "import os,sys; sys.path.insert(0, sys.argv[2]); from arbiter_support import *;"
        "os.setgid(12345); os.setuid(12345);"
        "proof = sealed(abi.pack_grant(grant(1)));"
        "a, fds = exchange(connect(Path(sys.argv[1])), register_message(1), (proof,));"
        "print(a.status, a.message.decode(), fds)"
    )
    with arbiter(tmp_path) as one, one.link() as link:
        link.sync([settings()], [mine])
        done = subprocess.run(
            [sys.executable, "-c", code, one.run_dir, HERE], capture_output=True, text=True
        )
        assert "runs as uid 12345, but job 1 belongs to uid 0" in done.stdout, done.stderr
        assert done.stdout.startswith(str(errno.EPERM)) and done.stdout.rstrip().endswith("[]")
        own = subprocess.run(
            [
                sys.executable,
                "-c",
                "import socket,sys; s=socket.socket(socket.AF_UNIX,socket.SOCK_SEQPACKET);"
                "import os; os.setuid(12345); s.connect(sys.argv[1])",
                one.run_dir / "arbiter.sock",
            ],
            capture_output=True,
            text=True,
        )
        assert "PermissionError" in own.stderr


def test_killed_process_frees_its_slot_and_its_work(tmp_path: Path) -> None:
    on, off = grant(1, "online"), grant(2)
    with arbiter(tmp_path) as one, one.link() as link:
        link.sync([settings()], [on, off])
        offline = Tenant(one.run_dir, off)
        process = child(one, 1, "online", "assert tenant.begin()")
        wait_for(lambda: offline.closed, "the child's kernel closes offline")
        assert tenant_stats(link, 1).mem_used == 123456
        process.send_signal(signal.SIGKILL)
        process.wait()
        killed = time.monotonic()
        wait_for(lambda: tenant_stats(link, 1).procs == 0, "the slot is free")
        wait_for(lambda: not offline.closed, "offline gets the card back")
        assert time.monotonic() - killed < 20
        stats = tenant_stats(link, 1)
        assert (stats.mem_used, stats.mem_peak, stats.launches, stats.mem_denied) == (
            0,
            123456,
            8,
            3,
        )
        again = Tenant(one.run_dir, on)
        assert again.answer.slot == 0 and again.slot.launches == 0
        again.slot.launches = 5
        again.ring()
        wait_for(
            lambda: tenant_stats(link, 1).launches == 13,
            "totals of the dead process stay in the sum",
        )


def test_end_of_the_connection_does_not_free_the_slot(tmp_path: Path) -> None:
    mine = grant(1)
    with arbiter(tmp_path) as one, one.link() as link:
        link.sync([settings()], [mine])
        tenant = Tenant(one.run_dir, mine)
        tenant.slot.launches = 4
        tenant.slot.fences[3].submitted = 9
        tenant.ring()
        tenant.sock.close()
        time.sleep(0.05)
        assert tenant_stats(link, 1).procs == 1
        again = Tenant(one.run_dir, mine, mem_used=77)
        assert again.answer.slot == tenant.answer.slot and tenant_stats(link, 1).procs == 1
        assert (again.slot.launches, again.slot.mem_used) == (4, 77)
        assert again.slot.fences[3].submitted == 0, "streams of before say nothing any more"
        wait_for(
            lambda: not tenant_stats(link, 1).busy, "not busy for ever because of an old marker"
        )


def test_before_the_list_is_complete_one_asks_again(tmp_path: Path) -> None:
    with arbiter(tmp_path) as one, one.link() as link:
        proof = abi.pack_grant(grant(1))
        assert status_of(one, register_message(1), sealed(proof))[0] == errno.EAGAIN
        link.sync([settings()], [])
        assert status_of(one, register_message(1), sealed(proof))[0] == errno.EPERM


def test_revoked_job_with_a_living_process_stays_closed_until_it_dies(tmp_path: Path) -> None:
    mine = grant(1)
    with arbiter(tmp_path) as one, one.link() as link:
        link.sync([settings()], [mine])
        tenant = Tenant(one.run_dir, mine)
        assert not tenant.closed
        link.revoke(1)
        assert tenant.closed and not tenant.flags & abi.GATE_WHY_MASK
        assert status_of(one, register_message(1), sealed(abi.pack_grant(mine)))[0] == errno.EPERM
        link.grant(mine)
        assert not tenant.closed, "the same grant again revives it"
        link.sync([settings()], [])
        assert tenant.closed, "a list without the job ends it as well"
        link.revoke(4242)


def test_revoked_job_without_processes_is_gone(tmp_path: Path) -> None:
    with arbiter(tmp_path) as one, one.link() as link:
        link.sync([settings()], [grant(1), grant(2)])
        process = child(one, 2, "offline")
        link.revoke(1)
        assert [t.job_id for t in link.stats()] == [2]
        link.revoke(2)
        process.kill()
        process.wait()
        wait_for(lambda: not link.stats(), "freed with its last process")


def test_trace_has_every_change(tmp_path: Path) -> None:
    on, off = grant(1, "online"), grant(2)
    trace = tmp_path / "gates.trace"
    with arbiter(tmp_path, "--trace", str(trace)) as one, one.link() as link:
        link.sync([settings()], [on, off])
        online, offline = Tenant(one.run_dir, on), Tenant(one.run_dir, off)
        wait_for(lambda: not offline.closed, "open")
        assert online.begin()
        wait_for(lambda: offline.closed, "closed")
        closed_at = offline.gate.changed_ns
        wait_for(
            lambda: trace.stat().st_size % 24 == 0 and closed_at in times(trace),
            "written within a moment",
            2,
        )
    events = [
        abi.GateEvent.from_buffer_copy(trace.read_bytes(), at)
        for at in range(0, trace.stat().st_size, 24)
    ]
    event = next(e for e in events if e.t_ns == closed_at)
    assert (event.job_id, event.card) == (2, 0) and event.flags & abi.GATE_WHY_PREEMPTED
    assert [e.t_ns for e in events] == sorted(e.t_ns for e in events)
    assert trace.stat().st_mode & 0o777 == 0o600


def times(trace: Path) -> set[int]:
    """Times of all records of a gate trace."""
    data = trace.read_bytes()
    return {abi.GateEvent.from_buffer_copy(data, at).t_ns for at in range(0, len(data) - 23, 24)}


def test_both_cards_of_a_job_over_one_connection(tmp_path: Path) -> None:
    both = grant(3, "offline", 50, 1 << 30, CARD, CARD2)
    with arbiter(tmp_path) as one, one.link() as link:
        link.sync([settings(CARD), settings(CARD2)], [both])
        proof = abi.pack_grant(both)
        with connect(one.run_dir) as sock:
            for uuid in (CARD, CARD2):
                sent = sealed(proof)
                answer, fds = exchange(sock, register_message(3, uuid), (sent,))
                assert answer.status == 0 and len(fds) == 3
                close_all([sent, *fds])
        assert sorted((t.uuid, t.procs) for t in link.stats()) == [(CARD, 1), (CARD2, 1)]


def test_a_short_second_connection_of_a_process_is_waited_for(tmp_path: Path) -> None:
    """The NVML library's, which a monitor's thread opens while another is in cuInit, is over in
    a moment; that of a second copy of the shim is not. Who registers meanwhile is told to ask
    again, then that there is another copy.
    """
    mine = grant(1)
    message, proof = register_message(1), abi.pack_grant(mine)
    with arbiter(tmp_path) as one, one.link() as link:
        link.sync([settings()], [mine])
        short = Tenant(one.run_dir, mine)
        status, text = status_of(one, message, sealed(proof))
        assert (status, "ask again" in text) == (errno.EAGAIN, True), text
        short.close()
        assert status_of(one, message, sealed(proof))[0] == 0
        stays, began = Tenant(one.run_dir, mine), time.monotonic()
        wait_for(
            lambda: status_of(one, message, sealed(proof))[0] == errno.ENOSPC,
            "it is older than a second",
        )
        assert time.monotonic() - began > 0.9
        assert "another copy of the driver library" in status_of(one, message, sealed(proof))[1]
        stays.close()
        assert status_of(one, message, sealed(proof))[0] == 0
