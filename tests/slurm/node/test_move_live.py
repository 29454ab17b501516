"""Offline jobs move to the other card of their node on live Slurm, with all of their memory."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

import pytest
from jobs_support import Live, alone, work
from memory_jobs import (
    GIB,
    ONLINE,
    await_step,
    held,
    intact,
    log,
    moving,
    online,
    resident,
    settings,
)

from cli.sandbox.cluster import Sandbox
from cli.sandbox.options import SandboxOptions

DAEMONS = ("qgpud", "arbiter")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Sandbox]:
    """One node with two cards, whose offline jobs are reclaimable."""
    options = SandboxOptions(f"t{os.getpid()}m", nodes=1, cards=2, reclaimable=True)
    made = Sandbox(options, progress=print)
    made.up()
    if made.plan.cgroup == "none":
        made.down()
        pytest.skip(f"jobs move by their device cgroups: {made.plan.cgroup_why}")
    yield made
    made.down()


@pytest.fixture
def one(cluster: Sandbox) -> Iterator[Live]:
    yield from alone(Live(cluster))


def where(live: Live, job: int) -> dict[str, Any]:
    """The job's card by qgpud, and what it says of the job there, once it says something."""
    live.until(lambda: bool(_seen(live, job)), 20, f"job {job} in the state of its node")
    return _seen(live, job)


def _seen(live: Live, job: int) -> dict[str, Any]:
    state = json.loads((live.paths(live.nodes[0]).run_dir / "state.json").read_text())
    found = [
        {"card": card["index"], **tenant}
        for card in state["cards"]
        for tenant in card["tenants"]
        if tenant["job_id"] == job
    ]
    return found[0] if len(found) == 1 else {}


def move(live: Live, job: int, card: int, *options: str) -> str:
    """What `qgpu job move` says, with its status in front."""
    words = ["qgpu", "job", "move", str(job), "--card", str(card), "--node", live.nodes[0]]
    done = live.run(*words, *options)
    return f"{done.returncode} {done.stdout}{done.stderr}"


def ended(live: Live, job: int) -> str:
    """What the job wrote that is ended now."""
    live.run("scancel", "--signal=TERM", "--full", str(job))
    return live.finish(job)[0]


def settle_on(live: Live, job: int, card: int, gib: int = 58) -> None:
    live.until(lambda: where(live, job)["card"] == card, 60, f"job {job} on card {card}")
    live.until(lambda: held(live, job) >= gib * GIB, 30, f"its memory on card {card}")


def test_root_moves_a_job_there_and_back_bit_for_bit(one: Live) -> None:
    job = resident(one)
    home = where(one, job)["card"]
    said = move(one, job, 1 - home)
    assert said == f"0 job {job} is on card {1 - home}\n", said
    settle_on(one, job, 1 - home)
    launches = where(one, job)["counters"]["launches"]
    one.until(lambda: where(one, job)["counters"]["launches"] > launches, 20, "its work")
    assert move(one, job, 1 - home) == f"0 job {job} is on card {1 - home} already\n"
    said = move(one, job, home)
    assert said == f"0 job {job} is on card {home}\n", said
    settle_on(one, job, home)
    assert intact(ended(one, job))
    found = one.report(job)[job]
    cards = [(grant["card"], grant["ended"]) for grant in found["grants"]]
    assert cards == [(home, True), (1 - home, True), (home, True)]
    assert found["share"] == 30 and sum(g["reclaimed_s"] > 0 for g in found["grants"]) == 3


def test_online_jobs_find_the_card_that_was_left(one: Live) -> None:
    """A job of 70 GiB starts there at once, and one on the other card makes the moved job leave."""
    job = resident(one)
    home = where(one, job)["card"]
    assert move(one, job, 1 - home).startswith("0 ")
    settle_on(one, job, 1 - home)
    both = [
        one.submit(
            work("--pattern", "68G", "--length", "3", "--json"),
            "--qos=online",
            "--gres=qgpu:30,vram:70G",
        )
        for _ in range(2)
    ]
    outputs = one.finish(*both)
    assert all(intact(output) for output in outputs), outputs
    await_step(one, job, "back", 2)
    assert intact(ended(one, job))


def test_a_job_without_room_goes_to_the_free_card_by_itself(one: Live) -> None:
    with settings(one, "move: true"):
        job = resident(one)
        home = where(one, job)["card"]
        first = online(one, 60)
        one.grant(first)
        second = online(one, 60)  # one of them is on the card of the job
        one.grant(second)
        await_step(one, job, "left")
        stays = second if where(one, second)["card"] == home else first
        other = first if stays == second else second
        one.cancel(other)
        one.wait_gone(other)
        settle_on(one, job, 1 - home)
        assert where(one, stays)["card"] == home
        one.cancel(stays)
        assert intact(ended(one, job))


def test_a_whole_card_waits_for_a_job_that_was_moved_there(one: Live) -> None:
    job = resident(one)
    home = where(one, job)["card"]
    assert move(one, job, 1 - home).startswith("0 ")
    settle_on(one, job, 1 - home)
    whole = one.submit(work("--pattern", "70G", "--length", "2", "--json"), "--gres=gpu:1")
    assert intact(one.finish(whole)[0]), one.output(whole)
    await_step(one, job, "back", 2)
    assert intact(ended(one, job))


def test_new_steps_and_programs_of_a_moved_job_are_on_its_new_card(one: Live) -> None:
    """Each writes a file of its own: Slurm's notices go to the job's output meanwhile."""
    home_dir = one.sandbox.layout.home("alice")
    files = [home_dir / name for name in ("go", "first", "second", "step")]
    for path in files:
        path.unlink(missing_ok=True)
    go, *said = files
    small = work("--pattern", "1G", "--length", "2", "--json")
    script = "\n".join(
        [
            f"{work('--pattern', '20G', '--length', '600', '--json')} > {said[0]} & first=$!",
            f"until [ -e {go} ]; do sleep 0.1; done",
            f"{small} > {said[1]}",
            f"srun --overlap {small} > {said[2]}",
            "kill -TERM $first",
            "wait $first",
        ]
    )
    job = resident(one, gib=20, script=script)
    home = where(one, job)["card"]
    assert move(one, job, 1 - home).startswith("0 ")
    settle_on(one, job, 1 - home, 20)
    one.ask("touch", str(go), user="alice")
    one.until(lambda: where(one, job)["procs"] == 2, 60, "the second program")
    (output,) = one.finish(job)
    assert [intact(path.read_text()) for path in said] == [True] * 3, output
    usages = one.report(job)[job]["grants"]
    assert [usage["card"] for usage in usages] == [home, 1 - home]


@pytest.mark.parametrize("daemon", DAEMONS)
@pytest.mark.parametrize("when", ["leave", "return"])
def test_a_daemon_that_is_killed_in_the_midst_finishes_the_move(
    one: Live, daemon: str, when: str
) -> None:
    node, job = one.nodes[0], resident(one)
    home = where(one, job)["card"]
    assert move(one, job, 1 - home, "--no-wait").startswith("0 ")
    one.until(lambda: moving(one, when), 30, f"the helper of the {when}")
    if daemon == "qgpud":
        one.stop_qgpud(node)
    else:
        one.sandbox.kill(node, "arbiter")
    one.sandbox.start(node, daemon)
    await_step(one, job, "back")
    if daemon == "arbiter" or when == "return":
        settle_on(one, job, 1 - home)
    assert intact(ended(one, job)), one.output(job)


def test_what_is_refused(one: Live) -> None:
    fast = one.submit(work("--pattern", "10G", "--length", "60", "--json"), *ONLINE)
    one.grant(fast)
    said = move(one, fast, 1)
    assert said.startswith("1 ") and "reserves its memory" in said
    job = resident(one)
    home = where(one, job)["card"]
    assert "is no card of" in move(one, job, 7)
    denied = one.run("qgpu", "job", "move", str(job), "--card", "0", user="alice")
    assert denied.returncode != 0
    big = one.submit(
        work("--pattern", "60G", "--length", "60", "--json"), "--qos=online",
        "--gres=qgpu:30,vram:64G",
    )  # fmt: skip
    one.grant(big)
    if where(one, big)["card"] != home:
        said = move(one, job, 1 - home)
        assert said.startswith("1 ") and "free beside what other jobs reserve" in said, said
    one.cancel(fast, big, job)
    assert "event=moved" not in log(one).split("event=grant")[-1]
