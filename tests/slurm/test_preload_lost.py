"""A batch script that sets LD_PRELOAD anew: with `injection: preload` the job's user reads of it."""

from __future__ import annotations

from jobs_support import Live, work


def test_the_job_reads_that_it_runs_without_limits(live: Live) -> None:
    node = live.nodes[0]
    assert "injection: preload" in live.sandbox.layout.qgpu_yaml.read_text()
    script = f"export LD_PRELOAD=; {work('--length', '60', '--memory', '1G')}"
    job = live.submit(script, "--gres=qgpu:10", "-w", node)
    live.until(lambda: "without qgpu's library" in live.output(job), 30, "the sentence on the job's stderr")
    assert "LD_PRELOAD" in live.output(job)
    log = live.paths(node).log("qgpud").read_text()
    assert f"event=audit-unregistered job={job} " in log
    live.cancel(job)
    live.wait_gone(job)
    assert live.output(job).count("without qgpu's library") == 1
