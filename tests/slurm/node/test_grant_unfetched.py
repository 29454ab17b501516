"""A plugin that disappears after the Prolog, and allocations without a task: what the log and
the report say.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from jobs_support import Live, work

from enforcer.ledger.store import read_usage


@pytest.fixture
def plugin(live: Live, tmp_path: Path) -> Iterator[Path]:
    """The nodes' plugin file; it is there again afterwards."""
    path = live.sandbox.layout.opt / "lib/qgpu_spank.so"
    shutil.copy2(path, tmp_path / "plugin")
    yield path
    shutil.copy2(tmp_path / "plugin", path.with_suffix(".new"))
    path.with_suffix(".new").rename(path)


def ended(live: Live, job: int, node: str) -> tuple[int | None, str]:
    """What the ledger has of the grant, and the report's words."""
    live.wait_gone(job)
    (row,) = read_usage(live.paths(node).ledger, [job])
    live.wait_sacct(job)
    return row.fetched, live.ask("qgpu", "report", str(job))


def events(live: Live, job: int, node: str) -> list[str]:
    """The events of that job about a grant that was not taken."""
    lines = live.paths(node).log("qgpud").read_text().splitlines()
    return [line for line in lines if "event=grant-unfetched" in line and f"job={job} " in line]


def allocate(live: Live, command: str, node: str) -> int:
    """salloc in the background; the job's number once its Prolog has run."""
    before = set(live.grants())
    live.sandbox.popen(["salloc", "--gres=qgpu:10", "-w", node, "sh", "-c", command], user="alice")
    live.until(lambda: bool(set(live.grants()) - before), 20, "an allocation")
    (job,) = set(live.grants()) - before
    return job


def test_programs_that_ran_without_the_plugin_are_a_warning(live: Live, plugin: Path) -> None:
    node = live.nodes[0]
    go = live.sandbox.layout.home("alice") / "go"
    go.unlink(missing_ok=True)
    step = f"srun --gres=qgpu:10 {work('--length', '4', '--memory', '1G')}"
    job = allocate(live, f"until [ -e $HOME/go ]; do sleep 0.1; done; {step}", node)
    plugin.unlink()
    go.write_text("")
    fetched, report = ended(live, job, node)
    assert fetched == 0 and "without limits" in report and "SPANK plugin" in report
    (event,) = events(live, job, node)
    assert "WARNING" in event and "seen=yes" in event


def test_an_allocation_without_a_step_is_no_fault(live: Live) -> None:
    node = live.nodes[0]
    job = allocate(live, "sleep 1", node)
    fetched, report = ended(live, job, node)
    assert fetched == 0 and "salloc started no srun" in report
    (event,) = events(live, job, node)
    assert " INFO " in event and "seen=no" in event


@pytest.mark.parametrize("script", ["true", "srun -n1 --gres=qgpu:10 true"])
def test_a_governed_job_is_booked_as_such(live: Live, script: str) -> None:
    node = live.nodes[0]
    job = live.submit(script, "--gres=qgpu:10", "-w", node)
    fetched, report = ended(live, job, node)
    assert fetched == 1 and "no task took" not in report and events(live, job, node) == []
