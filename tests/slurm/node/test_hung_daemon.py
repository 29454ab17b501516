"""qgpud stands still (SIGSTOP): jobs that end are noted, jobs that start drain the node in
bounded time, others run.
"""

from __future__ import annotations

import signal

from jobs_support import Live

DEADLINE = 10  # hook.deadline of the sandbox


def _files(live: Live, node: str, job: int) -> set[str]:
    return {path.suffix for path in (live.paths(node).run_dir / "grants").glob(f"{job}.*")}


def test_a_daemon_that_hangs(live: Live) -> None:
    node = live.nodes[0]
    ends, stays = (live.submit("sleep 600", "--gres=qgpu:10", "-w", node) for _ in "ab")
    for job in (ends, stays):
        live.wait_state(job, "RUNNING")
    live.launched(20)  # Slurm calls a job running before its Prolog has ended
    live.sandbox.kill(node, "qgpud", signal.SIGSTOP)
    try:
        live.cancel(ends)
        new = live.submit("sleep 600", "--gres=qgpu:10", "-w", node, "--requeue")
        live.wait_gone(ends, DEADLINE + 15)
        assert ".ended" in _files(live, node, ends), "its end is noted for the daemon"
        live.until(lambda: node in live.drained(), DEADLINE + 15, f"{node} being drained")
        assert "qgpud on this node does not answer" in live.drained()
        assert live.state(stays) == "RUNNING", "who runs is not disturbed"
        assert live.finish(live.submit("echo ran", "-w", live.nodes[1], "--gres=qgpu:10")) == [
            "ran\n"
        ]
    finally:
        live.sandbox.kill(node, "qgpud", signal.SIGCONT)
    live.until(
        lambda: _files(live, node, ends) <= {".over"},
        15,
        "the grant of the job that ended being reaped",
    )
    assert stays in live.grants()
    live.wait_requeued(new)
    live.cancel(new, stays)
    live.until(lambda: not live.queued(new), 20, "the new job gone")
    live.ask("scontrol", "update", f"NodeName={node}", "State=RESUME")
    live.wait_gone(stays)
    assert not live.grants()
