"""How jobs end, and what then remains: nothing on the node but a closed row in the ledger."""

from __future__ import annotations

import pytest
from jobs_support import Live, work

from enforcer.ledger.store import Usage, read_usage
from enforcer.wire.link import ArbiterLink

NAP = "exec sleep 600"


def tenants(live: Live, node: str) -> set[int]:
    """Jobs that the node's arbiter holds a tenant for."""
    with ArbiterLink(live.paths(node).run_dir) as link:
        return {stats.job_id for stats in link.stats()}


def rows(live: Live, job: int) -> list[Usage]:
    """What the ledgers of all nodes have of a job, oldest first."""
    found = [row for node in live.nodes for row in read_usage(live.paths(node).ledger, [job])]
    return sorted(found, key=lambda row: row.granted_at)


def remains(live: Live, job: int) -> list[str]:
    """Files of a job in any node's grant directory."""
    return [
        path.name
        for node in live.nodes
        for path in (live.paths(node).run_dir / "grants").iterdir()
        if path.name.lstrip(".").startswith(f"{job}.") and path.suffix != ".over"
    ]


def start(live: Live, script: str, *options: str) -> int:
    """A job with a share that runs."""
    job = live.submit(script, "--gres=qgpu:10,vram:1G", *options)
    live.wait_state(job, "RUNNING")
    return job


def assert_closed(live: Live, job: int, times: int = 1) -> None:
    """Nothing of the job is left, and the ledger closed each of its grants in the epilog."""
    live.until(lambda: not remains(live, job), 10, f"the end of the grant of job {job}")
    assert all(job not in tenants(live, node) for node in live.nodes)
    found = rows(live, job)
    assert [row.end_reason for row in found] == ["epilog"] * times
    assert all(row.ended_at is not None and row.ended_at > row.granted_at for row in found)


def test_the_ways_to_end(live: Live) -> None:
    done = live.submit(work("--length", "0.3"), "--gres=qgpu:10,vram:1G")
    failed = live.submit("exit 3", "--gres=qgpu:10,vram:1G")
    cancelled = start(live, NAP)
    node = live.grant(cancelled).node
    # the file comes first
    live.until(lambda: cancelled in tenants(live, node), 10, "the arbiter knowing it")
    live.cancel(cancelled, user="alice")
    live.finish(done, failed, cancelled)
    assert [live.state(job) for job in (done, failed, cancelled)] == [
        "COMPLETED",
        "FAILED",
        "CANCELLED",
    ]
    for job in (done, failed, cancelled):
        assert_closed(live, job)


def test_a_job_that_never_started_leaves_no_trace(live: Live) -> None:
    job = live.submit(NAP, "-H", "--gres=qgpu:10")
    live.cancel(job, user="alice")
    live.wait_gone(job)
    assert (remains(live, job), rows(live, job)) == ([], [])


def test_a_requeued_job_gets_a_new_grant(live: Live) -> None:
    job = start(live, f"echo up; {NAP}", "--requeue")
    live.until(lambda: job in live.grants(), 10, "the first grant")
    live.until(lambda: "up" in live.output(job), 10, "the first run")
    first = live.grant(job).created_ns
    live.ask("scontrol", "requeue", str(job), user="alice")
    live.wait_state(job, "PENDING")
    live.until(lambda: not remains(live, job), 10, "the end of the first grant")
    live.until(lambda: live.queued(job) == "PENDING", 10, "the end of the first run")
    # Slurm lets a requeued job wait for two minutes: on the node it came from no Prolog would run
    # earlier.
    (other,) = set(live.nodes) - {rows(live, job)[0].node}
    live.ask("scontrol", "update", f"JobId={job}", "StartTime=now", f"ReqNodeList={other}")
    live.until(lambda: job in live.grants() and live.state(job) == "RUNNING", 20, "the second run")
    assert live.grant(job).created_ns > first
    live.cancel(job)
    live.wait_gone(job)
    assert_closed(live, job, times=2)


def test_a_job_whose_prolog_slurm_left_out_does_not_run_ungoverned(live: Live) -> None:
    script = 'echo "run ${SLURM_RESTART_COUNT:-0} $QGPU_GRANT_FD"\nexec sleep 600'
    job = start(live, script, "--requeue", "-w", live.nodes[0])
    live.until(lambda: live.output(job) == "run 0 100\n", 10, "the first run")
    live.ask("scontrol", "requeue", str(job), user="alice")
    live.until(
        lambda: live.queued(job) == "PENDING" and not remains(live, job),
        10,
        "the end of the first run",
    )
    # Its owner may take away the delay. slurmd then takes the job for one whose Prolog ran already,
    # or for one that was killed already; if it was quick enough to forget, the Prolog runs and the
    # job is governed.
    live.ask("scontrol", "update", f"JobId={job}", "StartTime=now", user="alice")
    live.until(
        lambda: live.queued(job) == "" or "run 1" in live.output(job),
        20,
        "the second run or its refusal",
    )
    told = live.output(job)
    assert "run 1 " not in told or "run 1 100\n" in told, told
    live.cancel(job)
    live.wait_gone(job)


@pytest.mark.parametrize("user", ["alice", None], ids=["alice", "root"])
def test_a_users_mistake_drains_nothing(live: Live, user: str | None) -> None:
    scripts = (
        work("--memory", "70G"),
        "export LD_PRELOAD=/nowhere.so; kill -9 $$",
        "rm -f $QGPU_GRANT; exec python3 -c 'import os; "
        'os.close(int(os.environ["QGPU_GRANT_FD"]))\'',
    )
    jobs = [live.submit(script, "--gres=qgpu:10,vram:1G") for script in scripts]
    jobs.append(live.submit("true", "--gres=qgpu:10,vram:1G", "--export=LD_PRELOAD=/nowhere.so"))
    jobs.append(live.submit("true", "--gres=qgpu:10", "--chdir=/root"))
    # A tag that a started job's owner (or an admin) writes over stays ours.
    other = start(live, NAP)
    forged = f"{live.dialect.field}=qgpu/1 class=online share=0"
    live.ask("scontrol", "update", f"JobId={other}", forged, user=user)
    live.finish(*jobs)
    live.cancel(other)
    live.wait_gone(other)
    assert live.drained() == ""
    for job in (*jobs, other):
        assert_closed(live, job)


def test_without_qgpud_the_node_is_drained_and_jobs_without_cards_run(live: Live) -> None:
    node = live.nodes[1]
    # Slurm looks for jobs over their time now and then only: that one ends while we wait for the
    # rest. The limit has a grain of a minute; the time of the end has not.
    late = start(live, NAP, "-w", live.nodes[0])
    live.ask("scontrol", "update", f"JobId={late}", "EndTime=now+1")
    live.stop_qgpud(node)
    try:
        plain = live.submit("echo ran", "-w", node)
        requeued = live.submit(NAP, "--requeue", "--gres=qgpu:10", "-w", node)
        cancelled = live.submit(NAP, "--gres=qgpu:10", "-w", node)
        elsewhere = live.submit(NAP, "--gres=qgpu:10", "-w", live.nodes[0])
        assert live.finish(plain) == ["ran\n"]
        live.wait_state(elsewhere, "RUNNING")
        # The client asks until its deadline, ten seconds: a daemon that restarts is no reason to
        # drain.
        live.until(lambda: node in live.drained(), 25, f"{node} being drained")
        reason = live.ask("sinfo", "-R", "-h", "-o", "%E|%N")
        assert reason.startswith("qgpu: qgpud on this node does not answer")
        assert f"nodename={node} state=resume" in reason
        assert reason.endswith(f"|{node}")
        live.wait_requeued(requeued)
        live.wait_state(cancelled, "CANCELLED")
        assert live.state(elsewhere) == "RUNNING"
        assert {requeued, cancelled}.isdisjoint(live.grants())
    finally:
        live.restore(node)
    live.until(
        lambda: not remains(live, requeued) + remains(live, cancelled),
        10,
        "the epilogs' markers gone",
    )
    live.ask("scontrol", "release", str(requeued), user="alice")
    live.ask("scontrol", "update", f"JobId={requeued}", "StartTime=now")
    # Without the two minutes that Slurm would wait, slurmd may leave the Prolog out: then the job
    # must not run.
    live.until(
        lambda: requeued in live.grants() or "without its limits" in live.output(requeued),
        20,
        "the held job running governed, or being refused",
    )
    assert requeued not in live.grants() or live.place(requeued)[0] == node
    live.wait_state(late, "TIMEOUT", seconds=40)
    live.wait_gone(late)
    assert_closed(live, late)


def test_qgpud_may_restart_under_a_starting_job(live: Live) -> None:
    """A machine that needs longer for the daemon's start than the Prolog waits drains the node;
    then the next try tells.
    """
    node = live.nodes[0]
    for _ in range(3):
        live.stop_qgpud(node)
        try:
            job = live.submit(work("--length", "0.2"), "--gres=qgpu:10,vram:1G", "-w", node)
            live.until(lambda job=job: live.state(job) == "RUNNING", 10, "the prolog of the job")
            assert job not in live.grants()
        finally:
            live.sandbox.start(node, "qgpud")
        live.finish(job)
        if node not in live.drained():
            break
        live.restore(node)
    assert live.state(job) == "COMPLETED"
    assert live.drained() == ""
    assert_closed(live, job)
