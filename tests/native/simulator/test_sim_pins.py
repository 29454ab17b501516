"""Words that a stream writes into memory which the program registered: every kind of memory, and
what becomes of it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from sim_tools import make, run, spawn, start, until

from simulator.sim import Simulator

pytestmark = pytest.mark.native

# How the program gets two pages at `at`: mapped by the device side as well (the name begins with
# "mapped"), or not.
KINDS = {
    "private": "m = mmap.mmap(-1, 8192, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)",
    "anonymous, shared": "m = mmap.mmap(-1, 8192)",
    "file": "f = open('plain', 'w+b'); f.truncate(8192); m = mmap.mmap(f.fileno(), 8192)",
    "memfd that may shrink": "m = memory(0)",
    "memfd, private": "m = memory(F_SEAL_SHRINK, mmap.MAP_PRIVATE)",
    "mapped": "m = memory(F_SEAL_SHRINK)",
    "mapped from its second page": "m = memory(F_SEAL_SHRINK, size=16384, offset=4096)",
}
PROGRAM = """
import fcntl, mmap
F_SEAL_SHRINK = 2
def memory(seals, kind=mmap.MAP_SHARED, size=8192, offset=0):
    fd = os.memfd_create("qgpu-pin-test", os.MFD_ALLOW_SEALING); os.ftruncate(fd, size)
    fcntl.fcntl(fd, 1033, seals)
    return mmap.mmap(fd, 8192, kind, offset=offset)
libc = c.CDLL(None); libc.mmap.restype = c.c_void_p
def register(g, at, size=4096): g.call("cuMemHostRegister_v2", c.c_void_p(at), c.c_size_t(size), 3)
def address(m): return c.addressof(c.c_char.from_buffer(m))
def write(g, s, at, value, bits=32):
    word = c.c_uint32(value) if bits == 32 else c.c_uint64(value)
    g.call(f"cuStreamWriteValue{bits}_v2", s, c.c_uint64(at), word, 0)
    g.call("cuStreamSynchronize", s)
def at32(at): return c.c_uint32.from_address(at)
def at64(at): return c.c_uint64.from_address(at)
"""


@pytest.fixture(scope="module", autouse=True)
def built() -> None:
    make("build/bin/qgpu-simgpu", "build/sim/libcuda.so.1")


@pytest.fixture
def sim(tmp_path: Path) -> Iterator[Simulator]:
    with start(tmp_path / "sim", minor_base=os.getpid() % 1000 * 16) as simulator:
        yield simulator


def _mapped(sim: Simulator) -> int:
    return Path(f"/proc/{sim.process.pid}/maps").read_text().count("memfd:qgpu-pin-test")


@pytest.mark.parametrize("kind", KINDS)
def test_words_arrive_in_every_kind_of_memory(
    sim: Simulator, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    process = spawn(
        sim,
        PROGRAM
        + KINDS[kind]
        + """
        g = Cuda(); s = g.stream(); at = address(m); register(g, at)
        for n in range(1, 50):
            write(g, s, at + 64, n); assert at32(at + 64).value == n
            write(g, s, at + 4088, n << 33, 64); assert at64(at + 4088).value == n << 33
            write(g, s, at + 4084, n); assert at64(at + 4088).value == n << 33
        g.call("cuStreamWaitValue32_v2", s, c.c_uint64(at + 128), c.c_uint32(5), 1)
        g.call("cuStreamWaitValue64_v2", s, c.c_uint64(at + 136), c.c_uint64(1 << 40), 0)
        write_later = at32(at + 128), at64(at + 136)
        assert g.raw("cuStreamQuery", s) == 600
        write_later[0].value = 5
        assert g.raw("cuStreamQuery", s) == 600
        write_later[1].value = 3 << 40
        g.call("cuStreamSynchronize", s)
        print("written", flush=True); input()
        g.call("cuMemHostUnregister", c.c_void_p(at)); print("unregistered", flush=True); input()
        """.replace("\n        ", "\n"),
    )
    assert process.stdout and process.stdin
    assert process.stdout.readline() == "written\n", process.communicate()[1]
    assert _mapped(sim) == kind.startswith("mapped")
    process.stdin.write("\n")
    process.stdin.flush()
    assert process.stdout.readline() == "unregistered\n"
    assert _mapped(sim) == 0
    process.communicate("\n", timeout=60)
    assert process.returncode == 0


def test_memory_of_dead_processes_is_released(sim: Simulator) -> None:
    process = spawn(
        sim,
        PROGRAM
        + "m = memory(F_SEAL_SHRINK); g = Cuda(); register(g, address(m)); print(1, flush=True); "
        "input()",
    )
    assert process.stdout
    assert process.stdout.readline() == "1\n"
    assert _mapped(sim) == 1
    process.kill()
    process.communicate()
    assert until(lambda: _mapped(sim) == 0, 5)


def test_another_memory_at_the_same_place_receives_its_own_words(sim: Simulator) -> None:
    run(
        sim,
        PROGRAM
        + """
m = memory(F_SEAL_SHRINK); g = Cuda(); s = g.stream(); at = address(m); register(g, at)
write(g, s, at, 7)
g.call("cuMemHostUnregister", c.c_void_p(at))
# MAP_FIXED | MAP_ANONYMOUS | MAP_PRIVATE
here = libc.mmap(c.c_void_p(at), c.c_size_t(8192), 3, 0x32, -1, c.c_long(0))
assert here == at and at32(at).value == 0
register(g, at); write(g, s, at, 8); assert at32(at).value == 8
""",
    )


def test_a_file_that_is_cut_short_hurts_its_program_only(sim: Simulator) -> None:
    cut = PROGRAM + (
        "fd = os.memfd_create('qgpu-pin-test', os.MFD_ALLOW_SEALING); os.ftruncate(fd, 8192)\n"
        "m = mmap.mmap(fd, 8192); g = Cuda(); s = g.stream(); at = address(m); register(g, at); "
        "write(g, s, at, 1)\n"
        "os.ftruncate(fd, 0); write(g, s, at, 2); print('went on')"
    )
    assert run(sim, cut) == "went on\n"
    holes = PROGRAM + (
        "m = memory(F_SEAL_SHRINK); g = Cuda(); s = g.stream(); at = address(m); register(g, at); "
        "write(g, s, at, 1)\n"
        "m.madvise(mmap.MADV_REMOVE); assert at32(at).value == 0; write(g, s, at, 2); assert "
        "at32(at).value == 2"
    )
    run(sim, holes)
    short = PROGRAM + (
        "fd = os.memfd_create('qgpu-pin-test', os.MFD_ALLOW_SEALING); os.ftruncate(fd, 4096)\n"
        "fcntl.fcntl(fd, 1033, F_SEAL_SHRINK); at = libc.mmap(None, c.c_size_t(8192), 3, 1, fd, "
        "c.c_long(0))\n"
        "g = Cuda(); s = g.stream(); register(g, at, 8192); write(g, s, at, 1); assert "
        "at32(at).value == 1\n"
        "write(g, s, at + 4096, 2); write(g, s, at, 3); assert at32(at).value == 3"
    )
    run(sim, short)
    assert sim.process.poll() is None


def test_more_registrations_than_are_mapped_work_all(sim: Simulator) -> None:
    run(
        sim,
        PROGRAM
        + """
g = Cuda(); s = g.stream(); all = [memory(F_SEAL_SHRINK) for n in range(80)]
for m in all: register(g, address(m))
for n, m in enumerate(all): write(g, s, address(m), n + 1)
assert [at32(address(m)).value for m in all] == list(range(1, 81))
for m in all: g.call("cuMemHostUnregister", c.c_void_p(address(m)))
""",
    )
    assert _mapped(sim) == 0


def test_a_word_where_registered_memory_was_is_a_fault(sim: Simulator) -> None:
    """A registration ends with its context, for all others too, and then whoever writes there
    faults.
    """
    out = run(
        sim,
        PROGRAM
        + """
def case(end):
    first, second = c.c_void_p(), c.c_void_p(); m = memory(F_SEAL_SHRINK); at = address(m)
    kept.append(m)
    g.call("cuCtxCreate_v2", c.byref(first), 0, 0); register(g, at)
    g.call("cuCtxCreate_v2", c.byref(second), 0, 0); g.load(); s = g.stream()
    write(g, s, at, 1); assert at32(at).value == 1
    g.launch(500_000, s); g.call("cuStreamWriteValue32_v2", s, c.c_uint64(at), 2, 0)
    if end == "context": g.call("cuCtxDestroy_v2", first)
    if end == "registration": g.call("cuMemHostUnregister", c.c_void_p(at))
    print(g.raw("cuStreamSynchronize", s), at32(at).value)
kept = []; g = Cuda(); case("neither"); case("context"); case("registration")
g.call("cuCtxSetCurrent", g.ctx); g.launch(10); g.call("cuCtxSynchronize")
""",
    )
    assert out.splitlines() == ["0 2", "700 1", "700 1"]


def test_other_memory_where_registered_memory_was_receives_its_words(sim: Simulator) -> None:
    """What the driver allocates may lie where the program's registered memory lay."""
    run(
        sim,
        PROGRAM
        + """
g = Cuda(); s = g.stream(); been = set()
for n in range(20):
    m = libc.mmap(None, c.c_size_t(1 << 21), 3, 0x22, -1, c.c_long(0)); register(g, m, 1 << 21)
    been.add(m)
    g.call("cuMemHostUnregister", c.c_void_p(m)); libc.munmap(c.c_void_p(m), c.c_size_t(1 << 21))
    h = c.c_void_p(); g.call("cuMemHostAlloc", c.byref(h), c.c_size_t(1 << 21), 0)
    been.add(h.value)
    write(g, s, h.value, n); assert at32(h.value).value == n
    g.call("cuMemFreeHost", h)
assert len(been) < 20, "no address was used twice"
""",
    )
