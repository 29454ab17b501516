"""Unusual programs (programs/submit/strange.c): they end well, and all their work is counted."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from shim_memory_support import sanitizer_and_twin

from bench.harness.node import BUILD, Rig, wait_for

pytestmark = [
    pytest.mark.native,
    pytest.mark.skipif(os.getuid() != 0, reason="needs root: sealed grants"),
]
PROGRAM = BUILD / "test" / "shim-strange"
JOB = 1
EXACT = ["tiny_stacks", "in_handlers", "at_ends_of_threads", "at_exit", "spawns", "closed"]


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with Rig(tmp_path) as running:
        running.grant(JOB, "offline", mem_mib=1024)
        yield running


def ended(process: subprocess.Popen[str]) -> str:
    """What it printed; fails if it did not end well, or said anything else."""
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, ""), (process.returncode, out, err)
    return out.strip()


def under_slurm(rig: Rig, *words: str | Path) -> list[str]:
    """As a descendant of a recorded slurmstepd: who closed its grant's descriptor is known by
    that.
    """
    text = f'{{"job": {JOB}, "pid": %d, "start": %d}}\\n'
    record = f"printf '{text}' $$ $(cut -d' ' -f22 /proc/$$/stat) > {rig.run_dir}/steps/$$"
    (rig.run_dir / "steps").mkdir(exist_ok=True)
    return ["/bin/bash", "-c", f"{record}; {' '.join(map(str, (PROGRAM, *words)))}; exit $?"]


def nothing_left(rig: Rig, launches: int) -> None:
    """The arbiter has counted so many launches, and the program is out of its books."""
    tenant = rig.link.stats
    wait_for("all are counted", lambda: tenant()[0].launches >= launches)
    wait_for(
        "it is over", lambda: not (tenant()[0].procs or tenant()[0].mem_used or tenant()[0].busy)
    )


@pytest.mark.parametrize("what", EXACT)
def test_strange_program(rig: Rig, what: str) -> None:
    launches = int(ended(rig.spawn(under_slurm(rig, what), rig.grants[JOB])))
    nothing_left(rig, launches)
    assert rig.link.stats()[0].launches == launches


@pytest.mark.parametrize("what", ["tiny_stacks", "at_ends_of_threads", "spawns"])
def test_strange_program_under_sanitizers(rig: Rig, what: str) -> None:
    env = {"LD_PRELOAD": sanitizer_and_twin(), "ASAN_OPTIONS": "detect_leaks=0"}
    launches = int(ended(rig.spawn([PROGRAM, what], rig.grants[JOB], env=env)))
    nothing_left(rig, launches)


def test_exit_amid_launches_of_other_threads(rig: Rig) -> None:
    launches = int(ended(rig.spawn([PROGRAM, "exit_amid_work"], rig.grants[JOB])))
    nothing_left(rig, launches)


@pytest.mark.parametrize("how", ["local", "namespace"])
def test_however_the_driver_is_loaded(rig: Rig, how: str) -> None:
    """A namespace of its own (dlmopen) finds what lies under the driver's name: the shim, where
    it is mounted there.
    """
    path = "libcuda.so.1" if how == "local" else str(rig.shim)
    launches = int(ended(rig.spawn([PROGRAM, "tiny_stacks", how, path], rig.grants[JOB])))
    nothing_left(rig, launches)
    assert rig.link.stats()[0].launches == launches


def test_odd_questions_get_the_drivers_answers(rig: Rig) -> None:
    """Unknown names, versions and flags, and no place for the answer."""
    assert ended(rig.spawn([PROGRAM, "asks"], rig.grants[JOB])) == ended(
        rig.spawn([PROGRAM, "asks"], None)
    )
