"""The gain of two unmodified PyTorch trainings that pause after each step, on the chain.

Four linear layers, eager SGD; a step is awaited, then the program sleeps. A pair is the width of
the layers and the pause. The first training is measured alone before the second one starts.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.costs.framework import CARDS, ROOT, apart, environment
from bench.harness.figures import Figure
from bench.harness.node import Rig
from bench.harness.scene import rig
from bench.promises.gain_chain import CARD

PROGRAM = ROOT / "bench/gpu/programs/torch_pause.py"
FIRST_JOB, SHARE = 601, 50
SECONDS, FEW_SECONDS, WARM_UP_S = 4.0, 2.0, 0.5


@dataclass(frozen=True)
class Pair:
    """Two equal trainings, and what they shall gain."""

    width: int
    pause_ms: int
    target: float


PAIRS = (Pair(1024, 1, 1.8), Pair(4096, 1, 1.55), Pair(4096, 3, 1.9))


@dataclass(frozen=True)
class Speeds:
    """Steps per second: alone, and of each of two together."""

    alone: float
    together: Sequence[float]

    @property
    def gain(self) -> float:
        return sum(speed / self.alone for speed in self.together)


def start(node: Rig, argv: Sequence[str | Path], job: int) -> subprocess.Popen[str]:
    """A training under a grant of its own, warm."""
    grant = node.grant(job, "offline", SHARE)
    env = {"CUDA_VISIBLE_DEVICES": node.uuids[0], "HOME": str(node.directory)}
    process = node.spawn(argv, grant, stdin=subprocess.PIPE, env=env)
    speeds([process], WARM_UP_S)
    return process


def speeds(trainings: Sequence[subprocess.Popen[str]], seconds: float) -> list[float]:
    """Steps per second of each, all at the same time; RuntimeError with the words of one that
    failed.
    """
    for process in trainings:
        assert process.stdin
        process.stdin.write(f"{seconds}\n")
        process.stdin.flush()
    return [answer(process) for process in trainings]


def answer(process: subprocess.Popen[str]) -> float:
    """Steps per second, as the program told them."""
    assert process.stdout
    line = process.stdout.readline()
    if not line:
        raise RuntimeError(f"the training ended: {process.communicate()[1].strip()}")
    told = json.loads(line)
    return float(told["steps"] / told["seconds"])


def measure(argv: Sequence[str | Path], seconds: float, governed: bool = True) -> Speeds:
    """One training alone, then two of them."""
    with rig(governed=governed, sim_options=(*CARDS, *CARD)) as node, apart(node):
        first = start(node, argv, FIRST_JOB)
        (alone,) = speeds([first], seconds)
        both = [first, start(node, argv, FIRST_JOB + 1)]
        together = speeds(both, seconds)
        for process in both:
            process.communicate(timeout=60)
    return Speeds(alone, together)


def judged(found: Mapping[Pair, tuple[Speeds, Speeds]]) -> Iterator[Figure]:
    """The gain of each pair; that of plain time slices stands beside it."""
    for pair, (qgpu, plain) in found.items():
        each = ", ".join(f"{speed:.0f}" for speed in qgpu.together)
        note = f"({each} steps/s, alone {qgpu.alone:.0f}; gain of plain slices {plain.gain:.2f})"
        detail = {"alone": qgpu.alone, "plain_gain": plain.gain}
        name = f"gain_torch_{pair.width}_{pair.pause_ms}ms"
        yield Figure(name, qgpu.gain, "", pair.target, ">=", 1, note, detail=detail)


def figures(quick: bool) -> Iterator[Figure]:
    """All pairs; `quick`: the first one."""
    python = environment()
    found = {}
    for pair in PAIRS[:1] if quick else PAIRS:
        argv: list[str | Path] = [python, PROGRAM, str(pair.width), str(pair.pause_ms / 1000)]
        seconds = FEW_SECONDS if quick else SECONDS
        found[pair] = (measure(argv, seconds), measure(argv, seconds, governed=False))
    yield from judged(found)
