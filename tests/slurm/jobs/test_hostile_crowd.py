"""Many jobs of one user at once, each made to fail in a way of its own: no node is drained, no
grant stays, and others work.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from jobs_support import Live

from enforcer.ledger.store import read_usage

CROWD = 40
SHARE = ("--gres=qgpu:1", "-o", "/dev/null")
FEW = 4  # are cancelled in their Prolog, and as many in their Epilog
GATE = """#!/bin/sh
[ -e {place}/wait.$SLURM_JOB_ID ] || exec {real}
touch {place}/in.$SLURM_JOB_ID
until [ -e {place}/go ]; do sleep 0.05; done
exec {real}
"""
NAME = "\x1b[2J\x1b]0;root\x07\n\r\t\x01x|'\"%s%n\u202e"
# A script, and options of sbatch; {long} is a text within Slurm's bounds for environments.
WAYS = (
    ("true", ["--export=ALL,LD_LIBRARY_PATH=/proc/self/cwd:::.:/nowhere"]),
    ("true", ["--export=ALL,LD_PRELOAD=/nowhere/evil.so,QGPU_GRANT=/etc/passwd,QGPU_GRANT_FD=0"]),
    ("true", ["--export=ALL,LONG={long}"]),
    ("true", ["--export=NONE"]),
    ("sleep 0.5", [f"--job-name={NAME}", f"--comment={NAME}", f"--wckey={NAME[:30]}"]),
    ("exit 1", []),
    ("kill -9 $$", []),
    ("kill -9 $PPID; exec sleep 600", ["--time=1"]),
    ("exec sleep 600", ["--chdir={home}/gone"]),
    ("true", ["--output=/root/no", "--error=/nowhere/no"]),
    ("srun --overlap /nowhere/program; srun -n2 --overcommit bash -c 'kill -9 $$'", []),
    ("rm -f $0; cd /; ulimit -n 3; ulimit -v 1000; exec true", []),
)


@pytest.fixture
def gone(live: Live) -> Iterator[Path]:
    """A directory of alice's that exists while jobs are submitted, and not when they start."""
    place = live.sandbox.layout.home("alice") / "gone"
    live.ask("mkdir", "-p", str(place), user="alice")
    yield place
    live.ask("rm", "-rf", str(place), user="alice")


def crowd(live: Live, node: str, gone: Path) -> list[int]:
    """CROWD jobs that wait for their release."""
    words = {"long": "x" * 100_000, "home": str(gone.parent)}
    jobs = []
    for number in range(CROWD):
        script, options = WAYS[number % len(WAYS)]
        said = [option.format(**words) if "{" in option else option for option in options]
        jobs.append(live.submit(script, "-H", *SHARE, "-w", node, *said))
    gone.rmdir()
    return jobs


def release(live: Live, jobs: list[int]) -> None:
    live.ask("scontrol", "release", ",".join(map(str, jobs)), user="alice")


@contextmanager
def gate(live: Live, kind: str) -> Iterator[Path]:
    """The Prolog or Epilog of each job N waits until the end of the block, if there is a file
    wait.N in the directory that this yields. It makes a file in.N then.
    """
    script, place = live.sandbox.layout.etc / kind, live.sandbox.layout.state / f"in-{kind}"
    real = script.with_suffix(".real")
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    shutil.copy2(script, real)
    exchange(script, GATE.format(place=place, real=real))
    try:
        yield place
    finally:
        (place / "go").touch()
        exchange(script, real.read_text())


def exchange(script: Path, text: str) -> None:
    new = script.with_suffix(".new")
    new.write_text(text)
    new.chmod(0o755)
    new.rename(script)


def cancelled_in(live: Live, kind: str, node: str) -> list[int]:
    """Jobs, of which their user cancels and kills those that are in their Prolog or Epilog."""
    with gate(live, kind) as place:
        jobs = [live.submit("true", "-H", *SHARE, "-w", node) for _ in range(FEW)]
        for job in jobs:
            (place / f"wait.{job}").touch()
        release(live, jobs)
        live.until(lambda: any(place.glob("in.*")), 10, place.name)
        # not all: Slurm drains a node whose Epilog takes longer than PrologEpilogTimeout
        inside = [path.suffix[1:] for path in place.glob("in.*")]
        for options in ((), ("-s", "KILL"), ("-s", "KILL", "--full"), ("-s", "STOP", "--batch")):
            live.run("scancel", *options, *inside, user="alice")
    return jobs


def assert_nothing_is_left(live: Live, node: str, jobs: list[int]) -> None:
    for job in jobs:
        live.wait_gone(job)
    assert not live.drained()
    live.until(lambda: not live.grants(), 20, "no grant being left")
    place = live.paths(node).run_dir
    names = {str(job) for job in jobs}
    for path in (*(place / "grants").iterdir(), *(place / "spank").iterdir()):
        # JOBID.over stays for six hours: docs/specs/limits.md
        assert path.suffix == ".over" or path.name.partition(".")[0] not in names, path
    assert not [row for row in read_usage(live.paths(node).ledger, jobs) if row.ended_at is None]


def test_a_crowd_of_hostile_jobs_drains_no_node(live: Live, gone: Path) -> None:
    node = live.nodes[0]
    jobs = crowd(live, node, gone)
    jobs += cancelled_in(live, "prolog", node)
    release(live, jobs[:CROWD])
    jobs += cancelled_in(live, "epilog", node)
    live.until(lambda: not live.run("squeue", "-h", "-t", "PD").stdout, 60, "all of them to start")
    live.cancel(*jobs, user="alice")
    assert_nothing_is_left(live, node, jobs)
    job = live.submit("true", "-w", node, "--gres=qgpu:10", user="bob")
    live.wait_gone(job)
    live.wait_sacct(job, "COMPLETED")
    assert not live.drained()
