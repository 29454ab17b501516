"""PyTorch, unmodified, as an offline job whose memory qgpud takes back for an online job: it goes
on with the same contents, to its end. What cannot be moved is requeued.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from jobs_support import Live, alone
from memory_jobs import GIB, await_step, held, intact, online, rows, steps
from test_torch_job import PLACE, ROOT, told

from cli.sandbox.cluster import Sandbox
from cli.sandbox.options import SandboxOptions

pytestmark = pytest.mark.frameworks
PROGRAM = ROOT / "tests/frameworks/programs/torch_loop_steps.py"
HELD_GIB = 45  # beside 48 GiB of the online job they do not fit on the card
OPTIONS = ("--qos=offline", "--gres=qgpu:30,vram:60G", "--requeue")


@pytest.fixture(scope="module")
def reclaiming() -> Iterator[Sandbox]:
    """One node with one card, whose offline jobs are reclaimable."""
    options = SandboxOptions(f"t{os.getpid()}p", nodes=1, cards=1, reclaimable=True)
    made = Sandbox(options, progress=print)
    made.up()
    yield made
    made.down()


@pytest.fixture
def one(reclaiming: Sandbox) -> Iterator[Live]:
    live = Live(reclaiming)
    (live.sandbox.layout.home("alice") / "go").unlink(missing_ok=True)
    yield from alone(live)


def started(live: Live, environment: str, loop: str) -> int:
    """An offline job that keeps tensors with known contents, holds memory, and loops."""
    if not (PLACE / environment / ".complete").exists():
        pytest.skip(f"{environment} is not installed: tools/frameworks.sh {environment}")
    words = "\\n".join(("keep", f"hold {HELD_GIB * 1024}", loop, "kept"))
    python = PLACE / environment / "bin/python"
    job = live.submit(f"set -o pipefail\nprintf '{words}\\n' | {python} {PROGRAM}", *OPTIONS)
    live.until(lambda: rounds(live, job) > 1, 60, f"the rounds of job {job}")
    live.until(lambda: held(live, job) >= HELD_GIB * GIB, 30, f"the memory of job {job}")
    return job


def rounds(live: Live, job: int) -> int:
    """How many lines its loop wrote."""
    return sum("round" in line for line in told(live.output(job)))


def goes_on(live: Live, job: int) -> None:
    """Its memory leaves for an online job and is back; it works on, and all is as it was."""
    fast = online(live)
    await_step(live, job, "left")
    assert intact(live.finish(fast)[0]), live.output(fast)
    await_step(live, job, "back")
    before = rounds(live, job)
    live.until(lambda: rounds(live, job) > before + 1, 30, f"more rounds of job {job}")
    live.ask("touch", str(live.sandbox.layout.home("alice") / "go"), user="alice")
    (text,) = live.finish(job)
    loop, kept = told(text)[-2:]
    assert loop["same"] and kept == {"same": True}, text
    assert (live.job(job)["JobState"], live.job(job)["Restarts"]) == ("COMPLETED", "0"), text
    assert steps(live, job) == ["leave", "left", "back"]
    (row,) = rows(live, job)
    assert row.result == "returned" and (row.bytes or 0) >= HELD_GIB * GIB


@pytest.mark.parametrize(
    ("environment", "loop"),
    [("torch-cuda13", "streams"), ("torch-cuda13", "loader"), ("torch-cuda12", "graph")],
)
def test_pytorch_leaves_for_an_online_job_and_goes_on(
    one: Live, environment: str, loop: str
) -> None:
    goes_on(one, started(one, environment, loop))


def test_a_tensor_that_processes_share_cannot_leave(one: Live) -> None:
    """The job is requeued, and the online job has its memory all the same."""
    job = started(one, "torch-cuda13", "share")
    fast = online(one)
    assert intact(one.finish(fast)[0]), one.output(fast)
    await_step(one, job, "unable")
    one.until(lambda: one.job(job).get("Restarts") == "1", 30, "the requeue")
    text = one.output(job)
    assert "cannot be moved: process" in text and "memory that processes share" in text, text
    one.cancel(job)
    one.wait_gone(job)
