"""Daemons that die while twenty jobs run, jobs that are suspended, and jobs that are cancelled
in each phase.
"""

from __future__ import annotations

import signal
import time
from collections import Counter
from pathlib import Path

import pytest
from jobs_support import Live, together, work

from enforcer.ledger.store import read_usage

CLUSTER = ("slurmctld", "slurmdbd", "mariadbd")
NODE = ("slurmd", "qgpud", "arbiter")


def restart(live: Live, service: str) -> None:
    """kill -9, and a new one."""
    if service in CLUSTER:
        live.sandbox.restart(service)
        return
    node = live.nodes[0]
    live.sandbox.kill(node, service, signal.SIGKILL)
    live.sandbox.start(node, service)


def _written(state: Path) -> float:
    """When the file was written; slurmctld renames it before it puts a new one in its place."""
    try:
        return state.stat().st_mtime
    except FileNotFoundError:
        return 0


def promised(live: Live) -> Counter[str]:
    """Memory of each card that standing grants promise."""
    found: Counter[str] = Counter()
    for grant in live.grants().values():
        for card in grant.cards:
            found[card.uuid] += card.mem_cap
    return found


@pytest.mark.parametrize("service", [*CLUSTER, *NODE])
def test_twenty_jobs_outlive_the_death_of(live: Live, service: str) -> None:
    go = live.sandbox.layout.home("alice") / "go"
    go.unlink(missing_ok=True)
    script = "echo up; until [ -e go ]; do sleep 0.1; done; " + work("--requests", "20")
    options = ("--qos=offline", "--gres=qgpu:20,vram:15G")
    jobs = together(lambda: live.submit(script, *options) for _ in range(20))
    live.until(lambda: set(jobs) <= set(live.grants()), 30, "twenty grants")
    # A slurmd that is killed before it could tell of its Prolog leaves a job that waits for that
    # for ever (26.05).
    live.until(lambda: all(live.output(job).startswith("up") for job in jobs), 30, "twenty scripts")
    before = {job: live.place(job) for job in jobs}
    saved, now = live.sandbox.layout.state / "spool/slurmctld/job_state", time.time()
    live.ask("scontrol", "update", f"JobId={jobs[0]}", "Comment=saved")
    live.until(
        lambda: _written(saved) > now,
        20,
        "slurmctld writing its state, which it does every few seconds",
    )
    restart(live, service)
    assert {job: live.place(job) for job in jobs} == before
    assert max(promised(live).values()) <= 78 << 30
    go.write_text("")
    live.finish(*jobs, seconds=90)
    assert {job: live.state(job) for job in jobs} == dict.fromkeys(jobs, "COMPLETED")
    for job in jobs:
        live.wait_sacct(job)
        state, tres = live.sacct(job, "state,alloctres")
        assert state == "COMPLETED" and "gres/qgpu:offline=20" in tres.split(",")
        (row,) = read_usage(live.paths(before[job][0]).ledger, [job])
        assert (row.end_reason, row.share) == ("epilog", 20)


def test_a_suspended_job_delays_no_other_and_continues(live: Live) -> None:
    node = ("-w", live.nodes[0])
    online = live.submit(
        f"{work('--length', '4')}; echo done", "--qos=online", "--gres=qgpu:40,vram:4G", *node
    )
    live.until(lambda: online in live.grants(), 20, "the online job")
    live.ask("scontrol", "suspend", str(online))
    live.wait_state(online, "SUSPENDED")
    offline = live.submit(work("--length", "1"), "--qos=offline", "--gres=qgpu:40,vram:4G", *node)
    live.until(lambda: offline in live.grants(), 20, "the offline job")
    assert live.place(offline) == live.place(online)
    live.finish(offline, seconds=30)
    assert (live.state(offline), live.state(online)) == ("COMPLETED", "SUSPENDED")
    live.ask("scontrol", "resume", str(online))
    (text,) = live.finish(online)
    assert live.state(online) == "COMPLETED" and text.endswith("done\n")


def test_a_job_may_be_cancelled_in_each_phase(live: Live) -> None:
    gres = "--gres=qgpu:60,vram:1G"
    blockers = [live.submit("exec sleep 600", "--qos=online", gres) for _ in range(4)]
    for job in blockers:
        live.wait_state(job, "RUNNING")
    pending = live.submit("true", "--qos=online", gres)
    live.cancel(pending, user="alice")
    live.cancel(*blockers)
    early = [live.submit("sleep 600", gres) for _ in range(6)]
    for job in early:  # somewhere between the queue and the end of the Prolog
        live.cancel(job, user="alice")
    stepped = live.submit("srun sleep 600; echo alive", gres)
    live.until(
        lambda: bool(
            live.run("squeue", "-s", "-h", "-j", str(stepped)).stdout.count(f"{stepped}.0")
        ),
        20,
        "a step",
    )
    live.ask("scancel", f"{stepped}.0", user="alice")
    stubborn = live.submit("trap '' TERM; for i in $(seq 100); do sleep 1; done", gres)
    live.until(lambda: stubborn in live.grants(), 20, "the stubborn job")
    live.cancel(stubborn, user="alice")
    live.cancel(stubborn, user="alice")  # while it completes
    (text,) = live.finish(stepped)
    assert text.endswith("alive\n")
    for job in (pending, *blockers, *early, stubborn):
        live.wait_gone(job)
        assert live.state(job) == "CANCELLED"
    live.until(lambda: not live.grants(), 10, "no grant being left")
    for node in live.nodes:
        assert [
            row for row in read_usage(live.paths(node).ledger, early) if row.ended_at is None
        ] == []


def update(live: Live, job: int, change: str) -> None:
    """As alice, once slurmdbd has told slurmctld where the job is: "Job update not available right
    now" until then.
    """
    words = ("scontrol", "update", f"JobId={job}", change)
    said = [""]

    def done() -> bool:
        result = live.run(*words, user="alice")
        said.append(result.stderr)
        return result.returncode == 0

    try:
        live.until(done, 30, f"an update of job {job}")
    except AssertionError as error:
        raise AssertionError(f"{error}: {said[-1]}") from None


def test_jobs_span_a_restart_of_slurmctld(live: Live) -> None:
    """One runs and starts a step afterwards, one waits, two are held: grants and tags stay, and
    stay protected.
    """
    go = live.sandbox.layout.home("alice") / "go"
    go.unlink(missing_ok=True)
    gres = ("--qos=online", "--gres=qgpu:60,vram:8G", "-w", live.nodes[0])
    step = "until [ -e go ]; do sleep 0.1; done; srun -n1 bash -c 'echo step $QGPU_GRANT_FD'"
    runs, other = live.submit(step, *gres), live.submit("exec sleep 600", *gres)
    granted = {job: live.grant(job) for job in (runs, other)}
    waits = live.submit("echo waited $QGPU_GRANT_FD", *gres)
    held, array = live.submit("true", "-H", *gres), live.submit("true", "-H", "--array=1-2", *gres)
    live.until(lambda: live.reason(waits) == "Resources", 20, f"job {waits} waiting")
    before = {job: (live.gres(job), live.tag(job)) for job in (runs, other, waits, held, array)}
    assert set(before.values()) == {
        ("qgpu:online:60,shard:60,vram:8192M", "qgpu/1 class=online share=60 mem=8192")
    }
    # so that slurmctld does not end while it waits for what slurmdbd calls the job
    update(live, held, "Nice=1")
    live.sandbox.restart_controller()
    assert {job: (live.gres(job), live.tag(job)) for job in before} == before
    assert {job: live.grant(job) for job in granted} == granted
    update(live, held, f"{live.dialect.field}=qgpu/1 whole; mine")
    assert live.tag(held) == f"{before[held][1]}; mine"
    live.cancel(other)
    assert live.finish(waits) == ["waited 100\n"]
    go.write_text("")
    assert live.finish(runs) == ["step 100\n"]
    live.ask("scontrol", "release", str(array), user="alice")
    live.until(lambda: live.queued(array) == "", 30, "the end of the array")
    live.cancel(held)


def in_prolog(job: int) -> bool:
    """Whether our Prolog's client runs for a job on this machine."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().split(b"\0")
            if b"prolog" in words and words[0].endswith(b"qgpu-hook"):
                return f"SLURM_JOB_ID={job}".encode() in (process / "environ").read_bytes().split(
                    b"\0"
                )
        except OSError:
            continue  # ended meanwhile
    return False


def test_a_job_that_is_cancelled_in_its_prolog_leaves_nothing(live: Live) -> None:
    """qgpud stands still for a while: the Prolog waits for it, and comes too late for a job that
    is gone.
    """
    node = live.nodes[0]
    live.sandbox.kill(node, "qgpud", signal.SIGSTOP)
    try:
        job = live.submit("echo ran; sleep 600", "--gres=qgpu:10,vram:1G", "-w", node)
        live.until(lambda: in_prolog(job), 10, f"the Prolog of job {job}")
        live.cancel(job, user="alice")
    finally:
        live.sandbox.kill(node, "qgpud", signal.SIGCONT)
    live.wait_gone(job)
    assert (live.state(job), live.output(job)) == ("CANCELLED", "")
    live.until(lambda: not live.grants(), 20, "no grant being left")
    assert [row for row in read_usage(live.paths(node).ledger, [job]) if row.ended_at is None] == []
    assert live.finish(live.submit("echo next", "--gres=qgpu:10", "-w", node)) == ["next\n"]
