"""A job is notified once of a program without limits; the daemon never waits for it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from enforcer.daemon.audit.findings import Finding
from enforcer.daemon.jobnotes import AT_ONCE, JobNotes, outside, sentence
from gres.grant.store import RUN_BASE


def finding(job: int | None = 7, pid: int = 12) -> Finding:
    return Finding("unregistered", "GPU-1", job, pid, (pid,), {})


@pytest.fixture
def scontrol(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    path = tmp_path / "scontrol"
    path.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" >> {tmp_path}/said\n')
    path.chmod(0o755)
    return path


def said(scontrol: Path, notes: JobNotes) -> list[str]:
    for process in notes._running:
        process.wait(60)
    path = scontrol.with_name("said")
    return path.read_text().splitlines() if path.exists() else []


def test_a_job_is_notified_once(scontrol: Path) -> None:
    notes = JobNotes(str(scontrol))
    for pid in (12, 13):
        notes.notify(finding(pid=pid), "log", 1000)
    notes.notify(finding(8), "kill", 1000)
    words = said(scontrol, notes)
    assert words.count("notify") == 2 and "7" in words and "8" in words
    assert any(
        "process 12 of this job uses card GPU-1 without qgpu's library" in word for word in words
    )
    assert any("It was killed." in word for word in words)


@pytest.mark.parametrize("job", [None, RUN_BASE + 1])
def test_only_jobs_of_slurm(scontrol: Path, job: int | None) -> None:
    notes = JobNotes(str(scontrol))
    notes.notify(finding(job), "log", 1000)
    assert said(scontrol, notes) == []


def test_a_slurmctld_that_hangs_gathers_no_processes(scontrol: Path) -> None:
    """One user may have half of the places; others are told meanwhile."""
    scontrol.write_text("#!/bin/sh\nexec sleep 600\n")
    notes = JobNotes(str(scontrol))
    for job in range(1, 20):
        notes.notify(finding(job), "log", 1000)
    assert len(notes._running) == AT_ONCE // 2
    for job in range(20, 40):
        notes.notify(finding(job), "log", 980 + job)
    assert len(notes._running) == AT_ONCE and set(notes._running.values()) == {1000, 1001, 1002}
    for process in notes._running:
        process.kill()
        process.wait()
    notes.notify(finding(19), "log", 1000)
    (last,) = notes._running
    assert "19" in last.args, "those that were passed over are told later"
    last.kill()
    last.wait()


@pytest.mark.parametrize("harm", ["missing", "open"])
def test_no_such_program_is_no_fault(scontrol: Path, harm: str) -> None:
    scontrol.unlink() if harm == "missing" else scontrol.chmod(0o777)
    notes = JobNotes(str(scontrol))
    notes.notify(finding(), "log", 1000)
    assert said(scontrol, notes) == []


def test_under_systemd_the_command_leaves_the_unit() -> None:
    assert outside({}) == [] and outside({"NOTIFY_SOCKET": ""}) == []
    if shutil.which("systemd-run", path="/usr/bin:/bin") is None:
        pytest.skip("needs systemd-run")
    words = outside({"NOTIFY_SOCKET": "1", "SLURM_CONF": "/etc/slurm/x"})
    assert (
        words[0].endswith("/systemd-run")
        and words[-1] == "--"
        and "--setenv=SLURM_CONF=/etc/slurm/x" in words
    )


def test_sentence_says_what_to_do() -> None:
    text = sentence(finding(), "log")
    assert text.startswith("qgpu: ") and "LD_PRELOAD" in text and "killed" not in text
