"""Hardware preemption from qgpu.yaml to the card and back to people: qgpud, arbiter, shim and
simulated card.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator

import psutil
import pytest
from node_support import Chain, chains, end, until

from enforcer.wire.link import ArbiterGone, ArbiterLink
from enforcer.wire.messages import HardwareTenant
from simulator.sim import control_device

LONG = (
    "--kernel-us",
    "500000",
    "--iters",
    "500000000",
    "--kernels-per-request",
    "1",
    "--no-sync-each=1",
)
BURSTS = ("--kernel-us", "200", "--iters", "200000", "--busy", "0.03", "--idle", "0.2")
OFFLINE, ONLINE = "qgpu/1 class=offline share=50 mem=1024", "qgpu/1 class=online share=30 mem=1024"

pytestmark = [
    pytest.mark.native,
    pytest.mark.skipif(os.geteuid() != 0, reason="makes device nodes"),
    pytest.mark.timeout(120),
]


@pytest.fixture
def make() -> Iterator[Callable[..., Chain]]:
    with chains() as make_one:
        yield make_one


def hardware(chain: Chain, job: int) -> HardwareTenant | None:
    try:
        with ArbiterLink(f"{chain.directory}/run") as link:
            return next(
                (tenant for tenant in link.hardware_tenants() if tenant.job_id == job), None
            )
    except (ArbiterGone, OSError):
        return None


def state(chain: Chain, job: int) -> str:
    found = hardware(chain, job)
    return "" if found is None else found.state


def stops(chain: Chain, job: int) -> int:
    found = hardware(chain, job)
    return 0 if found is None else found.stops


def finish(*tasks: subprocess.Popen[str]) -> None:
    """End programs and the stages around them, which would leave their child behind."""
    for task in tasks:
        for process in psutil.Process(task.pid).children(recursive=True):
            process.kill()
        end(task)


def offered(chain: Chain) -> None:
    if control_device(chain.directory / "sim") is None:
        pytest.skip("the simulator offers no control device on this machine")


def offline(chain: Chain, job: int = 7) -> subprocess.Popen[str]:
    offered(chain)
    assert chain.hook("prolog", job, OFFLINE) == 0
    return chain.task(job, *LONG, "--length", "600")


def test_ordered_used_shown_and_counted(make: Callable[..., Chain]) -> None:
    chain = make()
    task = offline(chain)
    until(lambda: state(chain, 7) == "ready")
    assert "event=hardware" in chain.log() and "enabled=True" in chain.log()
    assert chain.hook("prolog", 8, ONLINE) == 0
    online = chain.task(8, *BURSTS, "--length", "600")
    until(lambda: stops(chain, 7) >= 3)
    found = hardware(chain, 7)
    assert found is not None and found.failures == 0 and sum(found.stop_hist) == found.stops
    assert state(chain, 8) != "stopped" and stops(chain, 8) == 0, "online is never stopped"

    until(lambda: "stop(s)" in chain.said("card", "show", "0")[1])
    _, shown, _ = chain.said("card", "show", "0")
    assert "hardware preemption: on; job 7 " in shown and "by schedule through the arbiter" in shown
    checks = json.loads(chain.said("doctor", "--node", "n1", "--json")[1])
    (line,) = [check for check in checks if check["name"] == "hardware"]
    assert line["status"] == "ok" and "job 7" in line["text"]

    def counted() -> bool:
        rows = [
            row
            for row in chain.said("metrics", "show")[1].splitlines()
            if "hardware_stops_total{" in row
        ]
        return any('job="7"' in row and float(row.split()[-1]) >= 3 for row in rows)

    until(counted)
    (tenant,) = [
        tenant
        for node in json.loads(chain.said("top", "--once", "--json")[1])["nodes"]
        for card in node["cards"]
        for tenant in card["tenants"]
        if tenant["job_id"] == 7
    ]
    assert tenant["hardware"] in ("ready", "stopped") and tenant["counters"]["hw_stops"] >= 3
    finish(task, online)


def test_off_in_qgpu_yaml_means_gating_alone(make: Callable[..., Chain]) -> None:
    chain = make("cards: [{nodes: n1, hardware: off}]\n")
    task = offline(chain)
    assert chain.hook("prolog", 8, ONLINE) == 0
    online = chain.task(8, *BURSTS, "--length", "2")
    assert online.wait(60) == 0
    assert stops(chain, 7) == 0 and state(chain, 7) in ("", "none")
    _, shown, _ = chain.said("card", "show", "0")
    assert "hardware preemption: off because cards[0] says off" in shown
    finish(task)


def test_a_live_change_counts_for_running_jobs_both_ways(make: Callable[..., Chain]) -> None:
    chain = make()
    task = offline(chain)
    until(lambda: state(chain, 7) == "ready")
    code, out, _ = chain.said("card", "set", "0", "hardware=off")
    assert code == 0 and "hardware was auto, is off" in out
    until(lambda: state(chain, 7) in ("", "none"))
    assert chain.said("card", "reset", "0")[0] == 0
    until(lambda: state(chain, 7) == "ready")
    finish(task)


def test_a_new_arbiter_is_ordered_again(make: Callable[..., Chain]) -> None:
    chain = make()
    task = offline(chain)
    until(lambda: state(chain, 7) == "ready")
    chain.arbiter.send_signal(signal.SIGKILL)
    chain.arbiter.wait()
    chain.arbiter = chain.ready("bin/qgpu-arbiter", "--run-dir", f"{chain.directory}/run")
    until(lambda: state(chain, 7) == "ready")
    assert task.poll() is None
    finish(task)
