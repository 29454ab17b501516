"""A batch script that replaces LD_PRELOAD: with `injection: preload` the job's user is notified."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from jobs_support import Live, work


@pytest.fixture
def preload(live: Live) -> Iterator[Live]:
    """Nodes that give the shim by LD_PRELOAD alone."""
    yaml = live.sandbox.layout.qgpu_yaml
    text = yaml.read_text()
    changed, found = re.subn(r"(?m)^injection: .*$", "injection: preload", text)
    assert found == 1
    try:
        yaml.write_text(changed)
        _restart(live)
        yield live
        live.empty()
    finally:
        yaml.write_text(text)
        _restart(live)


def _restart(live: Live) -> None:
    for node in live.nodes:
        live.stop_qgpud(node)
        live.sandbox.start(node, "qgpud")


def test_the_job_reads_that_it_runs_without_limits(preload: Live) -> None:
    live, node = preload, preload.nodes[0]
    script = f"export LD_PRELOAD=; {work('--length', '600', '--memory', '1G')}"
    job = live.submit(script, "--gres=qgpu:10", "-w", node)
    live.until(
        lambda: "without qgpu's library" in live.output(job), 30, "the sentence on the job's stderr"
    )
    assert "LD_PRELOAD" in live.output(job)
    assert f"event=audit-unregistered job={job} " in live.paths(node).log("qgpud").read_text()
    live.cancel(job)
    live.wait_gone(job)
    assert live.output(job).count("without qgpu's library") == 1
