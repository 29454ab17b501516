"""qgpu-workload on the simulated driver."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from sim_tools import BUILD, MIB, client_env, make, start

from enforcer.sim import Simulator

pytestmark = pytest.mark.native
BINARY = str(BUILD / "bin/qgpu-workload")


@pytest.fixture
def sim(tmp_path: Path) -> Iterator[Simulator]:
    make("build/bin/qgpu-simgpu", "build/sim/libcuda.so.1", "build/bin/qgpu-workload")
    with start(tmp_path / "sim", memory_mib=2048, minor_base=os.getpid() % 1000 * 16) as simulator:
        yield simulator


def work(sim: Simulator, *words: str, status: int = 0, **env: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [BINARY, *words], env=client_env(sim, **env), capture_output=True, text=True, check=False, timeout=60
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
    assert 600 <= summary["latency_us"]["p50"] <= summary["latency_us"]["p99"] <= summary["latency_us"]["max"]
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
    assert 0.35 < summary["busy_fraction"] < 0.75 and summary["latency_us"] is None
    first, *bursts = [json.loads(line) for line in log.read_text().splitlines()]
    assert first["pid"] == summary["pid"] and first["started_ns"] <= bursts[0]["start_ns"]
    assert len(bursts) == summary["bursts"] == 3
    sim.stop()
    for piece in sim.intervals():
        assert any(b["start_ns"] <= piece.t_start and piece.t_end <= b["end_ns"] for b in bursts)


def test_memory_is_held_and_refusal_is_named(sim: Simulator) -> None:
    done = work(sim, "--memory", "512M", "--alloc-past", "4G", "--requests", "1", "--iters", "10", "--json")
    summary = json.loads(done.stdout)
    assert summary["memory"] == 512 * MIB
    assert summary["alloc"] == {
        "bytes": (2048 - 300) // 64 * 64 * MIB,
        "refused": True,
        "error": "CUDA_ERROR_OUT_OF_MEMORY",
    }
    refused = work(sim, "--memory", "3G", status=4)
    assert "3.0 GiB were refused: CUDA_ERROR_OUT_OF_MEMORY" in refused.stderr


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--kernel-us", "-1"), "--kernel-us -1: a number from"),
        (("--memory", "5Q"), "--memory 5Q: a size is needed"),
        (("--streams", "1.5"), "--streams 1.5: a whole number"),
        (("--log-requests",), "--log-requests needs --log"),
        (("extra",), "extra: only options"),
        (("--bogus",), "usage:"),
    ],
)
def test_wrong_options(sim: Simulator, words: tuple[str, ...], says: str) -> None:
    assert says in work(sim, *words, status=2).stderr


def test_no_card_is_a_sentence(sim: Simulator) -> None:
    assert "cuInit says CUDA_ERROR_NO_DEVICE" in work(sim, status=3, CUDA_VISIBLE_DEVICES="").stderr
    assert "this process sees 1 card, numbered" in work(sim, "--device", "3", status=3).stderr
    bare = subprocess.run([BINARY], env={"PATH": "/bin"}, capture_output=True, text=True, check=False)
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
    out, _ = process.communicate(timeout=10)
    assert process.returncode == 0 and "latency p50" in out and time.monotonic() - begin < 2
