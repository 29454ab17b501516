"""Daemons that die while twenty jobs run, jobs that are suspended, and jobs that are cancelled in each phase."""

from __future__ import annotations

import signal
import time
from collections import Counter

import pytest
from jobs_support import Live, together, work

from enforcer.ledger import read_usage

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
    script = "until [ -e go ]; do sleep 0.1; done; " + work("--requests", "20")
    options = ("--qos=offline", "--gres=qgpu:20,qgpu_mem:15G")
    jobs = together(lambda: live.submit(script, *options) for _ in range(20))
    live.until(lambda: set(jobs) <= set(live.grants()), 30, "twenty grants")
    before = {job: live.place(job) for job in jobs}
    saved, now = live.sandbox.layout.state / "spool/slurmctld/job_state", time.time()
    live.ask("scontrol", "update", f"JobId={jobs[0]}", "Comment=saved")
    live.until(
        lambda: saved.stat().st_mtime > now,
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


def test_a_suspended_job_holds_nobody_up_and_goes_on(live: Live) -> None:
    node = ("-w", live.nodes[0])
    online = live.submit(
        f"{work('--length', '4')}; echo done", "--qos=online", "--gres=qgpu:40,qgpu_mem:4G", *node
    )
    live.until(lambda: online in live.grants(), 20, "the online job")
    live.ask("scontrol", "suspend", str(online))
    live.wait_state(online, "SUSPENDED")
    offline = live.submit(work("--length", "1"), "--qos=offline", "--gres=qgpu:40,qgpu_mem:4G", *node)
    live.until(lambda: offline in live.grants(), 20, "the offline job")
    assert live.place(offline) == live.place(online)
    live.finish(offline, seconds=30)
    assert (live.state(offline), live.state(online)) == ("COMPLETED", "SUSPENDED")
    live.ask("scontrol", "resume", str(online))
    (text,) = live.finish(online)
    assert live.state(online) == "COMPLETED" and text.endswith("done\n")


def test_a_job_may_be_cancelled_in_each_phase(live: Live) -> None:
    gres = "--gres=qgpu:60,qgpu_mem:1G"
    blockers = [live.submit("exec sleep 100", "--qos=online", gres) for _ in range(4)]
    for job in blockers:
        live.wait_state(job, "RUNNING")
    pending = live.submit("true", "--qos=online", gres)
    live.cancel(pending, user="alice")
    live.cancel(*blockers)
    early = [live.submit("sleep 100", gres) for _ in range(6)]
    for job in early:  # somewhere between the queue and the end of the Prolog
        live.cancel(job, user="alice")
    stepped = live.submit("srun sleep 100; echo alive", gres)
    live.until(
        lambda: bool(live.run("squeue", "-s", "-h", "-j", str(stepped)).stdout.count(f"{stepped}.0")),
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
        assert [row for row in read_usage(live.paths(node).ledger, early) if row.ended_at is None] == []
