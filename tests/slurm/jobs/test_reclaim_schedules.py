"""Random schedules of jobs whose memory may be taken back, beside jobs that reserve, on live Slurm.

Whatever comes and ends when, and whatever is killed: no online job is refused memory or fails, and
no offline job is lost or finds its memory changed. On nodes with two cards offline jobs also move
between them, by themselves and by order. QGPU_SCHEDULES=200 plays more of them.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Literal
from unittest.mock import patch

import pytest
from jobs_support import Live, alone, together, work

from cli.sandbox.cluster import Sandbox
from cli.sandbox.options import SandboxOptions
from enforcer.nvml.driver import PynvmlNvml

SCHEDULES, FIRST = int(os.environ.get("QGPU_SCHEDULES", "4")), int(os.environ.get("QGPU_SEED", "1"))
NODES = 2  # each plays one schedule at a time
MOVES = 5  # orders to move a job, in each schedule on two cards
USABLE_GIB, MOST_OFFLINE_GIB = 78, 150  # of a card; below max_reclaimable
BEGINS_S, KILLED_S = 2.0, 5.0  # jobs come, and something is killed, within this time
Victim = Literal["", "qgpud", "arbiter", "job"]


@dataclass(frozen=True)
class Planned:
    """A job: GiB of its cap and of what it holds, when it is submitted, how much it does."""

    online: bool
    cap: int
    use: int
    at: float
    requests: int

    def options(self, node: str) -> tuple[str, ...]:
        """Of sbatch."""
        qos = "online" if self.online else "offline"
        return (f"--qos={qos}", f"--gres=qgpu:10,vram:{self.cap}G", "-w", node, "--mem=500M")

    def script(self) -> str:
        """Its memory has known contents, which it compares at the end."""
        words = ("--requests", str(self.requests), "--gap", "0.05", "--pattern", f"{self.use}G")
        return f"exec {work(*words, '--json')}"


@dataclass(frozen=True)
class Schedule:
    """What comes on a node, and what is killed when."""

    seed: int
    jobs: tuple[Planned, ...]
    victim: Victim
    at: float


def drawn(seed: int) -> Schedule:
    """The schedule of a seed."""
    draw = random.Random(seed)
    jobs, offline = list[Planned](), 0
    for _ in range(draw.randint(3, 6)):
        online, cap = draw.random() < 0.5, draw.choice((10, 20, 30, 50, 70))
        if not online and offline + cap > MOST_OFFLINE_GIB:
            continue
        offline += 0 if online else cap
        use = max(1, int((cap - 1) * draw.uniform(0.3, 1)))
        at, requests = draw.uniform(0, BEGINS_S), draw.randint(10, 40 if online else 100)
        jobs.append(Planned(online, cap, use, at, requests))
    victims: tuple[Victim, ...] = ("", "", "qgpud", "arbiter", "job")
    return Schedule(seed, tuple(jobs), draw.choice(victims), draw.uniform(0.5, KILLED_S))


@pytest.fixture(scope="module", params=[1, 2], ids=["one-card", "two-cards"])
def reclaiming(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    """A sandbox whose offline memory is reclaimable; with two cards its jobs move."""
    options = SandboxOptions(f"r{os.getpid()}", nodes=NODES, cards=request.param, reclaimable=True)
    cluster = Sandbox(options, progress=print)
    cluster.up()
    if request.param > 1 and cluster.plan.cgroup == "none":
        cluster.down()
        pytest.skip(f"jobs move by their device cgroups: {cluster.plan.cgroup_why}")
    if request.param > 1:
        let_jobs_move(cluster)
    yield cluster
    cluster.down()


def let_jobs_move(cluster: Sandbox) -> None:
    path, before = cluster.layout.qgpu_yaml, cluster.layout.qgpu_yaml.read_text()
    path.write_text(re.sub(r"(?m)^reclaim: \{(.*)\}$", r"reclaim: {\1, move: true}", before))
    assert path.read_text() != before
    live = Live(cluster)
    for node in live.nodes:
        live.stop_qgpud(node)
        cluster.start(node, "qgpud")


@pytest.fixture
def live(reclaiming: Sandbox) -> Iterator[Live]:
    yield from alone(Live(reclaiming))


def sleep_until(moment: float) -> None:
    """Of time.monotonic()."""
    time.sleep(max(0.0, moment - time.monotonic()))


def submitted(live: Live, node: str, schedule: Schedule, begin: float) -> dict[int, Planned]:
    """The jobs by number, each submitted at its time."""
    found = {}
    for plan in sorted(schedule.jobs, key=lambda plan: plan.at):
        sleep_until(begin + plan.at)
        found[live.submit(plan.script(), *plan.options(node))] = plan
    return found


def kill(live: Live, node: str, schedule: Schedule, begin: float) -> int | None:
    """Kill what the schedule says, at its time; the job if it is one."""
    sleep_until(begin + schedule.at)
    if schedule.victim in ("qgpud", "arbiter"):
        live.sandbox.kill(node, schedule.victim, signal.SIGKILL)
        live.sandbox.start(node, schedule.victim)
    if schedule.victim != "job":
        return None
    here = live.ask("squeue", "-h", "-t", "R", "-w", node, "-o", "%A").split()
    if not here:
        return None
    number = random.Random(schedule.seed).choice(here)
    live.run("scancel", "--signal=KILL", "--full", number)
    return int(number)


def move_about(live: Live, node: str, schedule: Schedule, begin: float) -> None:
    """Order offline jobs of the node to its cards, at random; some orders are refused."""
    draw = random.Random(-schedule.seed)
    for moment in sorted(draw.uniform(1, BEGINS_S + KILLED_S) for _ in range(MOVES)):
        sleep_until(begin + moment)
        which = ("-t", "R", "-w", node, "--qos=offline", "-o", "%A")
        here = live.ask("squeue", "-h", *which).split()
        if here:
            card = str(draw.randint(0, 1))
            words = ("qgpu", "job", "move", draw.choice(here), "--card", card, "--node", node)
            live.run(*words, "--no-wait")


def check(live: Live, number: int, plan: Planned) -> None:
    """The job did all of its work, and found its memory as it was."""
    said = live.output(number)
    fields = live.job(number)
    assert (fields["JobState"], fields["ExitCode"], fields["Restarts"]) == (
        "COMPLETED",
        "0:0",
        "0",
    ), f"{plan}: {fields}\n{said}"
    # Slurm's notice that its memory is back may come after what it says.
    lines = [line for line in said.splitlines() if line.startswith("{")]
    assert len(lines) == 1, f"{plan}: {said}"
    told = json.loads(lines[0])
    assert (told["requests"], told["errors"]) == (plan.requests, 0), f"{plan}: {said}"
    assert told["pattern"]["wrong"] == 0 and told["pattern"]["pages"] >= 8, f"{plan}: {said}"
    assert "refused" not in said, f"{plan}: {said}"


def in_use(live: Live, node: str) -> int:
    """Bytes on the node's cards."""
    with patch.dict(os.environ, {"QGPU_SIM_DIR": str(live.paths(node).sim_dir)}):
        nvml = PynvmlNvml(str(live.sandbox.layout.opt / "sim/libnvidia-ml.so.1"))
        try:
            return sum(nvml.load(card.uuid).mem_used or 0 for card in nvml.cards())
        finally:
            nvml.close()


def played(live: Live, node: str, schedule: Schedule) -> str:
    """One schedule, to the end of its jobs: what went wrong, with its seed; or nothing."""
    begin = time.monotonic() + 0.2
    acts = (submitted, kill, *((move_about,) if live.sandbox.options.cards > 1 else ()))
    jobs, killed, *_ = together([partial(act, live, node, schedule, begin) for act in acts], 3)
    try:
        for number, plan in jobs.items():
            live.wait_gone(number, 60)
            if number != killed:
                check(live, number, plan)
    except AssertionError as error:
        live.run("scancel", *map(str, jobs))  # some of them ended
        for number in jobs:
            live.wait_gone(number, 60)
        return f"{schedule} on {node}: {error}"
    return ""


def several(live: Live, node: str, seeds: Iterator[int]) -> list[str]:
    """Play schedules until the seeds are used up; what went wrong in each."""
    return [played(live, node, drawn(seed)) for seed in seeds]


@pytest.mark.timeout(300 + 60 * SCHEDULES)
def test_random_schedules_harm_no_job(live: Live) -> None:
    seeds = iter(range(FIRST, FIRST + SCHEDULES))
    found = together([partial(several, live, node, seeds) for node in live.nodes], len(live.nodes))
    ends = [end for ends in found for end in ends]
    assert len(ends) == SCHEDULES
    assert not any(ends), "\n".join(filter(None, ends))
    for node in live.nodes:
        live.until(partial(lambda where: in_use(live, where) == 0, node), 10, "an empty card")
    live.until(lambda: not live.grants(), 10, "the end of all grants")
    print(*(f"{node}: {figures(live, node)}" for node in live.nodes), sep="\n")


def figures(live: Live, node: str) -> dict[str, int]:
    """How often something happened to the memory of a job, by the log."""
    log = live.paths(node).log("qgpud").read_text()
    return dict(Counter(re.findall(r"event=(?:reclaim step=)?(left|back|moved|not-moved)\b", log)))


def test_schedules_are_of_all_kinds() -> None:
    """Else the test above could promise too little."""
    found = [drawn(seed) for seed in range(1, 201)]
    assert {schedule.victim for schedule in found} == {"", "qgpud", "arbiter", "job"}
    crowded = [
        schedule
        for schedule in found
        if sum(plan.use for plan in schedule.jobs) > USABLE_GIB
        and len({plan.online for plan in schedule.jobs}) == 2
    ]
    assert len(crowded) > 100, "the jobs of most schedules do not fit on the card together"
