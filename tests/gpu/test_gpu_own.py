"""The experiments on our own channel groups, over a driver that pretends: only own, living
handles are ever touched.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

BUILD = Path(__file__).parents[2] / "build"
DRIVER = BUILD / "test/own-driver/libcuda.so.1"
GROUPS = {"0x5c000010", "0x5c000020"}
SET, GET, INFO, SCHEDULE = "0xa06c0103", "0xa06c0104", "0xa06c0106", "0xa06c0101"
pytestmark = pytest.mark.native


def own(tmp_path: Path, *words: str) -> tuple[list[dict[str, object]], list[tuple[str, str]]]:
    """Its lines, and the controls that the driver got: object and command."""
    log = tmp_path / "log"
    env = {"PATH": os.environ["PATH"], "LD_PRELOAD": str(DRIVER), "QGPU_OWN_LOG": str(log)}
    done = subprocess.run(
        [BUILD / "test/own", *words], env=env, capture_output=True, text=True, timeout=30
    )
    assert done.returncode == 0, done
    controls = (
        [tuple(line.split()[1:]) for line in log.read_text().splitlines()] if log.exists() else []
    )
    return [json.loads(line) for line in done.stdout.splitlines()], controls


def test_handles_are_learned_from_the_drivers_own_calls(tmp_path: Path) -> None:
    rows, controls = own(tmp_path, "sniff")
    classes = {row["class"]: (row["allocated"], row["live"]) for row in rows if "class" in row}
    assert classes["0xa06c"] == (3, 2), "one was freed; one that the driver refused was never there"
    assert classes["0x2080"] == (1, 1) and classes["0x41"] == (1, 1)
    assert controls == []


def test_asking_reads_each_living_group_once(tmp_path: Path) -> None:
    rows, controls = own(tmp_path, "ask")
    assert {(row["group"], row["engine"], row["us"]) for row in rows} == {
        ("0x5c000010", 1, 1024),
        ("0x5c000020", 9, 2048),
    }
    assert set(controls) == {(group, cmd) for group in GROUPS for cmd in (GET, INFO)}


def test_a_slice_is_set_read_and_put_back(tmp_path: Path) -> None:
    rows, controls = own(tmp_path, "slice", "500")
    assert [row["after_us"] for row in rows] == [500, 500]
    assert {row["put_back"] for row in rows} == {"0x0"}
    assert {group for group, _ in controls} == GROUPS
    assert [cmd for group, cmd in controls if group == "0x5c000010"] == [GET, SET, GET, SET]


def test_every_stopped_group_continues(tmp_path: Path) -> None:
    rows, controls = own(tmp_path, "pause", "5")
    assert sum("stop" in row for row in rows) == sum("continue" in row for row in rows) == 2
    assert set(controls) == {(group, SCHEDULE) for group in GROUPS} and len(controls) == 4


def test_wrong_words_touch_nothing(tmp_path: Path) -> None:
    env = {
        "PATH": os.environ["PATH"],
        "LD_PRELOAD": str(DRIVER),
        "QGPU_OWN_LOG": str(tmp_path / "log"),
    }
    for words in (["slice", "0"], ["pause", "5000"], ["reset"]):
        done = subprocess.run([BUILD / "test/own", *words], env=env, capture_output=True, text=True)
        assert done.returncode == 2 and "usage" in done.stderr
    assert not (tmp_path / "log").exists()


def test_the_other_process_gets_the_descriptor_by_message_and_by_pidfd(tmp_path: Path) -> None:
    """The pretended driver answers its own process only; a passed descriptor reaches the kernel."""
    rows, controls = own(tmp_path, "outsider")
    status = {row["from_outside"]: row["status"] for row in rows}
    assert status["scm_rights"] == "0xffff0019", (
        "ENOTTY of /dev/null: the descriptor is open over there"
    )
    assert status["pidfd_getfd"] in ("0xffff0019", "0xffff0001"), "or the kernel forbids taking it"
    assert status["fresh"] != "0x0" and controls == []
