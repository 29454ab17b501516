"""Random programs of right and wrong calls have the same answers with the shim as without it (random_calls.py)."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.rig import Rig

pytestmark = [pytest.mark.native, pytest.mark.skipif(os.getuid() != 0, reason="needs root: sealed grants")]
HERE = Path(__file__).resolve().parent
JOB, NEIGHBOUR = 1, 2
STEPS = int(os.environ.get("QGPU_TEST_STEPS", "700"))
SEEDS = range(int(os.environ.get("QGPU_TEST_SEED", "1")), int(os.environ.get("QGPU_TEST_SEED", "1")) + 16)
OF_CONTEXTS = ("201", "700", "709")  # none, one that died of a fault, one that was destroyed


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with Rig(tmp_path) as running:
        running.grant(JOB, "offline", mem_mib=65536)
        running.grant(NEIGHBOUR, "offline", mem_mib=1024)
        yield running


def answers(rig: Rig, governed: bool, seed: int) -> list[list[str]]:
    """What each call of the program answered."""
    argv = [sys.executable, HERE / "random_calls.py", str(seed), str(STEPS)]
    grant = rig.grants[JOB] if governed else None
    process = rig.spawn(argv, grant, env={"PYTHONPATH": str(HERE)})
    try:
        out, err = process.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        pytest.fail(f"it hangs in {out.splitlines()[-1:]} after {len(out.splitlines())} calls {err}")
    assert (process.returncode, err) == (0, ""), out.splitlines()[-3:]
    return [line.split() for line in out.splitlines()]


def same(plain: list[str], ours: list[str]) -> bool:
    """Of two things that are wrong with a call, one is the context: which of them is named is not our promise."""
    return plain == ours or (plain[0] == ours[0] and plain[1] != "0" and ours[1] in OF_CONTEXTS)


@pytest.mark.parametrize("seed", SEEDS)
def test_random_programs_have_the_drivers_answers(rig: Rig, seed: int) -> None:
    plain = answers(rig, False, seed)
    if seed % 2:  # its gate closes and opens all the time
        rig.workload(rig.grants[NEIGHBOUR], "--length", "60", "--iters", "200000", "--no-sync-each=16")
    ours = answers(rig, True, seed)
    assert len(plain) == len(ours) == STEPS
    different = [
        (i, mine, *plain[max(0, i - 5) : i]) for i, mine in enumerate(ours) if not same(plain[i], mine)
    ]
    assert different[:1] == []
    assert len({name for name, status in ours if status == "0"}) > 30, "most calls succeed now and then"
