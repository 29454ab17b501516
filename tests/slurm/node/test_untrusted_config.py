"""qgpu.yaml that others can write: qgpud does not start with it, and what runs goes on."""

from __future__ import annotations

import pytest
from jobs_support import Live, work

from cli.sandbox.errors import SandboxError


def test_a_running_job_outlives_a_qgpu_yaml_that_is_refused(live: Live) -> None:
    node, yaml = live.nodes[0], live.sandbox.layout.qgpu_yaml
    go = live.sandbox.layout.home("alice") / "go"
    go.unlink(missing_ok=True)
    script = f"until [ -e go ]; do sleep 0.1; done; {work('--requests', '20')}; echo done"
    job = live.submit(script, "--gres=qgpu:10", "-w", node)
    live.grant(job)
    live.launched()
    yaml.chmod(0o666)
    try:
        live.stop_qgpud(node)
        log = live.paths(node).log("qgpud")
        before = log.read_text()
        with pytest.raises(SandboxError):
            live.sandbox.start(node, "qgpud")
        assert (
            "is not used, since others than root could change it" in log.read_text()[len(before) :]
        )
        go.write_text("")
        (text,) = live.finish(job)
        assert text.endswith("done\n") and live.state(job) == "COMPLETED"
    finally:
        yaml.chmod(0o644)
        live.restore(node)
    live.until(
        lambda: job not in live.grants(),
        10,
        "the end of the grant, of which the Epilog left a note",
    )
