"""Every way to submit, as tests/cases/surface.yaml lists them: where jobs land, what they see,
what is booked.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from jobs_support import Live

from gres.units import parse_size

CASES: list[dict[str, Any]] = yaml.safe_load(
    (Path(__file__).resolve().parents[2] / "cases" / "surface.yaml").read_text()
)["cases"]
SEE = """#!/usr/bin/python3
import errno, os, sys
marks = {bool(os.environ.get(name)) for name in ("QGPU_GRANT", "QGPU_GRANT_FD")}
# preload or mount
marks.add(bool(os.environ.get("LD_PRELOAD")) or os.path.exists("/run/qgpu-task/grant"))
devices = os.environ.get("QGPU_SIM_DIR", "/nowhere") + "/dev/qgpusim"
cards = []
for index in range(16):
    try:
        os.close(os.open(f"{devices}{index}", os.O_RDWR))
    except OSError as error:
        # Nothing drives these devices: ENXIO is what a job that may open one gets.
        if error.errno == errno.ENXIO:
            cards.append(str(index))
state = {(True,): "governed", (False,): "bare"}.get(tuple(marks), "torn")
node = os.environ.get("SLURMD_NODENAME", "-")
print("SEE", sys.argv[1], state, len(cards), node, ",".join(cards), flush=True)
"""
MEET = """#!/bin/bash
mkdir -p "$HOME/meet-$2"; touch "$HOME/meet-$2/$$-$SLURM_STEP_ID"
for ((i = 0; i < 400; i++)); do
    [ "$(ls "$HOME/meet-$2" | wc -l)" -ge "$1" ] && exit 0
    sleep 0.05
done
echo "nobody else came to $2"; exit 1
"""


class Seen(NamedTuple):
    """One line of `see`."""

    label: str
    state: str
    cards: str
    node: str
    which: str


def install(live: Live) -> Path:
    """alice's home with the two helpers in it, and nothing left of the case before."""
    home = live.sandbox.layout.home("alice")
    live.ask("bash", "-c", "rm -rf $HOME/*", user="alice")
    for name, text in (("see", SEE), ("meet", MEET)):
        (home / name).write_text(text)
        (home / name).chmod(0o755)
    return home


def newest(live: Live) -> int:
    """Number of the last job that slurmctld took."""
    job = int(live.ask("sbatch", "-H", "--parsable", "--wrap=true", user="bob"))
    live.cancel(job)
    return job


def booked(live: Live, job: int) -> dict[str, str]:
    """Gres of AllocTRES without their prefix."""
    return {
        name.removeprefix("gres/"): count
        for name, count in live.tres(job).items()
        if name.startswith("gres/")
    }


def assert_booked(live: Live, job: int, wanted: dict[str, Any]) -> None:
    """State and counts; a card is booked as its shards where this version does that."""
    wanted = dict(wanted)
    live.until(lambda: live.state(job) == wanted["state"], 10, f"job {job} being {wanted['state']}")
    del wanted["state"]
    if "gpu" in wanted and live.dialect.lone_whole:
        wanted["shard"] = 100 * wanted.pop("gpu")
    if "alone" in wanted:  # never as shards
        wanted["gpu"] = wanted.pop("alone")
    found = booked(live, job)
    for name, count in wanted.items():
        same = (
            parse_size(str(count)) == parse_size(found[name])
            if name == "vram"
            else str(count) == found[name]
        )
        assert same, (name, count, found)


def assert_places(case: dict[str, Any], seen: list[Seen], nodes: list[str]) -> None:
    """Which labels were on which cards and nodes."""
    where: dict[str, set[tuple[str, str]]] = {}
    for line in seen:
        where.setdefault(line.label, set()).add((line.node, line.which))
    if "same" in case:
        assert len(set.union(*(where[label] for label in case["same"]))) == 1, seen
    for label in case.get("apart", ()):
        assert all(
            where[label].isdisjoint(where[other]) for other in case["apart"] if other != label
        ), seen
    for label, node in case.get("where", {}).items():
        assert {name for name, _ in where[label]} == {nodes[node]}, seen
    if "nodes" in case:
        assert len({line.node for line in seen}) == case["nodes"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_surface(live: Live, case: dict[str, Any]) -> None:
    if live.dialect.before(case.get("since", "")) or not live.dialect.before(
        case.get("before", "99")
    ):
        pytest.skip("not for this version")
    home = install(live)
    for command in case.get("admin", ()):
        live.ask(*(word.replace("{node}", live.nodes[0]) for word in command))
    try:
        before = newest(live)
        script = f"export PATH=$HOME:$PATH; cd $HOME; {case['do'].replace('{node}', live.nodes[0])}"
        done = live.run("bash", "-c", script, user="alice")
        # --test-only uses numbers up as well
        jobs = [job for job in range(before + 1, newest(live)) if live.job(job)]
    finally:
        for command in case.get("after", ()):
            live.run(*command)
    text = done.stdout + done.stderr
    assert done.returncode == case.get("status", 0), text
    assert case.get("says", "") in text
    seen = [
        Seen(*[*line.split(), "-"][1:6]) for line in text.splitlines() if line.startswith("SEE ")
    ]
    found = Counter(f"{line.label} {line.state} {line.cards}" for line in seen)
    assert found == Counter(case["seen"]), text
    assert_places(case, seen, live.nodes)
    if "jobs" in case:
        assert len(jobs) == len(case["jobs"]), text
        for job, wanted in zip(jobs, case["jobs"], strict=True):
            assert_booked(live, job, wanted)
    assert home.is_dir()
