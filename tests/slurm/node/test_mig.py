"""MIG instances as cards in a real Slurm: placed, constrained and capped one by one, on the
simulator.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from jobs_support import together

from cli.sandbox.cluster import Sandbox
from cli.sandbox.options import SandboxOptions
from cli.sandbox.services import slurm_version

NEW = (
    tuple(int(part) for part in slurm_version().split(".")[:2]) >= (23, 11)
    if slurm_version()
    else False
)
pytestmark = pytest.mark.skipif(not NEW, reason="Slurm shares MIG instances from 23.11 on")

# Which instance the task was told, and which device files of instances its cgroup lets it open; it
# ends when all run. No driver is behind the files: what the cgroup allows fails with ENXIO, what it
# does not with EPERM.
LOOK = """
touch MEET/$SLURM_JOB_ID
until [ $(ls MEET | wc -l) = 8 ]; do sleep 0.1; done
open=
for f in CARDS/qgpusim[0-9]*; do
    (: <>$f) 2>&1 | grep -q permitted || open="$open ${f##*qgpusim}"
done
echo $CUDA_VISIBLE_DEVICES$open
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Sandbox]:
    """A node with two cards of two instances each."""
    sandbox = Sandbox(
        SandboxOptions(f"t{os.getpid()}m", nodes=1, cards=4, memory_mib=40960, model="a100", mig=2),
        progress=print,
    )
    with sandbox:
        yield sandbox


def _srun(cluster: Sandbox, *words: str) -> str:
    done = cluster.run(["srun", "-Q", *words], user="alice", timeout=90)
    assert done.returncode == 0, done.stderr
    return done.stdout


def _uuids(cluster: Sandbox) -> list[str]:
    cards = json.loads(cluster.run(["qgpu", "card", "list", "--json"]).stdout)
    assert [card["index"] for card in cards] == [0, 1, 2, 3]
    return [card["uuid"] for card in cards]


def test_every_instance_counts_a_hundred(cluster: Sandbox) -> None:
    shown = cluster.run(["sinfo", "-h", "-o", "%G"]).stdout
    assert shown.startswith("gpu:a100:4,shard:a100:400,qgpu:online:400,")


def test_jobs_lie_on_instances_and_open_no_other(cluster: Sandbox) -> None:
    """Eight halves at once fill four instances; the cgroup leaves each job the files of its own."""
    uuids = _uuids(cluster)
    dev = cluster.layout.node(cluster.node_names[0]).sim_dir / "dev"
    with tempfile.TemporaryDirectory(prefix="qgpu-test-") as meet:
        Path(meet).chmod(0o777)
        look = LOOK.replace("MEET", meet).replace("CARDS", str(dev))
        call = ("--qos=offline", "--gres=qgpu:50", "sh", "-c", look)
        told = [out.split() for out in together([lambda: _srun(cluster, *call)] * 8, at_once=8)]
    assert Counter(words[0] for words in told) == dict.fromkeys(uuids, 2)
    if cluster.plan.cgroup != "none":
        assert [words for words in told if words[1:] != [str(uuids.index(words[0]))]] == []


def test_the_cap_is_of_the_instance(cluster: Sandbox) -> None:
    program = f"{cluster.layout.opt}/bin/qgpu-workload"
    words = (
        "--qos=online",
        "--gres=qgpu:30,vram:1G",
        program,
        "--json",
        "--length",
        "1",
        "--kernel-us",
        "200",
    )
    done = json.loads(_srun(cluster, *words, "--alloc-past", "4GiB"))
    assert done["alloc"] | {"bytes": 704 << 20, "refused": True} == done["alloc"]
    assert done["uuid"][4:] in {uuid[4:] for uuid in _uuids(cluster)}


def test_a_whole_instance_is_named_by_its_uuid(cluster: Sandbox) -> None:
    assert _srun(
        cluster, "--qos=online", "--gres=gpu:1", "printenv", "CUDA_VISIBLE_DEVICES"
    ).strip() in _uuids(cluster)
