"""qgpu-workload on the simulated driver."""

from __future__ import annotations

import json
import os
import signal
import struct
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, cast

import pytest
from sim_tools import BUILD, MIB, client_env, make, start

from simulator.sim import Simulator

pytestmark = pytest.mark.native
BINARY = str(BUILD / "bin/qgpu-workload")


@pytest.fixture
def sim(tmp_path: Path) -> Iterator[Simulator]:
    make("build/bin/qgpu-simgpu", "build/sim/libcuda.so.1", "build/bin/qgpu-workload")
    with start(tmp_path / "sim", memory_mib=2048, minor_base=os.getpid() % 1000 * 16) as simulator:
        yield simulator


def work(
    sim: Simulator, *words: str, status: int = 0, **env: str
) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [BINARY, *words],
        env=client_env(sim, **env),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == status, done.stderr
    return done


def test_requests_are_what_the_card_executed(sim: Simulator, tmp_path: Path) -> None:
    log = tmp_path / "log"
    words = (
        "--requests",
        "50",
        "--warmup",
        "5",
        "--kernels-per-request",
        "3",
        "--kernel-us",
        "200",
        "--iters",
        "200000",
    )
    summary = json.loads(work(sim, *words, "--json", "--log", str(log), "--log-requests").stdout)
    assert (summary["requests"], summary["kernels"], summary["errors"]) == (50, 150, 0)
    assert (
        600
        <= summary["latency_us"]["p50"]
        <= summary["latency_us"]["p99"]
        <= summary["latency_us"]["max"]
    )
    sim.stop()
    pieces = [p for p in sim.intervals() if p.pid == summary["pid"]]
    assert sum(p.last for p in pieces) == 55 * 3 and {p.work for p in pieces} == {200_000}
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    bursts = [line for line in lines if "burst" in line]
    assert len([line for line in lines if "latency_ns" in line]) == 50 and len(bursts) == 1
    assert bursts[0]["start_ns"] <= bursts[0]["end_ns"]


def test_calibration_finds_the_speed_of_the_card(tmp_path: Path) -> None:
    make("build/bin/qgpu-simgpu", "build/bin/qgpu-workload")
    with start(tmp_path / "slow", ns_per_iter=4.0, minor_base=os.getpid() % 1000 * 16) as sim:
        summary = json.loads(work(sim, "--requests", "1", "--kernel-us", "1000", "--json").stdout)
    assert summary["iterations"] == pytest.approx(250_000, rel=0.01)


def test_duty_cycle_and_training_style(sim: Simulator, tmp_path: Path) -> None:
    log = tmp_path / "log"
    words = (
        "--iters",
        "100000",
        "--busy",
        "0.1",
        "--idle",
        "0.1",
        "--length",
        "0.6",
        "--no-sync-each=8",
        "--streams",
        "3",
    )
    summary = json.loads(work(sim, *words, "--json", "--log", str(log)).stdout)
    assert 0 < summary["busy_fraction"] < 0.75 and summary["latency_us"] is None
    first, *bursts = [json.loads(line) for line in log.read_text().splitlines()]
    assert first["pid"] == summary["pid"] and first["started_ns"] <= bursts[0]["start_ns"]
    assert len(bursts) == summary["bursts"] == 3
    sim.stop()
    for piece in sim.intervals():
        assert any(b["start_ns"] <= piece.t_start and piece.t_end <= b["end_ns"] for b in bursts)


def test_memory_is_held_and_refusal_is_named(sim: Simulator) -> None:
    done = work(
        sim, "--memory", "512M", "--alloc-past", "4G", "--requests", "1", "--iters", "10", "--json"
    )
    summary = json.loads(done.stdout)
    assert summary["memory"] == 512 * MIB
    assert summary["alloc"] == {
        "bytes": (2048 - 300) // 64 * 64 * MIB,
        "refused": True,
        "error": "CUDA_ERROR_OUT_OF_MEMORY",
    }
    refused = work(sim, "--memory", "3G", status=4)
    assert "3.0 GiB were refused: CUDA_ERROR_OUT_OF_MEMORY" in refused.stderr


def lines_of(log: Path, key: str) -> list[dict[str, int]]:
    return [line for line in map(json.loads, log.read_text().splitlines()) if key in line]


def test_poisson_requests_come_at_times_that_a_seed_decides(sim: Simulator, tmp_path: Path) -> None:
    words = (
        "--poisson",
        "200",
        "--iters",
        "1000",
        "--kernels-per-request",
        "5",
        "--requests",
        "60",
        "--json",
    )
    dues = []
    for name, seed in (("a", "3"), ("b", "3"), ("c", "4")):
        log = tmp_path / name
        work(sim, *words, "--seed", seed, "--log", str(log), "--log-requests")
        start = lines_of(log, "started_ns")[0]["started_ns"]
        requests = lines_of(log, "due_ns")
        assert len(requests) == 60 and all(r["start_ns"] >= r["due_ns"] for r in requests)
        # What is logged as the start of the open loop is a little before it, by the same few µs for
        # all requests.
        dues.append([r["due_ns"] - requests[0]["due_ns"] for r in requests])
        assert requests[0]["due_ns"] > start
    assert all(abs(x - y) <= 2000 for x, y in zip(dues[0], dues[1], strict=True))
    assert any(abs(x - y) > 100_000 for x, y in zip(dues[0], dues[2], strict=True))
    gaps = [b - a for a, b in zip(dues[0], dues[0][1:], strict=False)]
    assert 2e6 < sum(gaps) / len(gaps) < 10e6  # 5 ms on average; 59 draws stay well inside


def test_a_late_poisson_request_counts_its_wait(sim: Simulator, tmp_path: Path) -> None:
    """At 10 requests due per execution time each waits for those before it, and that is its
    latency.
    """
    log = tmp_path / "log"
    words = ("--poisson", "1000", "--iters", "10000000", "--kernel-us", "10000", "--requests", "10")
    work(sim, *words, "--log", str(log), "--log-requests", "--json")
    latencies = [r["latency_ns"] for r in lines_of(log, "due_ns")]
    assert latencies[-1] > 60e6 and latencies[-1] > latencies[0]


def test_mixed_lengths_graphs_and_a_window_by_count(sim: Simulator) -> None:
    mixed = (
        "--kernel-us",
        "100",
        "--iters",
        "100000",
        "--kernel-mix",
        "100,1000",
        "--kernels-per-request",
        "4",
    )
    plain = json.loads(work(sim, *mixed, "--requests", "20", "--in-flight", "2", "--json").stdout)
    graph = json.loads(work(sim, *mixed, "--requests", "20", "--graph", "--json").stdout)
    sim.stop()
    for summary in (plain, graph):
        works = [p.work for p in sim.intervals() if p.pid == summary["pid"] and p.last]
        assert len(works) == 80 and set(works) == {100_000, 1_000_000}
        assert summary["card_fraction"] * summary["seconds"] == pytest.approx(
            sum(works) / 1e9, rel=0.01
        )
    of_graph = [p.work for p in sim.intervals() if p.pid == graph["pid"] and p.last]
    assert of_graph == of_graph[:4] * 20


def test_a_clock_of_bursts_does_not_drift(sim: Simulator, tmp_path: Path) -> None:
    log = tmp_path / "log"
    work(
        sim,
        "--period",
        "0.1",
        "--duty",
        "20",
        "--length",
        "0.75",
        "--iters",
        "1000",
        "--log",
        str(log),
    )
    start = lines_of(log, "started_ns")[0]["started_ns"]
    bursts = lines_of(log, "burst")
    offsets = [burst["start_ns"] - start - i * 100_000_000 for i, burst in enumerate(bursts)]
    assert 4 <= len(bursts) <= 8 and all(offset >= 0 for offset in offsets)
    # a stall delays one burst, a drift would delay all later ones
    assert min(offsets[3:]) < 20_000_000


def test_several_processes_are_several_summaries(sim: Simulator) -> None:
    at = time.monotonic_ns() + 300_000_000
    words = ("--procs", "3", "--requests", "5", "--iters", "1000", "--start-at", str(at), "--json")
    summaries = [json.loads(line) for line in work(sim, *words).stdout.splitlines()]
    assert len({s["pid"] for s in summaries}) == 3 and all(s["requests"] == 5 for s in summaries)
    assert all(s["start_ns"] >= at for s in summaries)


def test_terminating_the_parent_ends_all_processes(sim: Simulator) -> None:
    process = subprocess.Popen(
        [BINARY, "--procs", "2", "--iters", "1000", "--length", "60", "--json"],
        env=client_env(sim),
        stdout=subprocess.PIPE,
        text=True,
    )
    end = time.monotonic() + 10
    while not any(sim.intervals()) and time.monotonic() < end:
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0 and len(out.splitlines()) == 2


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--kernel-us", "-1"), "--kernel-us -1: a number from"),
        (("--memory", "5Q"), "--memory 5Q: a size is needed"),
        (("--streams", "1.5"), "--streams 1.5: a whole number"),
        (("--log-requests",), "--log-requests needs --log"),
        (("extra",), "extra: only options"),
        (("--kernel-mix", "1,x"), "--kernel-mix x: a number"),
        (("--kernel-mix", ",".join("1" * 17)), "at most 16 numbers"),
        (("--period", "1"), "--period and --duty need each other"),
        (("--poisson", "5", "--idle", "1"), "--poisson decides alone"),
        (("--graph", "--in-flight", "4"), "--in-flight counts kernels"),
        (("--bogus",), "usage:"),
    ],
)
def test_wrong_options(sim: Simulator, words: tuple[str, ...], says: str) -> None:
    assert says in work(sim, *words, status=2).stderr


def test_no_card_is_a_sentence(sim: Simulator) -> None:
    assert "cuInit says CUDA_ERROR_NO_DEVICE" in work(sim, status=3, CUDA_VISIBLE_DEVICES="").stderr
    assert "this process sees 1 card, numbered" in work(sim, "--device", "3", status=3).stderr
    bare = subprocess.run(
        [BINARY], env={"PATH": "/bin"}, capture_output=True, text=True, check=False
    )
    assert bare.returncode == 3 and "no " in bare.stderr


def test_terminating_it_gives_the_summary(sim: Simulator) -> None:
    process = subprocess.Popen(
        [BINARY, "--length", "60", "--iters", "100000", "--progress"],
        env=client_env(sim),
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout and "kernels/s" in process.stdout.readline()
    begin = time.monotonic()
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0 and "latency p50" in out
    assert time.monotonic() - begin < 30, "long before its minute was over"


def test_copies_go_beside_the_kernels_both_ways(sim: Simulator) -> None:
    words = (
        "--requests",
        "8",
        "--kernels-per-request",
        "2",
        "--iters",
        "1000000",
        "--copy",
        "8M",
        "--no-sync-each=4",
    )
    summary = json.loads(work(sim, *words, "--json").stdout)
    sim.stop()
    pieces = [p for p in sim.intervals() if p.pid == summary["pid"]]
    copies = {engine: [p for p in pieces if p.engine == engine] for engine in ("htod", "dtoh")}
    assert all(
        len(found) == 8 and {p.work for p in found} == {8 * MIB} for found in copies.values()
    )
    kernels = [p for p in pieces if p.engine == "compute"]
    assert any(k.t_start < c.t_end and c.t_start < k.t_end for k in kernels for c in copies["htod"])


def patterned(pid: int, memory: BinaryIO) -> int:
    """Where the simulated driver keeps a page of --pattern in the program: all words differ."""
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        bounds, rights, *_ = line.split()
        low, high = (int(word, 16) for word in bounds.split("-"))
        if rights != "rw-p" or high - low < 32 * MIB:
            continue
        for page in range(low, high, 4096):
            memory.seek(page)
            if len(set(struct.unpack("<512Q", memory.read(4096)))) == 512:
                return page
    raise AssertionError("no page of the pattern was found")


@pytest.mark.parametrize("change", [False, True])
def test_pattern_says_whether_memory_has_changed(
    sim: Simulator, tmp_path: Path, change: bool
) -> None:
    log = tmp_path / "log"
    words = ["--json", "--log", str(log), "--pattern", "256M", "--length", "60", "--seed", "7"]
    with subprocess.Popen(
        [BINARY, *words], env=client_env(sim), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        while not (log.exists() and log.read_text()):
            assert process.poll() is None
            time.sleep(0.01)
        if change:
            with Path(f"/proc/{process.pid}/mem").open("r+b", buffering=0) as memory:
                memory.seek(patterned(process.pid, cast("BinaryIO", memory)))
                memory.write(b"\x01")
        process.terminate()
        out, err = process.communicate(timeout=60)
    assert json.loads(out)["pattern"] == {"pages": 8, "wrong": int(change)}
    assert process.returncode == (5 if change else 0)
    assert (b"1 of 8 pages have changed" in err) is change
