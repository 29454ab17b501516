"""Hostile programs and registration: who may register, and what can be done with the pages."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
from arbiter_support import (
    ARBITER_ASAN,
    Tenant,
    bpf_arrays,
    connect,
    exchange,
    let_others_in,
    register_message,
    sealed,
)
from test_hostile_live import ENDLESS, EVIL, HONEST, end, node, tenant

from bench.harness.node import Rig, wait_for
from enforcer.wire import abi

pytestmark = [
    pytest.mark.native,
    pytest.mark.skipif(os.getuid() != 0, reason="needs root: sealed grants"),
]


def asked(rig: Rig, job: int, proof: int | None, uuid: str | None = None) -> tuple[int, str]:
    """Status and sentence of a registration by this process."""
    with connect(rig.run_dir) as sock:
        answer, fds = exchange(
            sock, register_message(job, uuid or rig.uuids[0]), () if proof is None else (proof,)
        )
    for fd in fds:
        os.close(fd)
    return answer.status, answer.message.decode()


def test_registration_cannot_be_forged_or_replayed(tmp_path: Path) -> None:
    with node(tmp_path, ARBITER_ASAN) as rig:
        good = rig.sealed(rig.grants[EVIL])
        assert asked(rig, EVIL, good)[0] == 0
        assert asked(rig, HONEST, good)[0] == 1, "the grant of another job"
        assert asked(rig, HONEST, None)[0] == 1, "no grant at all"
        unsealed = sealed(abi.pack_grant(rig.grants[HONEST]), seals=0)
        assert asked(rig, HONEST, unsealed)[0] == 1, "one that can still be written"
        plain = os.open(rig.grant_path(HONEST), os.O_RDONLY)
        assert asked(rig, HONEST, plain)[0] == 1, "a file"
        short = sealed(abi.pack_grant(rig.grants[HONEST])[:-1])
        assert asked(rig, HONEST, short)[0] == 1, "too short"
        assert asked(rig, EVIL, good, "GPU-00000000-dead-beef-0000-000000000000")[0] == 1, (
            "a card that is not here"
        )
        assert "no grant" in asked(rig, 4711, good)[1]
        stale = rig.sealed(rig.grants[EVIL])
        wait_for(
            "the first registration's process is this one", lambda: tenant(rig, EVIL).procs == 1
        )
        rig.grants.pop(EVIL)
        rig.sync()
        status, why = asked(rig, EVIL, stale)
        assert (status, "no grant" in why) == (1, True), "the job has ended"
        for fd in (good, unsealed, plain, short, stale):
            os.close(fd)


USERNS = """
import ctypes, os, sys
sys.path[:0] = sys.argv[4].split(os.pathsep)
from arbiter_support import connect, exchange, register_message, sealed
from pathlib import Path
uid = 65534
os.setgid(uid); os.setuid(uid)
libc = ctypes.CDLL(None, use_errno=True)
if libc.prctl(4, 1, 0, 0, 0) or libc.unshare(0x10000000):
    print("no user namespaces here"); sys.exit()
open("/proc/self/setgroups", "w").write("deny")
open("/proc/self/uid_map", "w").write(f"0 {uid} 1")
open("/proc/self/gid_map", "w").write(f"0 {uid} 1")
assert os.getuid() == 0
forged = sealed(bytes.fromhex(sys.argv[3]))
message = register_message(int(sys.argv[2]), sys.argv[5])
answer, fds = exchange(connect(Path(sys.argv[1])), message, (forged,))
print(answer.status, answer.message.decode(), len(fds))
"""


def test_root_of_a_user_namespace_is_not_root(tmp_path: Path) -> None:
    """It is uid 0 where it lives, and its memfd says so there; here it is an ordinary user."""
    from dataclasses import replace

    with node(tmp_path) as rig:
        let_others_in(tmp_path)
        theirs = replace(rig.grants[EVIL], job_id=9, uid=65534, gid=65534)
        rig.grants[9] = theirs
        rig.sync()
        paths = os.pathsep.join(
            [str(Path(__file__).resolve().parents[1] / "support/node"), *filter(None, sys.path)]
        )
        for job, want in ((HONEST, "runs as uid 65534"), (9, "")):
            words = [
                str(rig.run_dir),
                str(job),
                abi.pack_grant(rig.grants[job]).hex(),
                paths,
                rig.uuids[0],
            ]
            done = subprocess.run(
                [sys.executable, "-c", USERNS, *words],
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
            if "no user namespaces" in done.stdout:
                pytest.skip(done.stdout.strip())
            assert done.stdout.startswith("1 ") and done.stdout.rstrip().endswith(" 0"), (
                done.stdout,
                done.stderr,
            )
            assert want in done.stdout


@pytest.mark.parametrize("pages", ["file", "array"])
def test_what_a_job_is_handed_cannot_be_turned_against_the_arbiter(
    tmp_path: Path, pages: str
) -> None:
    """Truncated, unsealed, mapped for writing, written, punched: refused, or without any effect
    on others.
    """
    import fcntl
    import mmap

    punched = pages == "file" or not bpf_arrays()
    with node(tmp_path, ARBITER_ASAN, pages=pages) as rig:
        honest = rig.workload(rig.grants[HONEST], *ENDLESS)
        wait_for("it works", lambda: tenant(rig, HONEST).launches > 100)
        mine = Tenant(rig.run_dir, rig.grants[EVIL], rig.uuids[0])
        pages = len(mine.job_map) // mmap.PAGESIZE * mmap.PAGESIZE
        for fd in (mine.gate_fd, mine.job_fd):
            for size in (0, 4096, 1 << 30):
                if size != os.fstat(fd).st_size:
                    with pytest.raises(OSError):
                        os.ftruncate(fd, size)
            with pytest.raises(OSError):  # a job that seals would stop the arbiter's writes
                fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
            with contextlib.suppress(OSError):
                os.close(os.open(f"/proc/self/fd/{fd}", os.O_RDWR | os.O_TRUNC))
        assert os.fstat(mine.gate_fd).st_size >= abi.PAGE
        for attempt in (
            lambda: os.pwrite(mine.gate_fd, b"\0" * 64, 64),
            lambda: mmap.mmap(
                mine.gate_fd, abi.PAGE, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE
            ),
        ):
            with pytest.raises(PermissionError):
                attempt()
        for _ in range(200):
            with contextlib.nullcontext() if punched else pytest.raises(OSError):
                mine.job_map.madvise(mmap.MADV_REMOVE, 0, pages)
            mine.ring()
        before = tenant(rig, HONEST).launches
        wait_for("the honest one goes on", lambda: tenant(rig, HONEST).launches > before + 500, 10)
        mine.close()
        end(honest)
