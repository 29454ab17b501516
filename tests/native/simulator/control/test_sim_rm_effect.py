"""What commands do to simulated work: it stops, goes on, shares follow slices, nothing is lost."""

from __future__ import annotations

import itertools
import os
import random
import struct
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
import sim_rm
from rm_support import clients, log_of, pieces, simulator, taken
from sim_rm import BAD_ARGUMENT, BAD_CLIENT, DISABLE, NOT_FOUND, OK, TIMEOUT, Rm
from sim_tools import run, spawn, until

from simulator.sim import Interval, Kind, Simulator, busy_ns

pytestmark = pytest.mark.native
MS = 1_000_000


@pytest.fixture
def sim(tmp_path: Path) -> Iterator[Simulator]:
    with simulator(tmp_path) as made:
        yield made


def answers(sim: Simulator, name: str, pid: int) -> list[int]:
    """When the commands of a process were answered (not those of libcuda itself), nanoseconds."""
    return [int(x.t_us * 1000) for x in log_of(sim) if x.name == name and x.pid == pid and x.ok][3:]


def executed(found: list[Interval]) -> dict[int, int]:
    work: dict[int, int] = defaultdict(int)
    for piece in found:
        work[piece.seq] += piece.duration
    return dict(work)


@pytest.mark.parametrize("way", ["schedule", "disable"])
def test_a_kernel_is_taken_off_and_goes_on(sim: Simulator, way: str) -> None:
    stop = {
        "schedule": "r.schedule(C, gr, False)",
        "disable": "r.disable(C, sub, True, r.channels(gr))",
    }[way]
    go = stop.replace("False", "True").replace("sub, True", "sub, False")
    with clients(sim) as (one,):
        # long, so that it still runs wherever this test is held up
        one.ask("g.launch(1_000_000, s)")
        time.sleep(0.01)
        assert one.number(stop) == OK
        stopped = time.monotonic_ns()
        assert one.number("time.sleep(0.1) or g.raw('cuStreamQuery', s)") == 600
        again = time.monotonic_ns()
        assert one.number(go) == OK
        assert one.number("g.raw('cuStreamSynchronize', s)") == 0
        one.end()
    first, second = pieces(sim, one.pid)
    assert first.t_end <= stopped and second.t_start >= again
    assert first.duration + second.duration == 1000 * MS and second.last and not first.last


def test_the_answer_comes_when_it_has_left(tmp_path: Path) -> None:
    """Not before: the latency of the preemption, and nothing runs after the answer."""
    with simulator(tmp_path, preempt_us=3000) as sim:
        with clients(sim) as (one,):
            for _ in range(20):
                one.ask("g.launch(20_000, s)")
                assert one.number("r.schedule(C, gr, False)") == OK
                assert one.number("r.schedule(C, gr, True)") == OK
                assert one.number("g.raw('cuStreamSynchronize', s)") == 0
            one.end()
        calls = answers(sim, "schedule", one.pid)
        found = pieces(sim, one.pid)
    stops, starts = calls[::2], calls[1::2]
    assert len(stops) == len(starts) == 20
    for stop, go in zip(stops, starts, strict=True):
        assert go > stop and not [x for x in found if x.t_start < stop < x.t_end]
        last = max(x.t_end for x in found if x.t_end <= stop)
        assert stop - last < 1000 * MS  # and soon
    assert sum(x.duration for x in found) == 20 * 20 * MS


def test_both_conditions_count(sim: Simulator) -> None:
    """A group runs when it is scheduled and one of its channels at least is enabled."""
    with clients(sim) as (one,):
        one.ask("globals().update(ch=r.channels(gr))")
        one.ask("g.launch(2_000_000, s)")
        assert one.number("r.disable(C, sub, True, ch[:7])") == OK
        marks = [time.monotonic_ns()]
        for command in (
            "time.sleep(0.03) or 0",
            "r.disable(C, sub, True, ch[7:])",
            "time.sleep(0.03) or 0",
            "r.schedule(C, gr, False)",
            "r.disable(C, sub, False, ch)",
            "time.sleep(0.03) or 0",
            "r.schedule(C, gr, True)",
            "time.sleep(0.03) or 0",
        ):
            assert one.number(command) == OK
            marks.append(time.monotonic_ns())
        one.kill()
    found = pieces(sim, one.pid)
    on = [busy_ns(found, a, b).get(one.pid, 0) / (b - a) for a, b in itertools.pairwise(marks)]
    assert on[0] == 1 and on[2] == 0 and on[5] == 0 and on[7] > 0, on


def test_only_scheduling_leaves_the_slice(tmp_path: Path) -> None:
    with simulator(tmp_path, slice_us=200_000) as sim:
        with clients(sim) as (one,):
            one.ask("g.launch(2_000_000, s)")
            time.sleep(0.02)
            assert one.number("r.disable(C, sub, True, r.channels(gr), only=True)") == OK
            ordered = time.monotonic_ns()
            time.sleep(0.3)
            one.kill()
        (piece,) = pieces(sim, one.pid)
        assert ordered < piece.t_end < ordered + 200 * MS and not piece.cut


def test_copies_stop_with_their_own_groups(sim: Simulator) -> None:
    """1 GB takes 20 ms; compute goes on beside it, and the other direction does."""
    with clients(sim) as (one,):
        one.ask(
            "globals().update(t=g.stream(), n=1 << 28, p=g.alloc(1 << 28), m=(c.c_char * (1 << "
            "28))())"
        )
        assert one.number("r.schedule(C, up, False)") == OK
        one.ask("g.call('cuMemcpyHtoDAsync_v2', p, m, c.c_size_t(n), t)")
        one.ask("g.launch(1000, s)")
        assert one.number("g.raw('cuStreamSynchronize', s)") == 0
        assert one.number("g.raw('cuStreamQuery', t)") == 600
        one.ask("g.call('cuMemcpyDtoHAsync_v2', m, p, c.c_size_t(n), s)")
        assert one.number("g.raw('cuStreamSynchronize', s)") == 0
        before = time.monotonic_ns()
        assert one.number("r.schedule(C, up, True)") == OK
        assert one.number("g.raw('cuStreamSynchronize', t)") == 0
        one.end()
    (copy,) = [x for x in pieces(sim, one.pid) if x.kind == Kind.HTOD]
    assert copy.t_start >= before


def test_blocks_decide_how_long_it_takes(tmp_path: Path) -> None:
    """cta: the rest of the block; a kernel that is one block ends first, and PREEMPT says that
    it took too long.
    """
    costs = tmp_path / "costs"
    costs.write_text("other 300ms stop=20ms\n")
    with simulator(tmp_path, preempt="cta", extra=("--kernel-cost", str(costs))) as sim:
        with clients(sim) as (one,):
            one.ask(
                "globals().update(f=c.c_void_p()) or g.call('cuModuleGetFunction', c.byref(f), "
                "g.module, b'other')"
            )
            launch = "g.call('cuLaunchKernel', f, 1, 1, 1, 1, 1, 1, 0, s, None, None)"
            one.ask(launch)
            time.sleep(0.05)
            assert one.number("r.schedule(C, gr, False)") == OK
            assert one.number("r.schedule(C, gr, True)") == OK
            assert one.number("g.raw('cuStreamSynchronize', s)") == 0
            # no block of its own, and the card has none: as long as it is
            one.ask("g.launch(100_000, s)")
            time.sleep(0.02)
            assert one.number("r.preempt(C, gr, timeout_us=1000)") == TIMEOUT
            assert one.number("r.preempt(C, gr, wait=False)") == OK
            assert one.number("r.schedule(C, gr, False)") == OK
            assert one.number("g.raw('cuStreamQuery', s)") == 0
            one.end()
        first, second, third = pieces(sim, one.pid)
    assert first.duration % (20 * MS) == 0 and first.duration + second.duration == 300 * MS
    assert third.duration == 100 * MS and third.last


def test_the_mode_of_one_context(tmp_path: Path) -> None:
    """A context may ask for another grain than the card has."""
    mode = "r.control(C, sub, SET_MODE, struct.pack('<IIIIIIQ', 1, {channel}, 0, {mode}, 0, 0, 0))"
    with simulator(tmp_path, preempt="wfi") as sim:
        with clients(
            sim, before="import struct; from sim_rm import SET_MODE\nch = r.channels(gr)[0][1]"
        ) as (one,):
            assert one.number(mode.format(channel="ch", mode=3)) == BAD_ARGUMENT
            assert one.number(mode.format(channel=0xDEAD, mode=2)) == NOT_FOUND
            for number in (0, 2):
                assert one.number(mode.format(channel="ch", mode=number)) == OK
                one.ask("g.launch(50_000, s)")
                time.sleep(0.01)
                assert one.number("r.schedule(C, gr, False)") == OK
                assert one.number("g.raw('cuStreamQuery', s)") == (0 if number == 0 else 600)
                assert one.number("r.schedule(C, gr, True)") == OK
                assert one.number("g.raw('cuStreamSynchronize', s)") == 0
            one.end()
        assert len(pieces(sim, one.pid)) == 3


def test_slices_are_shares(sim: Simulator) -> None:
    """3 ms and 7 ms, in turn: what the card can express of that."""
    with clients(sim, 2) as (one, two):
        for client, us in ((one, 3000), (two, 7000)):
            assert client.number("r.get_slice(C, gr)") == 1000
            assert client.number(f"r.set_slice(C, gr, {us})") == OK
            assert client.number("r.get_slice(C, gr)") == us
            client.ask("g.launch(3_000_000, s)")
        time.sleep(0.3)
        one.kill()
        two.kill()
    sim.stop()
    # While both have work each piece is a whole slice, but for the first and the last one.
    slices = [(x.pid, x.duration) for x in sim.intervals() if x.pid in (one.pid, two.pid)]
    both = [i for i, (pid, _) in enumerate(slices) if pid == two.pid]
    inside = slices[both[0] + 1 : both[-1] - 1]
    assert len(inside) > 10 and set(inside) == {(one.pid, 2_992_000), (two.pid, 6_976_000)}


def test_slices_are_rounded_down(sim: Simulator) -> None:
    """GET says what was asked for, as published; the card has eight bits and a shift."""
    with clients(sim, 2) as (one, two):
        assert one.number("r.set_slice(C, gr, 8191)") == OK  # 255 << 5 = 8160
        assert one.number("r.get_slice(C, gr)") == 8191
        assert two.number("r.set_slice(C, gr, 0)") == OK  # the shortest there is
        for client in (one, two):
            client.ask("g.launch(3_000_000, s)")
        time.sleep(0.3)
        one.kill()
        two.kill()
    sim.stop()
    found = sim.intervals()
    middle = [x.duration for x in found if x.pid == one.pid][2:-2]
    short = [x.duration for x in found if x.pid == two.pid][2:-2]
    assert set(middle) == {8_160_000} and set(short) == {1000}


def test_preempt_ends_the_slice(tmp_path: Path) -> None:
    """The other one comes at once, long before the slice is over; alone, work goes on."""
    with simulator(tmp_path, slice_us=500_000) as sim:
        with clients(sim, 2) as (one, two):
            one.ask("g.launch(3_000_000, s)")
            time.sleep(0.01)
            assert one.number("r.preempt(C, gr)") == OK
            two.ask("g.launch(1000, s)")
            asked = time.monotonic_ns()
            assert one.number("r.preempt(C, gr)") == OK
            assert two.number("g.raw('cuStreamSynchronize', s)") == 0
            one.kill()
            two.end()
        sim.stop()
        (other,) = [x for x in sim.intervals() if x.pid == two.pid]
        first = [x for x in sim.intervals() if x.pid == one.pid]
        assert other.t_start - asked < 500 * MS
        assert len(first) == 2 and first[0].duration > 10 * MS  # the first order changed nothing


def test_a_full_queue_waits_and_goes_on(tmp_path: Path) -> None:
    with simulator(tmp_path, queue_depth=16) as sim:
        with clients(
            sim,
            1,
            before="import threading\nflood = lambda: [g.launch(100, s) for _ in range(200)]",
        ) as (one,):
            assert one.number("r.schedule(C, gr, False)") == OK
            one.ask("globals().update(k=threading.Thread(target=flood)) or k.start()")
            assert one.ask("time.sleep(0.1) or k.is_alive()") == "True"
            assert one.number("r.schedule(C, gr, True)") == OK
            assert one.ask("k.join(20) or k.is_alive()") == "False"
            assert one.number("g.raw('cuStreamSynchronize', s)") == 0
            one.end()
        assert len(pieces(sim, one.pid)) == 200


WORK = """
    import hashlib, random, sim_rm
    g = Cuda(); streams = [g.stream() for _ in range(3)]; rng = random.Random(7)
    size = 1 << 20; buffers = [g.alloc(size) for _ in range(3)]
    host = [(c.c_char * size)() for _ in range(3)]
    print(sim_rm.files()[0], flush=True); digest = hashlib.sha256()
    for turn in range(60):
        for i, stream in enumerate(streams):
            host[i].raw = bytes([rng.randrange(256)]) * size
            g.call("cuMemcpyHtoDAsync_v2", buffers[i], host[i], c.c_size_t(size), stream)
            for _ in range(10): g.launch(rng.randrange(20, 1500), stream)
            page = c.c_uint64(buffers[i].value + 4096)
            g.call("cuMemsetD8Async", page, turn, c.c_size_t(4096), stream)
            g.call("cuMemcpyDtoHAsync_v2", host[i], buffers[i], c.c_size_t(size), stream)
        for i, stream in enumerate(streams):
            g.call("cuStreamSynchronize", stream); digest.update(host[i].raw)
    print(digest.hexdigest(), flush=True)
"""


def work_with(sim: Simulator, stops: int) -> tuple[str, list[Interval]]:
    """The digest of what WORK computed, and what the card did; meanwhile we stop it so often."""
    process = spawn(sim, WORK)
    assert process.stdout
    remote = int(process.stdout.readline())
    rng = random.Random(stops)
    done = 0
    if stops:
        rm = Rm(taken(process.pid, remote))
        groups = rm.of_class(0xA06C) if until(lambda: len(rm.of_class(0xA06C)) == 3) else []
        while done < stops and process.poll() is None:
            chosen = [x for x in groups if rng.random() < 0.7]
            for enable in (False, True):
                assert {rm.schedule(rm.client, x, enable) for x in chosen} <= {OK}
                time.sleep(rng.random() * (0.002 if enable else 0.006))
            done += 1
        os.close(rm.fd)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert done == stops
    return out.strip(), pieces(sim, process.pid)


def test_two_hundred_stops_change_nothing(tmp_path: Path) -> None:
    """Results, and the work of every single command, are those of an undisturbed run."""
    with simulator(tmp_path / "a") as sim:
        plain, undisturbed = work_with(sim, 0)
    with simulator(tmp_path / "b") as sim:
        stopped, disturbed = work_with(sim, 200)
    assert stopped == plain
    assert executed(disturbed) == executed(undisturbed)
    assert len([x for x in disturbed if x.last]) == len(undisturbed) == len(executed(undisturbed))
    assert len(disturbed) > len(undisturbed) + 50


@pytest.mark.parametrize("per_context", [False, True])
def test_contexts_come_and_go_during_commands(tmp_path: Path, per_context: bool) -> None:
    """Orders hit groups that are just made or destroyed: refused or carried out, nothing worse."""
    code = """
        import sys, threading, sim_rm
        g = Cuda(); print(sim_rm.files()[0], flush=True)
        enough = threading.Event()
        def work():
            left = 25
            while left > 0 or not enough.is_set():
                left -= 1
                ctx, s = c.c_void_p(), c.c_void_p()
                g.call("cuCtxCreate_v2", c.byref(ctx), 0, 0)
                for _ in range(5): g.launch(300)
                g.call("cuCtxDestroy_v2", ctx)
        threads = [threading.Thread(target=work) for _ in range(4)]
        [t.start() for t in threads]; sys.stdin.readline(); enough.set()
        [t.join() for t in threads]; print("done", flush=True)
    """
    wanted = {OK, BAD_CLIENT if per_context else NOT_FOUND}
    with simulator(tmp_path, client_per_context=per_context) as sim:
        process = spawn(sim, code)
        assert process.stdout
        fd = taken(process.pid, int(process.stdout.readline()))
        seen: set[int] = set()

        def command(seed: int) -> None:
            rm, rng = Rm(fd), random.Random(seed)
            while process.poll() is None:
                made = [(x.client, x.object) for x in log_of(sim)[-400:] if x.class_id == 0xA06C]
                for client, group in rng.sample(made, min(len(made), 5)):
                    stop = rm.schedule(client, group, False)
                    seen.add(stop)
                    if stop == OK:
                        seen.add(rm.set_slice(client, group, rng.randrange(1, 9000)))
                        seen.add(rm.schedule(client, group, True))

        threads = [threading.Thread(target=command, args=(seed,)) for seed in range(3)]
        for thread in threads:
            thread.start()
        until(lambda: seen >= wanted or process.poll() is not None, 60)
        out, err = process.communicate("\n", timeout=60)
        for thread in threads:
            thread.join()
        os.close(fd)
        assert (process.returncode, out.strip()) == (0, "done"), err
        assert seen >= wanted
        assert seen <= {OK, NOT_FOUND, BAD_CLIENT}
        run(sim, "g = Cuda(); g.launch(10); g.call('cuCtxSynchronize')")


def test_a_stall_and_a_stop(sim: Simulator) -> None:
    with clients(sim) as (one,):
        one.ask("g.launch(50_000, s)")
        sim.control("stall us=50000")
        assert one.number("r.schedule(C, gr, False)") == OK
        assert one.number("r.schedule(C, gr, True)") == OK
        assert one.number("g.raw('cuStreamSynchronize', s)") == 0
        one.end()
    assert sum(x.duration for x in pieces(sim, one.pid)) == 50 * MS


def test_disable_layout_is_the_published_one() -> None:
    """bDisable 0, count 4, only 8, rewind 9, event 16, clients 24, channels 280, 536 in all."""
    assert DISABLE == 0x2080110B
    packed = sim_rm._DISABLE.pack(1, 2, 3, 4, 5, *range(100, 164), *range(200, 264))
    assert len(packed) == 536
    assert (packed[0], packed[4], packed[8], packed[9], packed[16]) == (1, 2, 3, 4, 5)
    assert struct.unpack_from("<I", packed, 24) == (100,) and struct.unpack_from(
        "<I", packed, 280
    ) == (200,)
