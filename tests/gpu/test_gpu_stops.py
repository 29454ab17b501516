"""The experiments on stopping kernels: their judge, their kernels' code, and that they run on
the simulator.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench.gpu.experiments import hold, own, product, stops
from bench.gpu.experiments.hold import PARTS
from bench.gpu.loads import Played, Scene
from bench.gpu.place import PROGRAMS, Place
from bench.gpu.truth import Piece, merged
from simulator.judge import evaluate as ev
from simulator.sim import SimConfig, Simulator

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "build"
EXPERIMENTS = ROOT / "bench/gpu/experiments"
US = 1000
ROW = {
    "stop_ns": 1000 * US,
    "stopped_ns": 1200 * US,
    "continue_ns": 3000 * US,
    "online_submit_ns": 1300 * US,
    "online_done_ns": 1500 * US,
}
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="makes device nodes")


# ---- the judge -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        ([], 0.0),
        ([(0, 900)], 0.0),  # it stood still before the stop was even asked for
        ([(0, 1100)], 100.0),
        ([(0, 1100), (3000, 9000)], 100.0),  # afterwards it may run
        ([(0, 1100), (1500, 1600)], 600.0),  # it ran once more in between
        ([(0, 9000)], None),  # it was never stopped
        ([(0, 1100), (2900, 9000)], None),  # it came back by itself
    ],
)
def test_last_progress_is_what_lies_between_stop_and_continue(
    pieces: list[tuple[int, int]], expected: float | None
) -> None:
    assert stops.progress_us(ROW, [stops.Piece(a * US, b * US) for a, b in pieces]) == expected


def test_the_first_online_kernel_is_the_one_that_was_submitted_after_the_stop() -> None:
    pieces = [stops.Piece(a * US, a * US + US) for a in (100, 1350, 1450, 2000)]
    assert stops.started_us(ROW, pieces) == 350.0
    assert stops.started_us(ROW, pieces[3:]) is None


def test_pieces_of_many_blocks_are_one_where_they_overlap() -> None:
    pieces = [Piece(5, 9), Piece(0, 3), Piece(2, 4), Piece(8, 12), Piece(20, 21)]
    assert [(p.t_start, p.t_end) for p in merged(pieces)] == [(0, 4), (5, 12), (20, 21)]


# ---- the list ------------------------------------------------------------------------------------


def test_the_list_is_complete_ranked_and_each_is_short(tmp_path: Path) -> None:
    """docs/measurements/README.md: 1 to 9, and the product's own backend after them; nothing
    longer than a minute.
    """
    for simulated in (True, False):
        place = Place(simulated, tmp_path)
        items = [item for part in (own, stops, hold, product) for item in part.items(place)]
        assert all(item.seconds < 60 for item in items)
        words = [item.name.removeprefix("experiments/").split()[0] for item in items]
        assert set("123456789") <= {word[0] for word in words} and words[-1] == "product"
        assert all(item.needs == () for item in items) is simulated
        assert len({item.name for item in items}) == len(items)
        assert sum(item.name.startswith("experiments/9 hold") for item in items) == PARTS


def test_no_command_of_the_experiments_is_about_more_than_own_groups() -> None:
    """The safety rule, by what the sources can say at all: commands of a group, of own channels,
    and reading.
    """
    text = "".join(path.read_text() for path in EXPERIMENTS.glob("*.[ch]"))
    numbers = set(re.findall(r"0x(?:a06[cf]|2080|0080|83de)[0-9a-f]{4}", text))
    assert numbers == {"0xa06f0103"}, "only watched: whether libcuda lets a channel run"
    named = set(re.findall(r"\bRM_(?:GROUP|SUBDEVICE|CLIENT)_[A-Z_]+", text))
    assert named == {
        "RM_GROUP_SCHEDULE",
        "RM_GROUP_SET_TIMESLICE",
        "RM_GROUP_GET_TIMESLICE",
        "RM_GROUP_PREEMPT",
        "RM_GROUP_GET_INFO",
        "RM_SUBDEVICE_DISABLE_CHANNELS",
        "RM_SUBDEVICE_SET_PREEMPTION_MODE",
    }


# ---- the kernels ---------------------------------------------------------------------------------


@pytest.mark.skipif(not shutil.which("ptxas"), reason="ptxas is not installed")
@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_90", "sm_100"])
def test_the_kernels_assemble(tmp_path: Path, arch: str) -> None:
    command = [
        "ptxas",
        f"-arch={arch}",
        str(EXPERIMENTS / "beat.ptx"),
        "-o",
        str(tmp_path / "beat"),
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def body(ptx: str) -> list[str]:
    """Instructions without comments, version and blanks."""
    lines = [re.sub(r"//.*", "", line).strip() for line in ptx.splitlines()]
    return [line for line in lines if line and not line.startswith(".version")]


@pytest.mark.skipif(not shutil.which("nvcc"), reason="nvcc is not installed")
def test_the_kernels_are_made_of_their_source(tmp_path: Path) -> None:
    command = [
        "nvcc",
        "-ptx",
        "-arch=compute_75",
        "-O2",
        str(EXPERIMENTS / "beat.cu"),
        "-o",
        str(tmp_path / "beat.ptx"),
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    if "compute_75" in done.stderr:
        pytest.skip("this nvcc does not know compute_75")
    assert done.returncode == 0, done.stderr
    kept, made = ((path / "beat.ptx").read_text() for path in (EXPERIMENTS, tmp_path))
    entries = re.compile(r"\.visible \.entry (\w+)")
    assert entries.findall(kept) == entries.findall(made)
    release = subprocess.run(["nvcc", "--version"], capture_output=True, text=True).stdout
    if "release 13.0" in release:  # what it was made with
        assert body(kept) == body(made)


def test_both_sides_know_the_same_layouts() -> None:
    """beat.cu and card.h repeat each other: names and order of the fields."""
    cu, c = (EXPERIMENTS / "beat.cu").read_text(), (EXPERIMENTS / "card.h").read_text()
    for kernel, host in (("Board", "board"), ("Gap", "gap"), ("Block", "block")):
        fields = [
            re.search(rf"struct {name} {{(.*?)\n}};", text, re.DOTALL)[1]
            for name, text in ((kernel, cu), (host, c))
        ]  # type: ignore[index]
        names = [re.findall(r"(\w+)(?=[,;])", re.sub(r"/\*.*?\*/", "", text)) for text in fields]
        assert names[0] == names[1], kernel
    assert "PAUSE_NS" in (PROGRAMS / "tenant.cu").read_text()


# ---- on the simulator ----------------------------------------------------------------------------


@pytest.fixture
def card(tmp_path: Path) -> Any:
    """A simulated card whose control device is there."""
    with Simulator.start(SimConfig(tmp_path, "stops"), BUILD) as simulator:
        if simulator.control_device() is None:
            pytest.skip("the simulator offers no control device on this machine")
        yield simulator


def run(card: Simulator, *words: str) -> list[dict[str, Any]]:
    env = {"PATH": os.environ["PATH"]} | card.env()
    done = subprocess.run(
        [BUILD / "test/stops", *words], env=env, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def traced(card: Simulator, pid: int, done: Callable[[list[Any]], bool]) -> list[Any]:
    """What the process executed, once the device side has written what is asked for."""
    limit = time.monotonic() + 20
    while not done(found := [piece for piece in card.intervals() if piece.pid == pid]):
        assert time.monotonic() < limit, "the trace never told it"
        time.sleep(0.02)
    return found


@needs_root
@pytest.mark.native
@pytest.mark.parametrize("method", ["schedule", "disable"])
def test_a_stop_stands_still_until_its_continue(card: Simulator, method: str) -> None:
    _, row = run(card, "spin", method, "60")
    assert (row["status"], row["status_continue"]) == ("0x0", "0x0")
    pieces = traced(
        card, row["pid"], lambda found: any(p.t_end > row["continued_ns"] for p in found)
    )
    assert any(p.t_start <= row["stop_ns"] <= p.t_end for p in pieces), "it ran before"
    assert stops.progress_us(row, pieces) is not None, "it stood still"


@needs_root
@pytest.mark.native
def test_a_stopped_kernel_keeps_its_work_and_online_gets_the_card(card: Simulator) -> None:
    rows = run(card, "latency", "schedule", "5")
    assert len(rows) == 5 and {row["status"] for row in rows} == {"0x0"}
    last = rows[-1]
    own_ = traced(
        card, last["pid"], lambda found: any(p.t_end > last["continued_ns"] for p in found)
    )
    other = traced(
        card,
        last["online_pid"],
        lambda found: any(p.t_start > last["online_submit_ns"] for p in found),
    )
    assert all(stops.progress_us(row, own_) is not None for row in rows)
    assert all(stops.started_us(row, other) is not None for row in rows)


@needs_root
@pytest.mark.native
def test_a_refused_stop_is_reported_and_nothing_stands_still(card: Simulator) -> None:
    """The other half: the same program where the driver says no."""
    for name in ("rm.preempt", "rm.set_timeslice"):
        card.control(f"error call={name} code=0x65")
    (row,) = (row for row in run(card, "spin", "timeslice0", "20") if "status" in row)
    assert row["status"] == "0x65"
    pieces = traced(
        card, row["pid"], lambda found: any(p.t_end > row["continue_ns"] for p in found)
    )
    assert stops.progress_us(row, pieces) is None


@needs_root
@pytest.mark.native
def test_held_in_parts_and_ended_by_signal_it_goes_on(card: Simulator) -> None:
    process = subprocess.Popen(
        [BUILD / "test/stops", "hold", "schedule", "60"],
        env={"PATH": os.environ["PATH"]} | card.env(),
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    first = json.loads(process.stdout.readline())
    assert first["held_s"] == 1 and first["status"] == "0x0"
    process.terminate()
    last = json.loads(process.communicate(timeout=30)[0].splitlines()[-1])
    assert last["ended"] and last["status_continue"] == "0x0" and process.returncode == 0


def test_wrong_words_start_nothing() -> None:
    for words in (
        ["latency", "schedule", "0"],
        ["spin", "schedule"],
        ["slices", "1", "2"],
        ["reset"],
        ["hold", "schedule", "9999"],
    ):
        done = subprocess.run(
            [BUILD / "test/stops", *words], capture_output=True, text=True, env={}
        )
        assert done.returncode == 2 and "usage" in done.stderr, words
    done = subprocess.run(
        [BUILD / "test/stops", "spin", "reset", "5"], capture_output=True, text=True, env={}
    )
    assert done.returncode == 3 and "no such method" in done.stdout


@needs_root
@pytest.mark.native
@pytest.mark.timeout(600)
def test_the_items_run_and_what_is_not_modelled_is_said(tmp_path: Path) -> None:
    """A figure may be short once on a busy machine: it is not in each of three calls."""
    only = ["1a sniff", "4 spin schedule", "6 slices default", "8 limits", "product self-test"]
    for call in "abc":
        rows = _experiments(tmp_path / call, only)
        assert len(rows) == len(only) and {row["state"] for row in rows} == {"done"}
        notes = {row["item"].removeprefix("experiments/"): row["notes"] for row in rows}
        assert notes["8 limits"][0].startswith("not possible: driver 580")
        figures = [(row["item"], figure) for row in rows for figure in row["figures"]]
        short = [(item, f["name"]) for item, f in figures if f["verdict"] == "short"]
        if all("slices" in item for item, _ in short):
            return
    raise AssertionError(short)


def _experiments(results: Path, only: list[str]) -> list[dict[str, Any]]:
    """What one call of the set recorded of these experiments."""
    command = [sys.executable, "-m", "bench.gpu", "--sim", "--quick", "--part", "experiments"]
    command += ["--results", str(results)]
    for name in only:
        command += ["--only", name]
    env = {k: v for k, v in os.environ.items() if k != "QGPU_SIM_DIR"}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stdout + done.stderr
    text = (results / "simulated/results.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


def test_an_online_program_that_stalls_ends_its_episode() -> None:
    """The gate may open then, and offline's progress is no fault; waiting for the card is
    no stall.
    """
    rows = [(0, 2), (3, 1), (10, 1), (11, 30), (60, 1), (99, 5)]
    log = [{"due_ns": due, "latency_ns": took} for due, took in rows]
    scene = Scene({"online": Played((), [{"burst": 1}, *log], {})}, 0, 100)  # type: ignore[list-item]
    assert product.episodes(scene, 5) == [ev.Burst(0, 4), ev.Burst(10, 41), ev.Burst(60, 61)]
