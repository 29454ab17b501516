"""What qgpu costs a real program: a training step of PyTorch, thousands of launches per second.

Three processes train by turns, each on a card of its own: on the simulated driver alone, under the
shim, and under the shim with a known delay added, the control.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from bench.harness.figures import Figure, NotRun, doubt_of
from bench.harness.node import Rig
from bench.harness.scene import rig

ROOT = Path(__file__).resolve().parents[2]
PLACE = Path(os.environ.get("QGPU_FRAMEWORKS", "/var/cache/qgpu/frameworks"))
ENVIRONMENTS = ("torch-cuda13", "torch-cuda12")
PROGRAM = ROOT / "bench/gpu/programs/torch_step.py"
ALONE, BESIDE = "", "_window"
STATES = {ALONE: "alone on the card, its gate open", BESIDE: "beside an online job that is idle"}
KINDS = ("plain", "ours", "control")  # each has the card of its place here
ONLINE = 9  # job, on the cards of both tenants
WALL_TARGET, CPU_TARGET = 1.01, 1.02
DELAY_US = 2.0  # the control's, for each launch: about what a launch call of a real driver takes
WARM_UP_STEPS = 100
# A card needs nothing of the processors to read what is submitted: the simulated ones read it
# without sleep, below the arbiter's priority.
CARDS = ("--poll-us", "2000", "--priority", "40")
TURN_S = 0.1
TRIOS, FEW_TRIOS = 4, 1
TURNS, FEW_TURNS = 12, 6  # of each trio in each state


@dataclass(frozen=True)
class Step:
    """Seconds of one step."""

    wall: float
    cpu: float

    def by(self, clock: str) -> float:
        """Seconds by this clock."""
        return self.cpu if clock == "cpu" else self.wall


@dataclass
class Found:
    """The turns of each trio in one state."""

    trios: list[Sequence[Mapping[str, Step]]] = field(default_factory=list)
    launches: list[float] = field(default_factory=list)  # of a step, of each trio

    def ratios(self, kind: str, clock: str) -> list[float]:
        """This kind over the plain one of the same turn, the median of each trio; above 1: it costs
        something. Two processes that do the same differ by where their memory lies, so a trio is
        one sample.
        """
        return [
            statistics.median(turn[kind].by(clock) / turn["plain"].by(clock) for turn in turns)
            for turns in self.trios
        ]

    def noise(self, clock: str) -> float:
        """How far a turn without qgpu is from the next one: the median of it, as a part of 1."""
        plain = [[turn["plain"].by(clock) for turn in turns] for turns in self.trios]
        return statistics.median(abs(a / b - 1) for times in plain for a, b in pairwise(times))

    @property
    def step_s(self) -> float:
        """Seconds of a step under the shim."""
        return statistics.median(turn["ours"].wall for turns in self.trios for turn in turns)


def environment() -> Path:
    """The Python of an environment with PyTorch."""
    argv = [str(ROOT / "tools/frameworks.sh"), "--list", *ENVIRONMENTS]
    there = subprocess.run(argv, capture_output=True, text=True, check=True).stdout.split()
    for name in ENVIRONMENTS:
        if name in there:
            return PLACE / name / "bin/python"
    raise NotRun(f"PyTorch is not installed: tools/frameworks.sh {ENVIRONMENTS[0]}")


class Trainer:
    """One process of a trio. It answers each order to train."""

    def __init__(self, node: Rig, python: Path, kind: str) -> None:
        card = KINDS.index(kind)
        self.job = card or None
        grant = node.grants[card] if card else None
        env = {"CUDA_VISIBLE_DEVICES": node.uuids[card], "HOME": str(node.directory)}
        self.process = node.spawn([python, PROGRAM], grant, stdin=subprocess.PIPE, env=env)

    def send(self, steps: int, spin_us: float = 0) -> None:
        """Order steps, and do not wait for them."""
        assert self.process.stdin
        self.process.stdin.write(f"{steps} {spin_us}\n")
        self.process.stdin.flush()

    def answer(self, steps: int) -> Step:
        """What each step took; RuntimeError with its own words if the program failed."""
        assert self.process.stdout
        line = self.process.stdout.readline()
        if not line:
            _, err = self.process.communicate()
            raise RuntimeError(f"the training ended: {err.strip()}")
        told = json.loads(line)
        return Step(told["wall_s"] / steps, told["cpu_s"] / steps)

    def train(self, steps: int, spin_us: float = 0) -> Step:
        """Order steps, and wait for them."""
        self.send(steps, spin_us)
        return self.answer(steps)


def launches(node: Rig, job: int) -> int:
    """Launches of this job so far."""
    return next(tenant.launches for tenant in node.link.stats() if tenant.job_id == job)


@contextlib.contextmanager
def apart(node: Rig) -> Iterator[None]:
    """The simulated cards have a processor to themselves, and what is started meanwhile the others:
    a card's own work takes no time of the processors.
    """
    before = os.sched_getaffinity(0)
    *others, last = sorted(before)
    if others:
        os.sched_setaffinity(node.card_process.pid, {last})
        os.sched_setaffinity(0, others)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextlib.contextmanager
def trio(node: Rig, python: Path) -> Iterator[dict[str, Trainer]]:
    """The three processes, warm."""
    trainers = {kind: Trainer(node, python, kind) for kind in KINDS}
    for trainer in trainers.values():
        trainer.send(WARM_UP_STEPS)
    for trainer in trainers.values():
        trainer.answer(WARM_UP_STEPS)
    yield trainers
    for trainer in trainers.values():
        trainer.process.communicate(timeout=60)


def play(node: Rig, trainers: Mapping[str, Trainer], turns: int, found: Found) -> None:
    """The turns of one trio in one state. Who begins changes with each."""
    ours = KINDS.index("ours")
    before = launches(node, ours)
    steps = max(1, round(TURN_S / trainers["plain"].train(WARM_UP_STEPS).wall))
    trainers["ours"].train(steps)
    each = (launches(node, ours) - before) / steps
    if each < 1:
        raise RuntimeError("the arbiter saw no launch of the training under the shim")
    found.launches.append(each)
    spins = {"plain": 0.0, "ours": 0.0, "control": DELAY_US * each}
    orders = [KINDS[turn % len(KINDS) :] + KINDS[: turn % len(KINDS)] for turn in range(turns)]
    found.trios.append(
        [{kind: trainers[kind].train(steps, spins[kind]) for kind in order} for order in orders]
    )


def measure(python: Path, trios: int, turns: int) -> dict[str, Found]:
    """Trios, each of them in every state."""
    found = {state: Found() for state in STATES}
    cards = range(1, len(KINDS))
    with rig(cards=len(KINDS), sim_options=CARDS) as node, apart(node):
        for card in cards:
            node.grant(card, "offline", 50, card=card)
        for _ in range(trios):
            with trio(node, python) as trainers:
                play(node, trainers, turns, found[ALONE])
                node.grant(ONLINE, "online", 50, card=cards)
                play(node, trainers, turns, found[BESIDE])
            node.link.revoke(ONLINE)
            node.grants.pop(ONLINE)
    return found


def judged(found: Found, state: str) -> Iterator[Figure]:
    """Both clocks, and the control of each."""
    each = statistics.median(found.launches)
    rate = each / found.step_s
    for kind, prefix in (("ours", ""), ("control", "control_")):
        for clock, word, target in (("wall", "", WALL_TARGET), ("cpu", "_cpu", CPU_TARGET)):
            ratios = found.ratios(kind, clock)
            yield Figure(
                f"{prefix}framework_step{word}_ratio{state}",
                statistics.median(ratios),
                "",
                target,
                "<=",
                len(ratios),
                f"({STATES[state]}; +-{doubt_of(ratios):.4f}, {min(ratios):.4f} to"
                f" {max(ratios):.4f}, noise {found.noise(clock):.4f}; {each:.0f} launches a step,"
                f" {rate:.0f} a second)",
                control=kind == "control",
                detail={"doubt": doubt_of(ratios), "noise": found.noise(clock), "rate": rate},
            )


def figures(quick: bool) -> Iterator[Figure]:
    """All figures of this scenario."""
    python = environment()
    trios, turns = (FEW_TRIOS, FEW_TURNS) if quick else (TRIOS, TURNS)
    for state, found in measure(python, trios, turns).items():
        yield from judged(found, state)
