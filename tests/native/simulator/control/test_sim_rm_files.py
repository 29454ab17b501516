"""Access to a client of the simulated control device: by the open
file, while any process has it.
"""

from __future__ import annotations

import array
import errno
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import sim_rm
from rm_support import Client, clients, log_of, pieces, simulator, taken
from sim_rm import BAD_CLIENT, GROUP, NO_PERMISSION, OK, Rm
from sim_tools import MIB, nvml, run, spawn, until

from simulator.sim import Simulator
from simulator.simcontrol import trespasses

pytestmark = pytest.mark.native
ATTEMPT = "attempt(lambda: r.schedule(C, gr, False))"


@pytest.fixture
def sim(tmp_path: Path) -> Iterator[Simulator]:
    with simulator(tmp_path) as made:
        yield made


def passed(client: Client, directory: Path) -> int:
    """The client's file by SCM_RIGHTS."""
    path = str(directory / f"pass.{client.pid}")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(path)
        listener.listen(1)
        listener.settimeout(20)
        client.tell(
            f"(lambda k: (k.connect({path!r}), __import__('socket').send_fds(k, [b'f'], [r.fd])))"
            "(__import__('socket').socket(1, 5))"
        )
        with listener.accept()[0] as sock:
            _, ancillary, _, _ = sock.recvmsg(1, socket.CMSG_SPACE(4))
    client.heard()
    (got,) = array.array("i", ancillary[0][2])
    return int(got)


def free_memory(sim: Simulator) -> int:
    return int(nvml(sim, "print(n.nvmlDeviceGetMemoryInfo(h).free)"))


@pytest.mark.parametrize("way", [passed, taken])
def test_a_file_works_in_another_process(sim: Simulator, tmp_path: Path, way: object) -> None:
    with clients(sim) as (one,):
        fd = passed(one, tmp_path) if way is passed else taken(one.pid, one.number("r.fd"))
        other, C = Rm(fd), one.client
        group = other.of_class(GROUP)[0]
        one.ask("g.launch(30_000, s)")
        assert other.schedule(C, group, False) == OK
        assert one.number("g.raw('cuStreamQuery', s)") == 600
        assert other.schedule(C, group, True) == OK
        assert one.number("g.raw('cuStreamSynchronize', s)") == 0
        mine = other.root()  # made by this process, but of the same file
        assert one.number(f"r.info({mine}, {mine}, 2)") == 0x41
        os.close(fd)
    assert {(x.pid, x.owner) for x in log_of(sim)} == {(one.pid, one.pid), (os.getpid(), one.pid)}
    assert not list(trespasses(log_of(sim)))


def test_a_fresh_file_is_another_client(sim: Simulator) -> None:
    """Even root's, and even in the same process: only the file that made a client may use it."""
    with clients(sim) as (one,):
        fd = os.open(f"/proc/{one.pid}/fd/{one.ask('r.fd')}", os.O_RDWR | os.O_CLOEXEC)
        fresh, C = Rm(fd), one.client
        group = one.number("gr")
        assert fresh.schedule(C, group, False) == BAD_CLIENT
        assert fresh.info(C, C, 2) == -BAD_CLIENT
        assert fresh.alloc(C, C, 0x80, 0, sim_rm.device_params()).status == BAD_CLIENT
        assert fresh.free(C, C) == BAD_CLIENT
        mine = fresh.root()
        device = fresh.make(mine, mine, 0x80, 0, sim_rm.device_params())
        assert fresh.dup(mine, device, C, group).status == NO_PERMISSION
        assert fresh.dup(C, 1, mine, device).status == BAD_CLIENT
        assert one.ask(
            "(lambda f: f.info(C, C, 2))(Rm(os.open(f'/proc/self/fd/{r.fd}', os.O_RDWR)))"
        ) == str(-BAD_CLIENT)
        assert one.number("r.info(C, C, 2)") == 0x41
        os.close(fd)
    assert len(list(trespasses(log_of(sim)))) == 7


def test_channels_are_disabled_for_anybody(sim: Simulator) -> None:
    """As a firmware without a check of the list would do it: whoever sends such lists has to
    check them himself.
    """
    with clients(sim, 2) as (one, two):
        strangers = one.ask("r.channels(gr)")
        two_client = two.number("r.root()")
        device = two.number(f"r.make({two_client}, {two_client}, DEVICE, 0, device_params())")
        sub = two.number(f"r.make({two_client}, {device}, SUBDEVICE)")
        one.ask("g.launch(500_000, s)")
        assert two.number(f"r.disable({two_client}, {sub}, True, {strangers})") == OK
        assert one.number("time.sleep(0.6) or g.raw('cuStreamQuery', s)") == 600
        assert two.number(f"r.disable({two_client}, {sub}, False, {strangers})") == OK
        assert one.number("g.raw('cuStreamSynchronize', s)") == 0
    strange = [
        x for x in trespasses(log_of(sim)) if x.name != "handle_info"
    ]  # with those the processes looked for their own
    assert [(x.name, x.pid, x.ok) for x in strange] == [("disable_channels", two.pid, True)] * 2


def test_a_forked_child_shares_the_file(sim: Simulator) -> None:
    out = run(
        sim,
        """
        import sim_rm
        from sim_rm import *
        g = Cuda(); r = Rm(); s = g.stream(); group = r.of_class(GROUP)[0]
        g.launch(500_000, s)
        if os.fork() == 0:
            os._exit(r.schedule(r.client, group, False))
        assert os.wait()[1] == 0
        time.sleep(0.6)
        assert g.raw("cuStreamQuery", s) == 600     # the child's end changed nothing
        assert r.schedule(r.client, group, True) == OK
        g.call("cuStreamSynchronize", s); print("done")
        """,
    )
    assert out == "done\n"


def test_exec_closes_the_file(sim: Simulator) -> None:
    out = run(
        sim,
        """
        Cuda(); code = "import sim_rm; print(sim_rm.files())"
        sys.stdout.flush(); os.execv(sys.executable, [sys.executable, "-c", code])
        """,
    )
    assert out == "[]\n"


@pytest.mark.parametrize("engine", ["gr", "down"])
def test_killed_while_stopped(sim: Simulator, engine: str) -> None:
    """Everything comes back at once, and the next one runs."""
    before = free_memory(sim)
    with clients(sim, 2) as (one, two):
        one.ask("globals().update(p=g.alloc(1 << 30))")
        one.ask("g.launch(60_000_000, s)")
        assert one.number(f"r.schedule(C, {engine}, False)") == OK
        one.kill()
        assert until(lambda: free_memory(sim) == before - 300 * MIB, 5)
        two.ask("g.launch(1000, s)")
        assert two.number("g.raw('cuStreamSynchronize', s)") == 0
        two.end()
    (piece,) = pieces(sim, one.pid)[-1:]
    assert piece.cut and piece.last if engine != "gr" else not piece.last


def test_a_held_file_keeps_the_memory_of_the_dead(sim: Simulator, tmp_path: Path) -> None:
    before = free_memory(sim)
    with clients(sim) as (one,):
        one.ask("globals().update(p=g.alloc(1 << 30))")
        one.ask("g.launch(60_000_000, s)")
        fd = passed(one, tmp_path)
        group, C = one.number("gr"), one.client
        one.kill()
        listing = (
            "print([(x.pid, x.usedGpuMemory) for x in n.nvmlDeviceGetComputeRunningProcesses(h)])"
        )
        assert until(lambda: "1388314624" in nvml(sim, listing)), nvml(sim, listing)
        assert free_memory(sim) == before - 1324 * MIB
        held = Rm(fd)
        assert held.info(C, group, 2) == GROUP and held.schedule(C, group, False) == OK
        os.close(fd)
        assert until(lambda: free_memory(sim) == before, 5)
        assert nvml(sim, listing) == "[]\n"
    assert pieces(sim, one.pid)[-1].cut  # but its work went with it


def test_a_child_that_lives_on_keeps_the_memory(sim: Simulator) -> None:
    before = free_memory(sim)
    with clients(sim, before="child = os.fork()\nif child == 0: signal.pause()") as (one,):
        child = one.number("child")
        one.kill()
        assert free_memory(sim) == before - 300 * MIB
        os.kill(child, signal.SIGKILL)
        assert until(lambda: free_memory(sim) == before, 5)


def test_a_lost_file_ends_the_context(sim: Simulator) -> None:
    with clients(sim) as (one,):
        one.ask("g.launch(60_000_000, s)")
        one.ask("os.close(r.fd)")
        assert one.number("g.raw('cuStreamSynchronize', s)") == 719
        assert one.number("g.raw('cuMemAlloc_v2', c.byref(c.c_uint64()), c.c_size_t(4096))") == 719


def test_a_freed_group_ends_the_context(sim: Simulator) -> None:
    with clients(sim, 2) as (one, two):
        one.ask("g.launch(60_000_000, s)")
        assert one.number("r.free(C, gr)") == OK
        assert one.number("g.raw('cuStreamSynchronize', s)") == 719
        two.ask("g.launch(10, s)")
        assert two.number("g.raw('cuStreamSynchronize', s)") == 0


def test_the_end_of_the_simulator(sim: Simulator) -> None:
    """Killed: calls fail, nobody hangs, and the next one starts in its place."""
    with clients(sim) as (one,):
        sim.control("block call=rm.schedule")
        one.tell(ATTEMPT)
        assert until(lambda: sleeps_in_ioctl(one.pid))
        sim.process.send_signal(signal.SIGKILL)
        sim.process.wait()
        assert one.heard() in {str(errno.ECONNABORTED), str(errno.ENOTCONN)}
        assert one.ask(ATTEMPT) in {str(errno.ECONNABORTED), str(errno.ENOTCONN)}
    with Simulator.start(sim.config, sim.build) as again:
        assert again.control_device() is not None
        run(again, "g = Cuda(); g.launch(10); g.call('cuCtxSynchronize')")


def sleeps_in_ioctl(pid: int) -> bool:
    return any(
        "request_wait_answer" in x.read_text() for x in Path(f"/proc/{pid}/task").glob("*/stack")
    )


def test_killed_while_it_opens_files(tmp_path: Path) -> None:
    """Whatever it was in the middle of: it is gone at once, and nobody goes on waiting for it."""
    code = """
        g = Cuda(init=False)
        while True:
            if os.fork() == 0: os._exit(g.raw("cuInit", 0) != 0)
            if os.wait()[1]: break
    """
    for turn in range(8):
        with simulator(tmp_path / str(turn)) as sim:
            busy = [spawn(sim, code) for _ in range(3)]
            assert until(lambda sim=sim, calls=20 + 3 * turn: len(log_of(sim)) > calls)  # type: ignore[misc]
            sim.process.send_signal(signal.SIGKILL)
            assert sim.process.wait(60) == -signal.SIGKILL
            for process in busy:
                _, err = process.communicate(timeout=60)
                assert process.returncode == 0, err
