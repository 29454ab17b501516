"""On a machine with a card: everything of the set that must hold exactly. Figures are for `make
gpu`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def real_card() -> bool:
    """Whether NVIDIA's driver and a card are here."""
    return Path("/dev/nvidiactl").exists() and Path("/dev/nvidia0").exists() and os.geteuid() == 0


@pytest.mark.gpu
@pytest.mark.timeout(900)
@pytest.mark.skipif(not real_card(), reason="no card here, or not root")
@pytest.mark.parametrize("part", ["probe", "works", "memory", "faults"])
def test_part_holds_on_the_card(tmp_path: Path, part: str) -> None:
    command = [
        sys.executable,
        "-m",
        "bench.gpu",
        "--part",
        part,
        "--results",
        str(tmp_path),
        "--budget",
        "0",
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=880)
    rows = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    failed = {row["item"]: row["notes"] for row in rows if row["state"] == "failed"}
    short = [
        (row["item"], f["name"], f["value"])
        for row in rows
        for f in row["figures"]
        if f["verdict"] == "short"
    ]
    assert done.returncode == 0 and not failed and not short, (failed, short, done.stderr[-500:])
