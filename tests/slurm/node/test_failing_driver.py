"""NVML that fails or is gone: what may pass drains no node, what does not pass drains it with
its reason.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from jobs_support import Live

from cli.sandbox.files import build_dir
from simulator.sim import SimConfig, Simulator


@contextmanager
def fault(live: Live, node: str, command: str) -> Iterator[None]:
    """A fault of the simulated driver of a node."""
    simulator = Simulator(SimConfig(live.paths(node).sim_dir, node), build_dir(), None)  # type: ignore[arg-type]
    simulator.control(command)
    try:
        yield
    finally:
        simulator.control("clear")


def test_a_driver_that_fails_for_a_while_neither_drains_nor_loses_jobs(live: Live) -> None:
    node = live.nodes[0]
    options = ("--qos=offline", "--gres=qgpu:10,vram:1G", "-w", node)
    before = live.submit("sleep 600", *options)
    live.until(lambda: before in live.grants(), 20, "a grant")
    with fault(live, node, "error call=nvml* code=999"):
        log = live.paths(node).log("qgpud")
        live.until(lambda: "event=nvml-fail" in log.read_text(), 20, "the fault being seen")
        jobs = [live.submit("echo ran", *options) for _ in range(3)]
        whole = live.submit("echo ran", "--gres=gpu:1", "-w", node)
        assert live.finish(*jobs, whole) == ["ran\n"] * 4
        assert live.state(before) == "RUNNING"
    assert live.drained() == ""
    live.cancel(before)


def test_a_driver_that_is_gone_drains_the_node_with_the_reason(live: Live) -> None:
    node = live.nodes[0]
    with fault(live, node, "error call=nvml* code=9"):
        job = live.submit("echo ran", "--gres=qgpu:10", "-w", node, "--requeue")
        live.until(lambda: node in live.drained(), 25, f"{node} being drained")
        assert "the NVIDIA driver does not answer through NVML" in live.drained()
        assert live.output(job) == ""
    live.wait_requeued(job)
    live.cancel(job)
    live.until(lambda: not live.queued(job), 20, "the job gone")
    live.restore(node)
    assert live.finish(live.submit("echo ran", "--gres=qgpu:10", "-w", node)) == ["ran\n"]
