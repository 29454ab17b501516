"""Wrong calls have the driver's answers, with the shim as without it
(tests/native/programs/odd_calls.c).
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from programs_support import ended, python

from bench.harness.node import BUILD, Rig

pytestmark = [
    pytest.mark.native,
    pytest.mark.skipif(os.getuid() != 0, reason="needs root: sealed grants"),
]
ROOT = Path(__file__).parents[3]
JOB = 1
STATES = ("nothing", "inited", "ready", "destroyed", "faulty")
ARGUMENTS = ("zero", "places")


def hooked() -> list[str]:
    """Every function that the shim does anything about."""
    rows = (ROOT / "enforcer/native/shim/dispatch/symbols.tsv").read_text().splitlines()
    return [row.split("\t")[0] for row in rows if row.endswith("\thook")]


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with Rig(tmp_path) as running:
        running.grant(JOB, "offline", mem_mib=65536)
        yield running


def some(rig: Rig, governed: bool, state: str, arguments: str, names: list[str]) -> list[list[str]]:
    """The answers to these calls in one process, up to the first that ended it."""
    argv = [BUILD / "test/shim-odd-calls", state, arguments]
    process = rig.spawn(argv, rig.grants[JOB] if governed else None, stdin=subprocess.PIPE)
    assert process.stdin and process.stdout
    if state == "faulty":
        assert process.stdout.readline() == "ready\n"
        rig.fault(f"sticky pid={process.pid} code=700")
        process.stdin.write("\n")
    out, err = process.communicate("\n".join(names) + "\n", timeout=60)
    assert process.returncode == 0 and out, (process.returncode, out, err)
    return [line.split() for line in out.splitlines()]


def answers(rig: Rig, governed: bool, state: str, arguments: str) -> dict[str, str]:
    """The answer to each call; a process that one of them ended is followed by another one."""
    left, told = hooked(), {}
    while left:
        told |= dict(some(rig, governed, state, arguments, left))
        left = [name for name in left if name not in told]
    return told


@pytest.mark.parametrize("arguments", ARGUMENTS)
@pytest.mark.parametrize("state", STATES)
def test_wrong_calls_have_the_drivers_answers(rig: Rig, state: str, arguments: str) -> None:
    plain, ours = answers(rig, False, state, arguments), answers(rig, True, state, arguments)
    assert len(plain) > 300 and "-1" not in plain.values(), "the simulated driver has them all"
    other = {name: (plain[name], ours[name]) for name in plain if plain[name] != ours[name]}
    if state == "faulty":  # which of two things that are wrong a call names is not our promise
        other = {name: two for name, two in other.items() if two[1] != "700" or two[0] == "0"}
    assert other == {}


@pytest.mark.parametrize("name", ["cuMemcpyAsync", "cuMemsetD8Async", "cuLaunchKernel"])
@pytest.mark.parametrize("size", [1 << 30, 1 << 40])
def test_work_for_a_stream_that_is_none_delays_nothing(rig: Rig, name: str, size: int) -> None:
    """The driver refuses it at once; who booked its length waited for it to end, for a minute
    and more.
    """
    work = {
        "cuMemcpyAsync": f"p, p, c.c_size_t({size})",
        "cuMemsetD8Async": f"p, 0, c.c_size_t({size})",
        "cuLaunchKernel": "d.work, 1, 1, 1, 1, 1, 1, 0",
    }[name]
    code = f"""
    d = Cuda(); p = d.alloc(MIB); gone = d.stream(); d.launch(1000, gone)
    d.call("cuStreamDestroy_v2", gone)
    junk = c.create_string_buffer(4096); begun = time.monotonic()
    more = (None, None) if "Kernel" in "{name}" else ()
    print(*(d.raw("{name}", {work}, stream, *more)
            for stream in (gone, c.byref(junk)) for _ in range(3)))
    d.launch(1000); d.call("cuCtxSynchronize"); print(time.monotonic() - begun < 20)
    """
    out, err = ended(python(rig, code, JOB))
    assert (out.split(), err) == (["400"] * 6 + ["True"], "")
    assert rig.link.stats()[0].launches == 2, "what was refused is no work"


def test_refused_work_delays_nothing_where_no_marker_can_follow(rig: Rig) -> None:
    """While a stream captures, nothing of ours may be asked or written; its booked length alone
    was left then.
    """
    code = """
    d = Cuda(); p = d.alloc(MIB); real, other, graph = d.stream(), d.stream(), c.c_void_p()
    begun = time.monotonic()
    d.call("cuStreamBeginCapture_v2", other, 2)
    print(*(d.raw("cuMemsetD32Async", p, 0, c.c_size_t(1 << 42), at) for at in (real, None, real)))
    d.launch(1000, real); d.launch(1000, real); print(time.monotonic() - begun < 20)
    d.call("cuStreamEndCapture", other, c.byref(graph)); d.call("cuCtxSynchronize")
    """
    out, err = ended(python(rig, code, JOB))
    assert (out.split(), err) == (["1"] * 3 + ["True"], "")


def test_without_markers_work_counts_as_over_in_time_though_the_driver_cannot_be_asked(
    rig: Rig,
) -> None:
    """While a stream captures it cannot; each launch then waited for all before it, up to 64 ms
    and the sum of them.
    """
    rig.fault("error call=cuMemHostRegister code=801")
    code = """
    d = Cuda(); real, other, graph = d.stream(), d.stream(), c.c_void_p()
    d.launch(1000, real); d.call("cuCtxSynchronize")
    d.call("cuStreamBeginCapture_v2", other, 2); begun = time.monotonic()
    for _ in range(150): d.launch(1000, real)
    print(time.monotonic() - begun < 5)
    d.call("cuStreamEndCapture", other, c.byref(graph)); d.call("cuCtxSynchronize")
    """
    out, err = ended(python(rig, code, JOB))
    assert (out.split(), err.count("refused to register")) == (["True"], 1)
