"""Tricks of tenants, each of which once worked: full doorbells, numbers of the dead, counters
that alternate.
"""

from __future__ import annotations

import array
import contextlib
import errno
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from arbiter_support import (
    ARBITER_ASAN,
    CARD,
    CARD2,
    Arbiter,
    Tenant,
    arbiter,
    close_all,
    connect,
    exchange,
    grant,
    register_message,
    sealed,
    settings,
    tenant_stats,
    wait_for,
)

from enforcer.wire import abi

pytestmark = pytest.mark.native
NATIVE = Path(__file__).resolve().parents[1] / "support/node"
LAST_PID = Path("/proc/sys/kernel/ns_last_pid")
# As many as there are slots, and one more, whose child keeps the connection for longer than it
# lives.
CROWD = """
import os, sys
sys.path.insert(0, {native!r})
from arbiter_support import *
run_dir, pipes = Path({run_dir!r}), [os.pipe(), os.pipe()]
(held, hold), (told, tell) = pipes
for number in range(128):
    if os.fork() == 0:
        os.close(hold)
        Tenant(run_dir, grant(1))
        os.write(tell, b"x")
        os.read(held, 1)
        os._exit(0)
for _ in range(128):
    os.read(told, 1)
if os.fork() == 0:
    sock, proof = connect(run_dir), sealed(abi.pack_grant(grant(1)))
    status = exchange(sock, register_message(1), (proof,))[0].status
    if os.fork() == 0:
        os.close(hold)
        os.read(held, 1)
    os._exit(status)
print(os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
sys.stdin.readline()
"""


def cpu_seconds(one: Arbiter) -> float:
    """CPU time that the arbiter used so far."""
    fields = Path(f"/proc/{one.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_one_process_too_many_whose_child_keeps_the_connection(tmp_path: Path) -> None:
    """It was forgotten, but its end was still waited for, as long as its connection lived."""
    with arbiter(tmp_path, "--log-level", "error", binary=ARBITER_ASAN) as one, one.link() as link:
        link.sync([settings()], [grant(1), grant(2)])
        code = CROWD.format(native=str(NATIVE), run_dir=str(one.run_dir))
        with subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as crowd:
            assert crowd.stdout and crowd.stdin
            assert crowd.stdout.readline() == f"{errno.ENOSPC}\n"
            Tenant(one.run_dir, grant(2)).close()
            used = cpu_seconds(one)
            time.sleep(0.5)
            assert cpu_seconds(one) - used < 0.25, (
                "it spins on the end of a process that it does not know"
            )
            Tenant(one.run_dir, grant(2)).close()
            crowd.stdin.write("\n")


@contextlib.contextmanager
def working(tenant: Tenant) -> Iterator[None]:
    """It says that it works, and then it does: a marker that the card has not reached, and no
    ring.
    """
    tenant.slot.launches += 1
    tenant.slot.fences[0].submitted = 1
    yield
    tenant.slot.fences[0].done = 1


@pytest.mark.parametrize("when", ["at rest", "in a storm of rings"])
def test_a_tenant_with_a_full_doorbell_is_sampled_all_the_same(tmp_path: Path, when: str) -> None:
    """No ring fits into a full one: a tenant that is told to ring was never looked at again."""
    fixed = settings(policy_offline="fixed-share")
    with arbiter(tmp_path, binary=ARBITER_ASAN) as one, one.link() as link:
        link.sync([fixed], [grant(1, "offline", 10), grant(2, "offline", 90)])
        evil, good = Tenant(one.run_dir, grant(1)), Tenant(one.run_dir, grant(2))
        rings = 200 if when != "at rest" else 0  # more than it takes to be muted
        for _ in range(rings):
            evil.ring()
        os.write(evil.bell_fd, (2**64 - 2 - rings).to_bytes(8, "little"))
        with pytest.raises(BlockingIOError):
            evil.ring()
        wait_for(lambda: evil.flags & abi.GATE_NOTIFY and not evil.closed, "idle, and told to ring")
        time.sleep(0.2)  # a storm is forgotten after 50 ms
        with working(evil):
            wait_for(lambda: evil.closed, "a share of 10 is used up sooner or later", 5)
        assert tenant_stats(link, 1).busy_ns > 0
        wait_for(good.begin, "the other one may go on")


def test_counters_that_alternate_stay_within_bounds(tmp_path: Path) -> None:
    """Each rise counts; that many once added up to a number that was lower than the one before."""
    with arbiter(tmp_path, binary=ARBITER_ASAN) as one, one.link() as link:
        link.sync([settings()], [grant(1)])
        evil, last = Tenant(one.run_dir, grant(1)), 0
        for turn in range(600):
            evil.slot.mem_denied = 2**40 * (turn % 2)
            denied = tenant_stats(link, 1).mem_denied
            assert last <= denied <= 2**48
            last = denied
        assert last == 2**48


def test_markers_of_a_former_program_end_with_it_in_any_order(tmp_path: Path) -> None:
    """The new program's registration is read before the end of the old one's connection."""
    with arbiter(tmp_path, binary=ARBITER_ASAN) as one, one.link() as link:
        link.sync([settings()], [grant(1)])
        old = Tenant(one.run_dir, grant(1))
        with working(old), connect(one.run_dir) as new:
            grants = one.run_dir / "grants"
            grants.mkdir(exist_ok=True)
            start = Path("/proc/self/stat").read_text().rsplit(")", 1)[1].split()[19]
            (grants / "1.run").write_text(f'{{"pid": {os.getpid()}, "start": {start}}}')
            answer, _ = exchange(new, register_message(77))  # it is accepted
            assert answer.status == errno.EPERM
            one.process.send_signal(signal.SIGSTOP)
            # proven by whose child it is: it need not wait for a broker
            new.send(register_message(1))
            old.sock.close()
            one.process.send_signal(signal.SIGCONT)
            data, control, _, _ = new.recvmsg(4096, socket.CMSG_SPACE(16))
            assert abi.parse(abi.Registered, data, "answer").status == 0
            fds = array.array("i")
            fds.frombytes(control[0][2])
            close_all(list(fds))
            assert old.slot.fences[0].submitted == 0


def fork_with_number(pid: int) -> int:
    """fork(), until the child has that number; what came before it is given back."""
    for _ in range(200):
        LAST_PID.write_text(str(pid - 1))
        made = os.fork()
        if made in (0, pid):
            if made == 0 and os.getpid() != pid:
                os._exit(0)
            return made
        os.waitpid(made, 0)
    pytest.skip("this machine gives numbers away too fast")


@pytest.mark.skipif(
    not os.access(LAST_PID, os.W_OK), reason="needs to choose the number of a process"
)
def test_connection_of_a_dead_process_does_not_join_a_later_one_with_its_pid(
    tmp_path: Path,
) -> None:
    both = grant(1, "offline", 50, 1 << 30, CARD, CARD2)
    with arbiter(tmp_path, binary=ARBITER_ASAN) as one, one.link() as link:
        link.sync([settings(CARD), settings(CARD2)], [both])
        ours, theirs = socket.socketpair()
        first = os.fork()
        if first == 0:  # its connection comes to us, which is as good as a child that keeps it
            with contextlib.suppress(OSError):
                mine = connect(one.run_dir)
                socket.send_fds(theirs, [b"x"], [mine.fileno()])
            os._exit(0)
        _, (fd,), _, _ = socket.recv_fds(ours, 1, 1)
        sock = socket.socket(fileno=fd)
        sock.settimeout(15)
        assert exchange(sock, register_message(77))[0].status == errno.EPERM, (
            "it is accepted, and its process known"
        )
        os.waitpid(first, 0)
        second = fork_with_number(first)
        if second == 0:
            try:
                ours.close()  # so that it ends with us
                kept = Tenant(one.run_dir, both, CARD)
                theirs.send(b"y")
                theirs.recv(1)
                kept.close()
            finally:
                os._exit(0)
        assert ours.recv(1) == b"y"
        proof = sealed(abi.pack_grant(both))
        answer, fds = exchange(sock, register_message(1, CARD2), (proof,))
        close_all([*fds, proof])
        assert answer.status == errno.ESRCH
        assert tenant_stats(link, 1, CARD2).procs == 0
        ours.send(b"z")
        os.waitpid(second, 0)
        sock.close()
