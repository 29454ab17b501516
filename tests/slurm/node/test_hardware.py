"""Hardware preemption in jobs: a kernel of half a second is taken off the card in its midst, and
right afterwards.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from jobs_support import Live

from enforcer.wire.link import ArbiterLink
from enforcer.wire.messages import HardwareTenant
from simulator.judge import evaluate as ev
from simulator.sim import Interval, control_device, read_trace

KERNEL_NS = 500_000_000
OFFLINE = (
    f"exec qgpu-workload --json --kernel-us 500000 --iters {KERNEL_NS} --length 600 "
    "--kernels-per-request 1"
)
ONLINE = "qgpu-workload --json --kernel-us 500 --iters 500000 --busy 0.05 --idle 0.25 --length 2"
# a tenth of what is left of such a kernel on average, and far above a stall of this machine
BOUND_MS = 50


def tenant(live: Live, node: str, job: int) -> HardwareTenant | None:
    """What the node's arbiter says of a job."""
    with ArbiterLink(live.paths(node).run_dir) as link:
        return next((found for found in link.hardware_tenants() if found.job_id == job), None)


def summary(text: str) -> dict[str, Any]:
    """The workload's last line."""
    found: dict[str, Any] = json.loads(
        [line for line in text.splitlines() if line.startswith("{")][-1]
    )
    return found


def executed(live: Live, node: str, pid: int) -> list[Interval]:
    """What the card's own trace says of a process."""
    path: Path = live.paths(node).sim_dir / "trace.bin"
    return [piece for piece in read_trace(path) if piece.pid == pid and piece.engine == "compute"]


@pytest.fixture
def hardware(live: Live) -> Live:
    """The sandbox, where this machine lets the simulator offer a control device."""
    if control_device(live.paths(live.nodes[0]).sim_dir) is None:
        pytest.skip("the simulator offers no control device on this machine")
    return live


def test_a_long_kernel_is_stopped_when_online_comes_and_right_afterwards(hardware: Live) -> None:
    live = hardware
    offline = live.submit(OFFLINE, "--gres=qgpu:30,vram:1G", "--qos=offline")
    node, card = live.place(offline)
    live.until(
        lambda: _state(live, node, offline) == "ready", 20, "the self-test of the offline job"
    )
    live.until(
        lambda: f"job {offline} ready by schedule through the arbiter" in _doctor(live, node),
        20,
        "its word",
    )
    online = live.submit(ONLINE, "--gres=qgpu:30,vram:1G", "--qos=online", f"--nodelist={node}")
    assert live.place(online) == (node, card), "both on one card"
    live.until(lambda: (tenant(live, node, offline) or _none()).stops > 0, 20, "the first stop")
    stopped = tenant(live, node, offline)
    assert (
        stopped is not None and stopped.failures == 0 and stopped.state in ("ready", "stopped")
    ), stopped
    (shown,) = live.finish(online)
    live.cancel(offline)
    told = [summary(text) for text in (*live.finish(offline), shown)]
    assert [row["errors"] for row in told] == [0, 0]

    kernels, calls = (executed(live, node, row["pid"]) for row in told)
    work: dict[int, int] = {}
    for piece in kernels:
        work[piece.seq] = work.get(piece.seq, 0) + piece.duration
    assert list(work.values()) == [KERNEL_NS] * told[0]["kernels"], (
        "each kernel had exactly its work, however often stopped"
    )
    bursts = [
        b
        for b in ev.bursts(calls, 100 * ev.NS_PER_MS)
        if kernels[0].t_start < b.call < kernels[-1].t_end
    ]
    assert bursts, "online and offline were on the card at the same time"
    free = sorted(us / 1000 for us in ev.card_free_us(bursts, sorted(kernels)))
    assert free[len(free) // 2] < BOUND_MS, f"ms from each launch to the last progress: {free}"
    assert len(kernels) > len(work), "a kernel was cut in pieces"


def test_off_by_a_live_change_leaves_kernels_alone(hardware: Live) -> None:
    """The control: the same jobs without it, and nobody counts a stop."""
    live = hardware
    job = live.submit(OFFLINE, "--gres=qgpu:30,vram:1G", "--qos=offline")
    node, card = live.place(job)
    live.ask("qgpu", "card", "set", str(card), "hardware=off", "--node", node)
    try:
        shown = live.ask("qgpu", "card", "show", str(card), "--node", node)
        assert "hardware preemption: off because qgpu card set says off" in shown
        online = live.submit(ONLINE, "--gres=qgpu:30,vram:1G", "--qos=online", f"--nodelist={node}")
        assert live.place(online) == (node, card)
        live.finish(online)
        found = tenant(live, node, job)
        assert found is None or found.stops == 0, found
    finally:
        live.ask("qgpu", "card", "reset", str(card), "--node", node)
    live.until(lambda: _state(live, node, job) == "ready", 20, "it being on again")
    live.cancel(job)
    (text,) = live.finish(job)
    assert summary(text)["kernels"] > 0 and summary(text)["errors"] == 0


def _state(live: Live, node: str, job: int) -> str:
    found = tenant(live, node, job)
    return "" if found is None else found.state


def _doctor(live: Live, node: str) -> str:
    """Its line about this; the exit status is about things that a sandbox has in unusual places."""
    checks = json.loads(live.run("qgpu", "doctor", "--node", node, "--json").stdout)
    (line,) = [check for check in checks if check["name"] == "hardware"]
    return f"{line['status']}: {line['text']}"


def _none() -> HardwareTenant:
    return HardwareTenant(0, "", "none", "", "", 0, 0, 0, 0, 0, 0, (), 0, "")
