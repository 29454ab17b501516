"""The experiments on checkpoints, on the simulator: what they ask a card is asked here first."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from test_gpu_sim import AGAIN, call, rows

from bench.gpu.experiments import checkpoint
from bench.gpu.place import Place

pytestmark = [
    pytest.mark.native,
    pytest.mark.skipif(os.geteuid() != 0, reason="makes device nodes and grants"),
    pytest.mark.timeout(900),
]


def test_each_is_under_a_minute(tmp_path: Path) -> None:
    names = [item.name for item in checkpoint.items(Place(False, tmp_path))]
    assert all(item.seconds < 60 for item in checkpoint.items(Place(False, tmp_path)))
    assert len(set(names)) == len(names) == 12


def test_memory_moves_and_returns_unchanged(tmp_path: Path) -> None:
    only = ("--part", "experiments", "--only", "checkpoint")
    while (done := call(tmp_path, *only, "--budget", "200")).returncode == AGAIN:
        pass  # a busy machine needs several calls; each does one item at least
    assert done.returncode == 0, done.stdout + done.stderr
    found = rows(tmp_path)
    made = {name: row for name, row in found.items() if row["state"] == "done"}
    assert len(made) == 6, {name: row["notes"] for name, row in found.items()}
    figures = [(name, f) for name, row in made.items() for f in row["figures"]]
    values = {(name, f["name"]): f["value"] for name, f in figures}
    changed = [value for (_, name), value in values.items() if name.endswith("pages_changed")]
    moved = [value for (_, name), value in values.items() if name.endswith("moved")]
    assert changed == [0] * 6 and moved == [1] * 6
    assert values["experiments/12 checkpoint under load", "freed"] >= 8
    assert values["experiments/15 kill -9 while checkpointed", "others_compute"] == 1
