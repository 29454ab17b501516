"""The set for a card, on the simulator: that its scripts run, resume and keep to their time.
Promises no figure.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = [
    pytest.mark.native,
    pytest.mark.skipif(os.geteuid() != 0, reason="makes device nodes and grants"),
    pytest.mark.timeout(900),
]
AGAIN = 4  # the exit status when items are left for another call
ITEMS = (
    "probe/machine",
    "probe/job_page",
    "driver-api plain",
    "memory/",
    "preempt/200 us qgpu",
    "burst-share 30/70",
    "faults/",
)


def gpu(results: Path, *words: str, status: int = 0) -> str:
    """One call of the set; its exit status has to be this one."""
    done = call(results, *words)
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout


def call(results: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """One call of the set."""
    command = [
        sys.executable,
        "-m",
        "bench.gpu",
        "--sim",
        "--quick",
        "--results",
        str(results),
        *words,
    ]
    env = {k: v for k, v in os.environ.items() if k != "QGPU_SIM_DIR"}
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=400)


def rows(results: Path) -> dict[str, dict[str, Any]]:
    """What was recorded, by item."""
    lines = (results / "simulated/results.jsonl").read_text().splitlines()
    return {row["item"]: row for row in map(json.loads, lines)}


def test_what_the_simulator_can_play_runs_and_is_labelled(tmp_path: Path) -> None:
    only = [word for item in ITEMS for word in ("--only", item)]
    while (done := call(tmp_path, *only, "--budget", "200")).returncode == AGAIN:
        pass  # a busy machine needs several calls; each does one item at least
    assert done.returncode == 0, done.stdout + done.stderr
    found = rows(tmp_path)
    made = {name: row for name, row in found.items() if row["state"] == "done"}
    assert len(made) == 11, {
        name: row["notes"] for name, row in found.items() if row["state"] == "failed"
    }
    figures = {(name, f["name"]): f for name, row in made.items() for f in row["figures"]}
    assert all(figure["simulated"] for figure in figures.values())
    values = {key: figure["value"] for key, figure in figures.items()}
    assert values["works/driver-api plain", "same_bits"] == 1
    assert values["memory/driver-api", "held_above_cap"] == 0
    assert values["memory/driver-api", "own_error"] == 1
    assert values["memory/books", "overhead_differs_by"] == 0
    assert values["faults/illegal address", "victim_gets_its_error"] == 1
    assert values["faults/kill -9 in a kernel", "victim_held"] >= 1024
    harmed = [key for key, value in values.items() if key[1] == "neighbour_unharmed" and value != 1]
    assert not harmed and sum(key[1] == "neighbour_unharmed" for key in values) == 4
    assert ("preempt/200 us qgpu", "card_free_us_p99_qgpu") in values
    skipped = {name for name, row in found.items() if row["state"] == "skipped"}
    assert {"memory/vmm", "memory/torch caching", "faults/illegal address under mps"} <= skipped
    assert "no figure here is of a GPU" in (tmp_path / "simulated/summary.md").read_text()

    said = gpu(tmp_path, *only, "--budget", "200")
    assert f"done before: {len(made)} items" in said and "FAILED" not in said


def test_a_call_starts_nothing_that_would_not_end_in_time(tmp_path: Path) -> None:
    said = gpu(tmp_path, "--part", "works", "--budget", "1", status=AGAIN)
    assert re.search(r"2 items did not fit into 1 s: the same command goes on", said)
    assert {row["state"] for row in rows(tmp_path).values()} == {"skipped"}


def test_the_list_starts_nothing(tmp_path: Path) -> None:
    said = gpu(tmp_path, "--list")
    assert "works/torch infer graphs expandable" in said and "shares/mps 30/70 small" in said
    assert not (tmp_path / "simulated").exists()
