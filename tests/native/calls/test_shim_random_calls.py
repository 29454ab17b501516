"""Random programs of right and wrong calls have the same answers with the shim as without it
(random_calls.py).
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import sim_tools

from bench.harness.node import Rig

pytestmark = [
    pytest.mark.native,
    pytest.mark.skipif(os.getuid() != 0, reason="needs root: sealed grants"),
]
HERE = Path(__file__).resolve().parents[2] / "support/shim"
JOB, NEIGHBOUR = 1, 2
STEPS = int(os.environ.get("QGPU_TEST_STEPS", "700"))
SEEDS = range(
    int(os.environ.get("QGPU_TEST_SEED", "1")), int(os.environ.get("QGPU_TEST_SEED", "1")) + 16
)
THREADS = 4
OF_CONTEXTS = ("201", "700", "709")  # none, one that died of a fault, one that was destroyed


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with Rig(tmp_path) as running:
        running.grant(JOB, "offline", mem_mib=65536)
        running.grant(NEIGHBOUR, "offline", mem_mib=1024)
        yield running


def answers(
    rig: Rig, governed: bool, seed: int, script: str = "random_calls.py", *more: int
) -> list[list[str]]:
    """What each call of the program answered."""
    argv = [sys.executable, HERE / script, str(seed), str(STEPS), *map(str, more)]
    grant = rig.grants[JOB] if governed else None
    process = rig.spawn(argv, grant, env={"PYTHONPATH": sim_tools.SUPPORT})
    try:
        out, err = process.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        pytest.fail(
            f"it hangs in {out.splitlines()[-1:]} after {len(out.splitlines())} calls {err}"
        )
    assert (process.returncode, err) == (0, ""), out.splitlines()[-3:]
    return [line.split() for line in out.splitlines()]


def same(plain: list[str], ours: list[str]) -> bool:
    """Of two things that are wrong with a call, one is the context: which of them is named is
    not our promise.
    """
    return plain == ours or (plain[0] == ours[0] and plain[1] != "0" and ours[1] in OF_CONTEXTS)


@pytest.mark.parametrize("seed", SEEDS)
def test_random_programs_have_the_drivers_answers(rig: Rig, seed: int) -> None:
    plain = answers(rig, False, seed)
    if seed % 2:  # its gate closes and opens all the time
        rig.workload(
            rig.grants[NEIGHBOUR], "--length", "600", "--iters", "200000", "--no-sync-each=16"
        )
    ours = answers(rig, True, seed)
    assert len(plain) == len(ours) == STEPS
    different = [
        (i, mine, *plain[max(0, i - 5) : i])
        for i, mine in enumerate(ours)
        if not same(plain[i], mine)
    ]
    assert different[:1] == []
    assert len({name for name, status in ours if status == "0"}) > 30, (
        "most calls succeed now and then"
    )


def of(number: int, lines: list[list[str]]) -> list[list[str]]:
    """The answers of one thread's program."""
    return [line[1:] for line in lines if line[0] == str(number)]


@pytest.mark.parametrize("seed", SEEDS[:4])
def test_programs_in_threads_have_them_too(rig: Rig, seed: int) -> None:
    """The driver answers twice: an address that is gone may be another program's by then, once
    in a million calls.
    """
    driver = [answers(rig, False, seed, "random_threads.py", THREADS) for _ in range(2)]
    if seed % 2:
        rig.workload(
            rig.grants[NEIGHBOUR], "--length", "600", "--iters", "200000", "--no-sync-each=16"
        )
    ours = answers(rig, True, seed, "random_threads.py", THREADS)
    assert len(ours) == STEPS * THREADS
    for number in range(THREADS):
        plain = list(zip(*(of(number, lines) for lines in driver), strict=True))
        different = [
            (i, mine, *plain[max(0, i - 5) : i + 1])
            for i, mine in enumerate(of(number, ours))
            if not any(same(theirs, mine) for theirs in plain[i])
        ]
        assert different[:1] == []
