"""Captures programs for the worlds: `python -m bench.worlds.capture [NAME ...]`, as root.

Each program runs alone on a simulated card, without qgpu. From the card's trace its kernels are
taken in their order, and what lies between two of them: a copy that nothing else ran beside, and
time on the CPU. Kernels' durations are the simulator's model, no measurement. So much of the CPU
goes to other work on a busy machine that the calmest passes in a row are kept.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from itertools import pairwise
from pathlib import Path

import click

from bench.costs.framework import CARDS, PLACE, apart
from bench.harness.node import Rig
from bench.harness.scene import COMPUTE, rig
from bench.worlds.programs import HERE, Captured, Row
from simulator.sim import Interval, Kind

JAX = {
    "JAX_PLATFORMS": "cuda",
    "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1",
    "XLA_FLAGS": "--xla_gpu_autotune_level=0",
}
PROGRAMS = Path(__file__).with_name("loads")
PAUSE_NS = 200  # a shorter one is none: launches have no finer clock
# Bytes. A fill or a copy on the card moves real memory, in the call: time that no card needs.
MOVED = 1 << 16
DIGITS = 2  # of a pause: the next run would have others


@dataclass(frozen=True)
class Load:
    """What is captured: an environment of tools/frameworks.sh, a program of loads/, how many
    passes are run and how many of them are kept.
    """

    environment: str
    passes: int
    kept: int
    requests: bool = False
    file: str = "torch_loads.py"


LOADS = {
    "train": Load("torch-cuda13", 300, 4),
    "amp": Load("torch-cuda12", 300, 4),
    "conv": Load("torch-cuda13", 60, 2),
    "attention": Load("torch-cuda13", 100, 1),
    "loader": Load("torch-cuda13", 200, 8),
    "jitted": Load("jax", 300, 10, file="other_loads.py"),
    "signals": Load("cupy", 300, 10, file="other_loads.py"),
    "infer": Load("torch-cuda13", 500, 20, requests=True),
    "images": Load("torch-cuda12", 200, 5, requests=True),
    "encoder": Load("torch-cuda13", 200, 2, requests=True),
    "decode": Load("torch-cuda13", 200, 4, requests=True),
}


def played(node: Rig, name: str, load: Load) -> tuple[int, list[int]]:
    """Runs the program; its process, and when each pass began."""
    argv = [PLACE / load.environment / "bin/python", PROGRAMS / load.file]
    env = {"HOME": str(node.directory)} | (JAX if load.environment == "jax" else {})
    process = node.spawn(argv, None, stdin=subprocess.PIPE, env=env)
    out, err = process.communicate(f"{name} {load.passes}\n", timeout=600)
    if process.returncode or not out.strip():
        raise RuntimeError(f"{name} ended with status {process.returncode}: {err.strip()}")
    begun: list[int] = json.loads(out.splitlines()[-1])
    return process.pid, begun


def calmest(begun: Sequence[int], kept: int) -> tuple[int, int]:
    """Begin and end of the passes in a row that took least."""
    ends = [(begun[i], begun[i + kept]) for i in range(len(begun) - kept)]
    return min(ends, key=lambda pair: pair[1] - pair[0])


def copied(copies: Sequence[Interval], begin: int, end: int) -> int:
    """How much of a pause copies took."""
    inside = [(max(c.t_start, begin), min(c.t_end, end)) for c in copies]
    return sum(to - since for since, to in inside if to > since)


def rounded(ns: int) -> int:
    """Of a pause."""
    digits = len(str(ns)) - DIGITS
    return 0 if ns < PAUSE_NS else round(ns, -digits) if digits > 0 else ns


def rows(spans: Sequence[Interval], copies: Sequence[Interval], end: int) -> Iterator[Row]:
    """One row of each kernel: 1, its length, the pause after it, and the copy in that."""
    for this, following in pairwise(spans):
        until = min(following.t_start, end)
        copy = copied(copies, this.t_end, until)
        pause = max(0, until - this.t_end - copy)
        if following.kind in (Kind.DTOD, Kind.MEMSET) and following.work >= MOVED:
            pause = 0
        yield Row(1, this.duration, rounded(pause), rounded(copy))


def joined(each: Iterator[Row]) -> list[Row]:
    """Equal kernels without a pause between them are one row."""
    found: list[Row] = []
    for row in each:
        last = found[-1] if found else None
        if last and last.ns == row.ns and not last.gap_ns and not last.copy_ns:
            found[-1] = Row(last.kernels + 1, row.ns, row.gap_ns, row.copy_ns)
        else:
            found.append(row)
    return found


def capture(name: str, load: Load) -> Captured:
    """Runs it on a card of its own and reads the card's trace."""
    with rig(sim_options=CARDS) as node, apart(node):
        pid, begun = played(node, name, load)
        spans = sorted((s for s in node.trace() if s.pid == pid), key=lambda s: s.t_start)
    begin, end = calmest(begun, load.kept)
    compute = [s for s in spans if s.kind in COMPUTE]
    inside = [i for i, s in enumerate(compute[:-1]) if begin <= s.t_submit < end]
    mine = compute[inside[0] : inside[-1] + 2]
    copies = [s for s in spans if s.kind not in COMPUTE]
    return Captured(
        name,
        load.environment,
        datetime.now(timezone.utc).date().isoformat(),
        load.kept if load.requests else 0,
        joined(rows(mine, copies, max(end, mine[-1].t_start))),
    )


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(sorted(LOADS)))
@click.option("--into", type=click.Path(path_type=Path), default=HERE)
def main(names: tuple[str, ...], into: Path) -> None:
    """Capture these programs, or all, into a folder."""
    for name in names or LOADS:
        found = capture(name, LOADS[name])
        found.write(into / f"{name}.json")
        click.echo(found.described())


if __name__ == "__main__":
    main()
