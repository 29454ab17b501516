"""Recordings of control calls: what both sides of the simulator say of the same process, and
what a comparison sees.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from bench.gpu.experiments.recording import Recording, RecordingError, differences, kind_of
from simulator.sim import SimConfig, Simulator

BUILD = Path(__file__).parents[2] / "build"
CASES = Path(__file__).parents[1] / "cases"
GROUP = {
    "call": "alloc64",
    "client": "0xc1",
    "object": "0x30",
    "parent": "0x10",
    "class": "0xa06c",
    "params_size": 20,
}


def calls(*more: dict[str, Any]) -> list[dict[str, Any]]:
    """A client with a device, a subdevice and a group with a channel."""
    rows: list[dict[str, Any]] = [
        {
            "call": "alloc",
            "client": "0x0",
            "object": "0xc1",
            "parent": "0x0",
            "class": "0x41",
            "params_size": 0,
        },
        {
            "call": "alloc64",
            "client": "0xc1",
            "object": "0x10",
            "parent": "0xc1",
            "class": "0x80",
            "params_size": 56,
        },
        {
            "call": "alloc64",
            "client": "0xc1",
            "object": "0x20",
            "parent": "0x10",
            "class": "0x2080",
            "params_size": 4,
        },
        GROUP,
        {
            "call": "alloc64",
            "client": "0xc1",
            "object": "0x40",
            "parent": "0x30",
            "class": "0xc86f",
            "params_size": 368,
        },
        {
            "call": "control",
            "client": "0xc1",
            "object": "0x30",
            "cmd": "0xa06c0101",
            "params_size": 3,
        },
        *more,
    ]
    return [{"status": "0x0"} | row for row in rows]


def test_kinds() -> None:
    names = ["0x0", "0x41", "0x80", "0x2080", "0xa06c", "0xc56f", "0xc96f", "0x6f", "0x90f1"]
    assert [kind_of(name) for name in names] == [
        "client",
        "client",
        "device",
        "subdevice",
        "group",
        "channel",
        "channel",
        "0x6f",
        "0x90f1",
    ]


def test_a_whole_recording_contradicts_nothing_and_a_torn_one_does() -> None:
    assert Recording(calls()).faults() == []
    assert (
        "a group below 0x10, which was never made"
        in Recording([calls()[0], calls()[3]]).faults()[0]
    )
    freed = {"call": "free", "client": "0xc1", "object": "0x30", "parent": "0x10"}
    assert Recording(calls(freed)).faults() == []
    assert "freed, but was never made or is gone" in Recording(calls(freed, freed)).faults()[0]
    refused = GROUP | {"object": "0x31", "parent": "0x99", "status": "0x36"}
    assert Recording(calls(refused)).faults() == [], "what the driver refused was never there"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"params_size": 24},
            "parameters of a group have {20} bytes in the model, {24} in the driver",
        ),
        (
            {"parent": "0x20"},
            "the model makes a group below a device; the driver below ['subdevice']",
        ),
    ],
)
def test_what_the_driver_does_otherwise_is_a_difference(change: dict[str, Any], words: str) -> None:
    model, real = Recording(calls()), calls()
    real[3] |= change
    assert words in differences(model, Recording(real))
    assert differences(model, Recording(calls())) == []


def test_a_command_of_another_size_is_a_difference_and_more_of_everything_is_none() -> None:
    other = {
        "call": "control",
        "client": "0xc1",
        "object": "0x10",
        "cmd": "0x801",
        "params_size": 9,
    }
    memory = {
        "call": "alloc64",
        "client": "0xc1",
        "object": "0x50",
        "parent": "0x10",
        "class": "0x3e",
    }
    real = calls(other, memory | {"params_size": 128})
    assert differences(Recording(calls()), Recording(real)) == []
    real[5] |= {"params_size": 4}
    assert differences(Recording(calls()), Recording(real)) == [
        "command 0xa06c0101 has 3 bytes in the model, [4] in the driver"
    ]


def test_a_file_that_is_none_is_refused_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    for line in ("{", '{"call": "poke"}', "[]", '{"t_us": 1}'):
        path.write_text(json.dumps(calls()[0]) + "\n" + line + "\n")
        with pytest.raises(RecordingError, match=r"x.jsonl:2: this is no line"):
            Recording.read(path)


@pytest.fixture
def both(tmp_path: Path) -> tuple[Recording, Recording]:
    """The same process, by itself and by the simulated device."""
    mine, theirs = tmp_path / "own.jsonl", tmp_path / "sim.jsonl"
    config = SimConfig(tmp_path / "sim", "record", extra=("--control-log", str(theirs)))
    config.directory.mkdir(mode=0o755)
    with Simulator.start(config, BUILD) as simulator:
        if simulator.control_device() is None:
            pytest.skip("the simulator offers no control device on this machine")
        env = {"PATH": os.environ["PATH"], "QGPU_OWN_RECORD": str(mine)} | simulator.env()
        done = subprocess.run(
            [BUILD / "test/own", "record"], env=env, capture_output=True, text=True, timeout=30
        )
        assert done.returncode == 0, done
    return Recording.read(mine), Recording.read(theirs)


@pytest.mark.native
@pytest.mark.skipif(os.geteuid() != 0, reason="makes device nodes")
def test_both_sides_of_the_simulator_tell_the_same(both: tuple[Recording, Recording]) -> None:
    mine, theirs = both
    assert mine.faults() == theirs.faults() == []
    assert mine.tree() == theirs.tree() and mine.tree()["channel", "group"] > 0
    assert differences(mine, theirs) == differences(theirs, mine) == []


@pytest.mark.native
@pytest.mark.skipif(os.geteuid() != 0, reason="makes device nodes")
def test_the_simulator_does_as_every_real_driver_that_was_recorded(
    both: tuple[Recording, Recording],
) -> None:
    recorded = sorted(CASES.glob("rm-*.jsonl"))
    if not recorded:
        pytest.skip(
            "no recording of a real driver has been made yet (make gpu PART=experiments "
            "ONLY=record)"
        )
    for path in recorded:
        real = Recording.read(path)
        assert real.faults() == [] and differences(both[0], real) == [], path
