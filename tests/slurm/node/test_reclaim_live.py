"""Offline jobs leave for online ones on live Slurm and return bit for bit: also when daemons and
tenants are killed in the midst, and when a process cannot be moved.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from jobs_support import Live, alone, work
from memory_jobs import (
    GIB,
    OFFLINE,
    ONLINE,
    await_step,
    intact,
    moving,
    online,
    program,
    resident,
    returned,
    rows,
    settings,
    steps,
    tenants,
)

from cli.sandbox.cluster import Sandbox
from cli.sandbox.options import SandboxOptions

MANAGED = """exec python3 - <<'X'
import ctypes, time
cuda, at = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
context, device = ctypes.c_void_p(), ctypes.c_int()
assert cuda.cuInit(0) == 0 and cuda.cuDeviceGet(ctypes.byref(device), 0) == 0
assert cuda.cuCtxCreate_v2(ctypes.byref(context), 0, device) == 0
assert cuda.cuMemAlloc_v2(ctypes.byref(at), ctypes.c_size_t(40 << 30)) == 0
assert cuda.cuMemAllocManaged(ctypes.byref(at), ctypes.c_size_t(64 << 20), 1) == 0
print("holds", flush=True)
time.sleep(600)
X"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Sandbox]:
    """One node with one card, whose offline jobs are reclaimable."""
    options = SandboxOptions(f"t{os.getpid()}r", nodes=1, cards=1, reclaimable=True)
    made = Sandbox(options, progress=print)
    made.up()
    yield made
    made.down()


@pytest.fixture
def one(cluster: Sandbox) -> Iterator[Live]:
    yield from alone(Live(cluster))


# ---- the way of a job ---------------------------------------------------------------------------


def test_an_offline_job_leaves_and_returns_bit_for_bit(one: Live) -> None:
    offline = resident(one)
    fast = online(one)
    one.until(lambda: tenants(one).get(offline, {}).get("state") == "checkpointed", 20, "away")
    assert intact(one.finish(fast)[0])
    assert intact(returned(one, offline))
    text = one.output(offline)
    assert f"job {fast} needs the GPU memory of this job" in text
    assert "is back on card 0" in text
    assert steps(one, offline) == ["leave", "left", "back"]
    (row,) = rows(one, offline)
    assert (row.why, row.result) == (f"job {fast}", "returned") and (row.bytes or 0) >= 58 * GIB
    (grant,) = one.report(offline)[offline]["grants"]
    assert grant["reclaimed_s"] > 3 and grant["suspended_s"] < grant["reclaimed_s"]
    (shown,) = grant["reclaims"]
    assert shown["why"] == f"job {fast}" and shown["leave_s"] > 0 and shown["return_s"] > 0


def test_an_allocation_of_an_online_job_waits_for_the_offline_one(one: Live) -> None:
    """It started before there was an offline one, and asks for its memory late."""
    script = "\n".join(
        [
            "read -r _ < <(until [ -e ~/go ]; do sleep 0.1; done; echo x)",
            work("--pattern", "48G", "--length", "2", "--json"),
        ]
    )
    (one.sandbox.layout.home("alice") / "go").unlink(missing_ok=True)
    late = one.submit(script, *ONLINE)
    one.grant(late)
    offline = resident(one)
    one.ask("touch", str(one.sandbox.layout.home("alice") / "go"), user="alice")
    assert intact(one.finish(late)[0])
    assert intact(returned(one, offline))
    assert steps(one, offline) == ["leave", "left", "back"]


# ---- what is killed -----------------------------------------------------------------------------


@pytest.mark.parametrize("when", ["leaving", "away", "returning"])
def test_a_killed_qgpud_finishes_what_it_began(one: Live, when: str) -> None:
    node = one.nodes[0]
    offline = resident(one)
    fast = online(one)
    if when == "leaving":
        await_step(one, offline, "leave")
    elif when == "away":
        await_step(one, offline, "left")
    else:
        one.wait_gone(fast)
        one.until(lambda: moving(one, "return"), 30, "the helper of the return")
    one.stop_qgpud(node)
    one.sandbox.start(node, "qgpud")
    assert intact(one.finish(fast)[0]), one.output(fast)
    assert intact(returned(one, offline)), one.output(offline)
    (row,) = rows(one, offline)
    assert row.result in ("returned", "undone") and row.back_at is not None


@pytest.mark.parametrize("when", ["leaving", "away", "returning"])
def test_a_killed_tenant_gives_everything_back(one: Live, when: str) -> None:
    offline = resident(one)
    process = program(one, offline)
    fast = online(one)
    if when == "leaving":
        await_step(one, offline, "leave")
    elif when == "away":
        await_step(one, offline, "left")
    else:
        one.wait_gone(fast)
        one.until(lambda: moving(one, "return"), 30, "the helper of the return")
    process.send_signal(signal.SIGKILL)
    assert intact(one.finish(fast)[0]), one.output(fast)
    one.wait_gone(offline)
    assert rows(one, offline)[0].back_at is not None
    again = one.submit(
        work("--pattern", "74G", "--length", "1", "--json"),
        "--qos=online",
        "--gres=qgpu:30,vram:76G",
    )
    assert intact(one.finish(again)[0]), "all of the card is free again"


def test_a_job_that_restores_itself_leaves_again(one: Live) -> None:
    """Any process of its user may do so; the online job's memory is its own all the same."""
    offline = resident(one)
    later = f"sleep 4; {work('--pattern', '48G', '--length', '3', '--json')}"
    fast = one.submit(later, *ONLINE)
    await_step(one, offline, "left")
    opt, user = one.sandbox.layout.opt, one.sandbox.plan.first_uid
    words = [str(opt / "bin/qgpu-checkpoint"), "--driver", str(opt / "sim/libcuda.so.1"), "return"]
    words.append(str(program(one, offline).pid))
    env = {"QGPU_SIM_DIR": str(one.paths(one.nodes[0]).sim_dir)}
    assert subprocess.run(words, env=env, user="nobody", check=False).returncode == 1
    assert subprocess.run(words, env=env, user=user, check=False).returncode == 0
    await_step(one, offline, "left", 2)
    assert "again" in steps(one, offline)
    assert intact(one.finish(fast)[0])
    assert intact(returned(one, offline))


def test_a_killed_arbiter_does_not_lose_a_job_that_is_away(one: Live) -> None:
    node = one.nodes[0]
    offline = resident(one)
    fast = online(one, 6)
    await_step(one, offline, "left")
    one.sandbox.kill(node, "arbiter")
    one.sandbox.start(node, "arbiter")
    assert intact(one.finish(fast)[0]), one.output(fast)
    assert intact(returned(one, offline)), one.output(offline)


# ---- what cannot be moved -----------------------------------------------------------------------


def test_managed_memory_is_requeued_and_the_online_job_goes_on(one: Live) -> None:
    stuck = one.submit(MANAGED, *OFFLINE)
    one.until(lambda: "holds" in one.output(stuck), 30, "its memory")
    fast = online(one)
    assert intact(one.finish(fast)[0]), one.output(fast)
    await_step(one, stuck, "unable")
    one.until(lambda: one.job(stuck).get("Restarts") == "1", 30, "the requeue")
    assert "cannot be moved" in one.output(stuck)
    result = rows(one, stuck)[0].result or ""
    assert result.startswith("unable: ") and "NOT_SUPPORTED" in result
    one.cancel(stuck)
    one.wait_gone(stuck)


@pytest.mark.parametrize("kind", ["requeue", "no-requeue", "srun"])
def test_a_prolog_that_waited_too_long_starts_nothing(one: Live, kind: str, tmp_path: Path) -> None:
    helper = Path(one.sandbox.layout.opt) / "bin/qgpu-checkpoint"
    slow = helper.with_name("slow")
    slow.write_text("#!/bin/sh\nexec sleep 600\n")
    slow.chmod(0o755)
    offline = resident(one)
    with settings(one, "deadline: 2s, operation: 20s"):
        path = helper.rename(helper.with_name("kept"))
        slow.rename(helper)
        try:
            if kind == "srun":
                done = one.run("srun", *ONLINE, "echo", "ran", user="alice")
                assert done.returncode != 0 and "ran" not in done.stdout
                assert "did not give it back within" in done.stderr
            else:
                fast = one.submit("echo ran", f"--{kind}", *ONLINE)
                if kind == "requeue":
                    one.until(lambda: one.job(fast).get("Restarts") == "1", 30, "the requeue")
                    one.wait_state(fast, "PENDING")
                    one.cancel(fast)
                one.wait_gone(fast)
                assert "ran" not in one.output(fast)
                if kind == "no-requeue":
                    assert "did not give it back within" in one.output(fast)
        finally:
            path.rename(helper)
    assert one.drained() == ""
    one.cancel(offline)
    one.wait_gone(offline)
