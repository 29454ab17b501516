"""Memory of programs other than our workload: of several processes, and by calls of all kinds."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from programs_support import HEAD, HELPERS, OFFLINE, ended, line, python, tenant
from steps_support import start_of, step_record

from bench.harness.node import BUILD, Rig, wait_for

pytestmark = [
    pytest.mark.native,
    pytest.mark.skipif(os.getuid() != 0, reason="needs root: sealed grants"),
]


# ---- memory of several processes -----------------------------------------------------------------


def test_two_processes_are_never_admitted_to_the_same_bytes() -> None:
    done = subprocess.run(
        [BUILD / "test/shim-race", "1500"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, (
        done.stdout or "both processes held more than half of the cap at once"
    )
    first, second = map(int, done.stdout.split())
    assert min(first, second) > 100


HOLDS = """
    d = Cuda()
    print(bool(d.try_alloc({} * MIB)), flush=True)
    sys.stdin.read()
"""


def test_cap_holds_while_a_sibling_has_not_moved_to_the_new_arbiter(rig: Rig) -> None:
    """Between the two registrations the job's memory is on two pages."""
    holder = python(
        rig, "d = Cuda(); p = d.alloc(3 * GIB); print('up', flush=True); time.sleep(60)"
    )
    asks = "print(bool(d.try_alloc(2 * GIB)), bool(d.try_alloc(512 * MIB)), flush=True)\n"
    other = python(rig, "d = Cuda(); print('up', flush=True); signal.sigwait(GO)\n" + asks)
    assert (line(holder), line(other)) == ("up", "up")
    holder.send_signal(signal.SIGSTOP)
    rig.arbiter.kill()
    rig.arbiter.wait()
    rig.start_arbiter()
    wait_for("the other one registers again", lambda: tenant(rig).procs == 1)
    other.send_signal(signal.SIGUSR1)
    assert ended(other)[0] == "False True"
    holder.kill()
    holder.communicate()


def test_dead_sibling_of_the_old_arbiter_gives_its_memory_back(rig: Rig) -> None:
    holder = python(
        rig, "d = Cuda(); p = d.alloc(3 * GIB); print('up', flush=True); time.sleep(60)"
    )
    asks = "signal.sigwait(GO); print(bool(d.try_alloc(4 * GIB)))"
    other = python(rig, "d = Cuda(); print('up', flush=True)\n" + asks)
    assert (line(holder), line(other)) == ("up", "up")
    rig.arbiter.kill()
    rig.arbiter.wait()
    holder.kill()
    holder.communicate()
    rig.start_arbiter()
    wait_for("the other one registers again", lambda: tenant(rig).procs == 1)
    other.send_signal(signal.SIGUSR1)
    assert ended(other)[0] == "True"


def test_ten_restarts_lose_no_tenant_and_no_byte(rig: Rig) -> None:
    churn = """
        d = Cuda(); keep = d.alloc(256 * MIB); n = 0; print("up", flush=True)
        while not signal.sigpending():
            p = d.try_alloc(MIB << (n % 10)); n += 1; d.launch(20)
            if p: d.call("cuMemFree_v2", c.c_uint64(p))
        d.call("cuCtxSynchronize"); print(n, flush=True); time.sleep(60)
    """
    processes = [python(rig, churn) for _ in range(3)]
    assert [line(p) for p in processes] == ["up"] * 3
    for _ in range(10):
        rig.arbiter.kill()
        rig.arbiter.wait()
        rig.start_arbiter()
        wait_for("all register again", lambda: tenant(rig).procs == 3)
    for process in processes:
        process.send_signal(signal.SIGUSR1)
    assert all(int(line(p)) > 20 for p in processes)
    assert tenant(rig).mem_used == 3 * 256 << 20
    processes[0].kill()
    wait_for("its memory is back", lambda: tenant(rig).mem_used == 2 * 256 << 20, 1)
    for process in processes:
        process.kill()
        assert process.communicate()[1] == ""


def test_children_without_the_descriptor_share_the_cap(rig: Rig, tmp_path: Path) -> None:
    """fork and exec with close_fds: known by their ancestor, as under a slurmstepd."""
    child = HEAD + textwrap.dedent(HOLDS.format(1536))
    code = f"""
    argv = [{sys.executable!r}, "-c", {child!r}]
    d = Cuda()
    run = lambda: subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    children = [run() for _ in range(4)]
    got = [p.stdout.readline().strip() == "True" for p in children]
    print(sum(got), d.free_memory() // MIB, flush=True)
    children[got.index(True)].kill()
    print(bool(d.try_alloc(1536 * MIB)))
    for p in children: p.stdin.close(); p.wait()
    """
    script = tmp_path / "parent.py"
    script.write_text(HEAD + textwrap.dedent(code))
    parent = rig.spawn([sys.executable, str(script)], rig.grants[OFFLINE], env=HELPERS)
    step_record(rig.run_dir, OFFLINE, parent.pid, start_of(parent.pid))
    out, err = ended(parent)
    assert out.split() == ["2", "1024", "True"]
    assert "refused: job 2 holds" in err


# ---- memory calls of all kinds -------------------------------------------------------------------

VMM = """
class Prop(c.Structure):
    _fields_ = [(n, c.c_int) for n in ("type", "handles", "where", "id")] + [("x", c.c_char * 32)]
prop, d, U = Prop(1, 0, 1, 0), Cuda(), c.c_uint64
def create(size):
    h = U()
    return d.raw("cuMemCreate", c.byref(h), c.c_size_t(size), c.byref(prop), U(0)), h
free = lambda: d.free_memory() // MIB
"""


def test_virtual_memory_counts_until_the_last_mapping_is_gone(rig: Rig) -> None:
    code = (
        VMM
        + """
g = c.c_size_t(); d.call("cuMemGetAllocationGranularity", c.byref(g), c.byref(prop), 0)
print(g.value, create(g.value + 1)[0], create(8 * GIB)[0])
(s, h), base = create(GIB), U()
d.call("cuMemAddressReserve", c.byref(base), c.c_size_t(4 * GIB), c.c_size_t(0), U(0), U(0))
print(d.raw("cuMemMap", U(base.value + 1), c.c_size_t(GIB), c.c_size_t(0), h, U(0)))
for at in (base.value, base.value + GIB):
    d.call("cuMemMap", U(at), c.c_size_t(GIB), c.c_size_t(0), h, U(0))
print(d.raw("cuMemMap", base, c.c_size_t(GIB), c.c_size_t(0), h, U(0)), d.raw("cuMemFree_v2", base))
access = (c.c_int * 3)(1, 0, 3)
d.call("cuMemSetAccess", base, c.c_size_t(2 * GIB), access, c.c_size_t(1))
d.call("cuMemsetD8_v2", U(base.value + 5), 7, c.c_size_t(1)); b = c.create_string_buffer(1)
d.call("cuMemcpyDtoH_v2", b, U(base.value + GIB + 5), c.c_size_t(1)); again = U()
d.call("cuMemRetainAllocationHandle", c.byref(again), base)
print(b.raw[0], again.value == h.value, free())
d.call("cuMemRelease", h); d.call("cuMemRelease", h); print(d.raw("cuMemRelease", h), free())
print(d.raw("cuMemAddressFree", base, c.c_size_t(4 * GIB)), end=" ")
print(d.raw("cuMemUnmap", base, c.c_size_t(MIB)))
d.call("cuMemUnmap", base, c.c_size_t(GIB)); print(free())
d.call("cuMemUnmap", U(base.value + GIB), c.c_size_t(GIB))
print(free(), bool(d.try_alloc(4 * GIB)))
d.call("cuMemAddressFree", base, c.c_size_t(4 * GIB))
"""
    )
    out, err = ended(python(rig, code))
    assert out.splitlines() == [
        "2097152 1 2",
        "1",
        "1 1",
        "7 True 3072",
        "1 3072",
        "1 1",
        "3072",
        "4096 True",
    ]
    assert "allocation of 8.0 GiB refused" in err


def test_reported_memory_can_be_allocated(rig: Rig) -> None:
    """cuMemGetInfo, cuDeviceTotalMem and the allocations of every kind agree to the byte."""
    code = """
    d = Cuda(); t = c.c_size_t(); d.call("cuDeviceTotalMem_v2", c.byref(t), 0)
    U, p, s = c.c_uint64, c.c_uint64(), d.stream(); rows, to = c.c_size_t(MIB), c.byref(p)
    print(t.value == d.free_memory() == 4 * GIB); held = []
    for call in (lambda: d.raw("cuMemAllocManaged", to, c.c_size_t(GIB), 1),
                 lambda: d.raw("cuMemAllocAsync", to, c.c_size_t(GIB), s),
                 lambda: d.raw("cuMemAllocPitch_v2", to, c.byref(t), c.c_size_t(1000), rows, 4)):
        assert call() == 0; held.append(p.value)
    left = d.free_memory(); print(left // MIB, d.try_alloc(left + 1), d.try_alloc(left) > 0)
    print(d.free_memory())
    d.call("cuMemFreeAsync", U(held[1]), s); d.call("cuStreamSynchronize", s)
    print(d.free_memory() == GIB)
    for n in range(20000): d.call("cuMemFree_v2", U(d.try_alloc(1 + n % 4096)))
    print(d.free_memory() == GIB)
    """
    out, _ = ended(python(rig, code))
    assert out.splitlines() == ["True", "1024 0 True", "0", "True", "True"]
