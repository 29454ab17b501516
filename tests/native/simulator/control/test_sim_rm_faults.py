"""Faults on demand of the simulated control device, its absence, its log, and garbage under
sanitizers.
"""

from __future__ import annotations

import errno
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from rm_support import clients, log_of, simulator
from sim_rm import OK, TIMEOUT
from sim_tools import BUILD, make, nvml, run, spawn, until

from simulator.sim import SimConfig, SimError, Simulator, control_device
from simulator.simcontrol import acts, makers, parse_call, read_control_log, trespasses

pytestmark = pytest.mark.native
STOP, GO = "attempt(lambda: r.schedule(C, gr, False))", "attempt(lambda: r.schedule(C, gr, True))"


@pytest.fixture
def sim(tmp_path: Path) -> Iterator[Simulator]:
    with simulator(tmp_path) as made:
        yield made


def test_a_command_answers_the_configured_status(sim: Simulator) -> None:
    with clients(sim, 2) as (one, two):
        assert sim.control(f"error call=rm.schedule code=0x65 times=2 pid={one.pid}") == 1
        one.ask("g.launch(20_000, s)")
        assert [one.number(STOP), two.number(STOP), one.number(STOP)] == [TIMEOUT, OK, TIMEOUT]
        assert one.number("g.raw('cuStreamSynchronize', s)") == 0  # it was not stopped
        assert one.number(STOP) == OK
        sim.control("error call=rm.* code=27")
        assert one.number("r.alloc(0, 0, ROOT).status") == 27 and two.number(GO) == 27
        sim.control("clear")
        assert [one.number(GO), two.number(GO)] == [OK, OK]


def test_any_command_but_no_other_call(sim: Simulator) -> None:
    with clients(sim) as (one,):
        sim.control("error call=rm.control code=64")
        assert (
            one.number("r.preempt(C, gr)") == 64
            and one.number("r.control(C, gr, 0x1234, b'')") == 64
        )
        assert one.number("r.alloc(0, 0, ROOT).status") == OK


def test_the_device_refuses(sim: Simulator) -> None:
    with clients(sim) as (one,):
        sim.control("errno call=rm.schedule code=19 times=1")
        assert one.number(STOP) == errno.ENODEV and one.number(STOP) == OK and one.number(GO) == OK
    sim.control("errno call=rm.alloc code=19")
    # CUDA_ERROR_DEVICE_UNAVAILABLE
    assert run(sim, "print(Cuda(init=False).raw('cuInit', 0))") == "46\n"
    sim.control("clear")
    run(sim, "g = Cuda(); g.launch(10); g.call('cuCtxSynchronize')")


def test_a_refused_group_is_a_refused_context(sim: Simulator) -> None:
    """And what was made of it is gone again."""
    with clients(sim) as (one,):
        before = one.ask("r.objects()")
        for call, at in (("alloc", 20), ("schedule", 2), ("dup", 1)):
            sim.control(f"error call=rm.{call} code=0x1a")
            assert one.number("g.raw('cuCtxCreate_v2', c.byref(c.c_void_p()), 0, 0)") == 2, (
                call,
                at,
            )
            sim.control("clear")
        assert one.ask("r.objects()") == before
        assert one.number("g.raw('cuCtxCreate_v2', c.byref(c.c_void_p()), 0, 0)") == 0


def test_one_slow_call_stops_no_other(sim: Simulator) -> None:
    with clients(sim, 3) as (one, two, three):
        sim.control(f"delay call=rm.schedule us=700000 pid={one.pid}")
        sim.control(f"block call=rm.schedule pid={three.pid}")
        started = time.monotonic()
        one.tell(STOP)
        three.tell(STOP)
        assert two.number(STOP) == OK and two.number(GO) == OK
        two.ask("g.launch(1000, s)")
        assert two.number("g.raw('cuStreamSynchronize', s)") == 0
        run(sim, "Cuda()")  # new files are opened meanwhile
        assert int(one.heard()) == OK
        assert time.monotonic() - started >= 0.7
        sim.control("clear")
        assert int(three.heard()) == OK and three.number(GO) == OK
    orders = [x for x in acts(log_of(sim)) if x.params[:1] == b"\0"]
    assert [x.pid for x in orders] == [two.pid, one.pid, three.pid]  # in the order of their answers


def test_a_slow_order_takes_effect_late(sim: Simulator) -> None:
    with clients(sim) as (one,):
        sim.control("delay call=rm.schedule us=200000 times=1")
        one.ask("g.launch(50_000, s)")
        assert one.number(STOP) == OK
        assert one.number("g.raw('cuStreamQuery', s)") == 0


def test_a_hanging_process_can_be_killed(sim: Simulator) -> None:
    with clients(sim) as (one,):
        sim.control("block call=rm.schedule")
        one.tell(STOP)
        assert until(
            lambda: "ioctl" in Path(f"/proc/{one.pid}/wchan").read_text() or in_fuse(one.pid)
        )
        one.process.send_signal(signal.SIGKILL)
        one.process.wait(60)
    assert [x.errno for x in acts(log_of(sim))][-1] == errno.EINTR
    run_after = "g = Cuda(); g.launch(10); g.call('cuCtxSynchronize')"
    sim.control("clear")
    run(sim, run_after)


def in_fuse(pid: int) -> bool:
    return (
        "fuse" in Path(f"/proc/{pid}/stack").read_text()
        or "request_wait" in Path(f"/proc/{pid}/stack").read_text()
    )


def test_commands_take_as_long_as_said(tmp_path: Path) -> None:
    with simulator(tmp_path, control_us=30_000) as sim, clients(sim) as (one,):
        assert float(one.ask("-time.monotonic() + (r.preempt(C, gr) or time.monotonic())")) >= 0.03
        quick = one.ask(
            "min([-time.monotonic() + (r.get_slice(C, gr) and time.monotonic()) for _ in range(5)])"
        )
        assert float(quick) < 0.03  # the card is not asked


@pytest.mark.parametrize(
    "command",
    [
        "error call=rm.nothing code=1",
        "error call=rm.schedule",
        "errno call=rm.schedule code=0",
        "errno call=rm.schedule code=5000",
        "errno call=cuInit code=19",
        "delay call=rm.schedule",
    ],
)
def test_faults_that_are_none(sim: Simulator, command: str) -> None:
    with pytest.raises(SimError, match="not understood"):
        sim.control(command)


def test_the_version_of_the_driver(tmp_path: Path) -> None:
    with simulator(tmp_path, driver_version="620.11.02") as sim:
        assert nvml(sim, "print(n.nvmlSystemGetDriverVersion())") == "620.11.02\n"


def without_fuse(directory: Path) -> Path:
    """A build whose simulator finds no /dev/fuse."""
    build = directory / "build"
    (build / "bin").mkdir(parents=True)
    (build / "sim").symlink_to(BUILD / "sim")
    program = build / "bin" / "qgpu-simgpu"
    hide = "mount --bind /dev/null /dev/fuse"
    program.write_text(
        f'#!/bin/sh\nexec unshare -m sh -c \'{hide} && exec "$0" "$@"\' {BUILD}/bin/qgpu-simgpu '
        '"$@"\n'
    )
    program.chmod(0o755)
    return build


def test_without_fuse_everything_else_works(tmp_path: Path) -> None:
    make("build/bin/qgpu-simgpu", "build/sim/libcuda.so.1")
    if not Path("/dev/fuse").exists():
        pytest.skip("nothing to hide")
    log = tmp_path / "log"
    config = SimConfig(tmp_path / "sim", "t1", memory_mib=4096, minor_base=os.getpid() % 1000 * 16)
    with Simulator.start(config, without_fuse(tmp_path), log) as sim:
        assert sim.control_device() is None
        out = run(
            sim,
            "import sim_rm\ng = Cuda(); g.launch(10); g.call('cuCtxSynchronize'); "
            "print(sim_rm.files())",
        )
        assert out == "[]\n"
    assert "there is no control device: " in log.read_text()
    with pytest.raises(OSError):
        control_device(tmp_path / "sim")


def test_the_log_says_what_happened(sim: Simulator) -> None:
    with clients(sim) as (one,):
        one.number("r.disable(C, sub, True, r.channels(gr)[:2])")
        one.number("r.control(C, gr, 0xa06c0199, b'xyz')")
        names = one.ask("[C, gr, sub] + [x[1] for x in r.channels(gr)]")
        one.end()
    client, group, sub, *channels = (int(x) for x in names.strip("[]").split(","))
    calls = log_of(sim)
    assert makers(calls) == {client: 1, client + 1: 1}
    assert calls == sorted(calls, key=lambda x: x.t_us)
    (disable,) = [x for x in calls if x.name == "disable_channels"]
    assert disable.channels == ((client, channels[0]), (client, channels[1]))
    assert (disable.object, disable.params_size, disable.params[0]) == (sub, 536, 1)
    (unknown,) = [x for x in calls if x.name == "0xa06c0199"]
    assert (unknown.status, unknown.object, unknown.params, unknown.ok) == (0x24, group, b"", False)
    (made,) = [x for x in calls if x.object == group and x.name == "alloc"]
    assert (made.class_id, made.engine, made.params_size, made.call) == (0xA06C, 1, 20, "alloc64")
    assert not list(trespasses(calls))


def test_lines_that_are_none(tmp_path: Path) -> None:
    (tmp_path / "log").write_text('{"call": "free", "client": "0x10"}\n{"call": "fr')
    assert [x.client for x in read_control_log(tmp_path / "log")] == [16]
    for line in ("[]", "{}", "nothing"):
        with pytest.raises(ValueError):
            parse_call(line)


GARBAGE = """
    import fcntl, random, sim_rm, struct
    from sim_rm import *
    g = Cuda(); s = g.stream(); r = Rm(); C = r.client; rng = random.Random(int(os.environ["SEED"]))
    known = list(r.objects(C)) + [C, 0, C + 1]
    numbers = [FREE, CONTROL, ALLOC, ALLOC64, DUP]
    commands = [SCHEDULE, SET_TIMESLICE, GET_TIMESLICE, PREEMPT, GET_INFO, DISABLE,
                GET_GID, SET_MODE, HANDLE_INFO]
    classes = [ROOT, DEVICE, SUBDEVICE, GROUP, CHANNEL, SPACE, 0xcbc0]
    room = c.create_string_buffer(2048)
    for turn in range(1500):
        word = lambda: rng.choice(
            (rng.choice(known), rng.choice(known), rng.getrandbits(32), rng.randrange(4)))
        room.raw = rng.randbytes(600).ljust(2048, bytes([rng.randrange(3)]))
        number = rng.choice(numbers + [rng.getrandbits(32)])
        size = max(number >> 16 & 0x3fff, 4)
        data = bytearray(b"".join(struct.pack("<I", word()) for _ in range(size // 4 + 1))[:size])
        if number in (ALLOC, ALLOC64, CONTROL) and rng.random() < 0.9:
            kind = rng.choice(commands) if number == CONTROL else rng.choice(classes)
            length = rng.choice((3, 4, 8, 16, 20, 32, 56, 268, 536, rng.randrange(2000)))
            struct.pack_into("<IIII", data, 0, C, rng.choice(known),
                             word() if number != CONTROL else kind, kind)
            struct.pack_into("<Q", data, 16, rng.choice((c.addressof(room),) * 5 + (0, 1 << 40)))
            struct.pack_into("<I", data, 24 if number != ALLOC64 else 32, length)
        if number == FREE and rng.random() < 0.95: continue
        try: fcntl.ioctl(r.fd, number, data)
        except OSError: pass
        if turn % 50 == 0: g.raw("cuLaunchKernel", g.work, 1, 1, 1, 1, 1, 1, 0, s, None, None)
"""


def test_garbage_under_sanitizers(tmp_path: Path) -> None:
    """Random calls of several processes, some killed on the way: nothing but refusals, and
    everything comes back.
    """
    make("build/test/qgpu-simgpu-asan", "build/sim/libcuda.so.1")
    build = tmp_path / "build"
    (build / "bin").mkdir(parents=True)
    (build / "sim").symlink_to(BUILD / "sim")
    (build / "bin" / "qgpu-simgpu").symlink_to(BUILD / "test" / "qgpu-simgpu-asan")
    log = tmp_path / "log"
    config = SimConfig(tmp_path / "sim", "t1", memory_mib=8192, minor_base=os.getpid() % 1000 * 16)
    with Simulator.start(config, build, log) as sim:
        processes = [spawn(sim, GARBAGE, SEED=str(seed)) for seed in range(4)]
        time.sleep(1)
        processes[0].kill()
        for process in processes[1:]:
            _, err = process.communicate(timeout=120)
            assert process.returncode == 0, err
        processes[0].communicate()
        run(
            sim,
            "g = Cuda(); g.launch(10); g.call('cuCtxSynchronize'); assert g.free_memory() == "
            "(8192 - 300) << 20",
        )
        sim.process.terminate()
        assert sim.process.wait(60) == 0, log.read_text()
    assert "ERROR" not in log.read_text() and "runtime error" not in log.read_text()
