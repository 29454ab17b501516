"""Host memory of jobs whose GPU memory may be taken back: added once, whatever is updated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from gres_support import LUA_VERSIONS, cluster
from test_lua_job_submit import Slurm

from gres.request.tables import HostDefault
from slurm_plugin.render import render

CAP = 23961  # MiB of 30 % of an h200
BOOKED = f"qgpu:offline:30,shard:h200:1,vram:{CAP}M"
TAG = f"qgpu/1 class=offline share=30 mem={CAP}"
PER_NODE = {
    "job_id": 7,
    "job_state": 0,
    "qos": "offline",
    "tres_per_node": BOOKED,
    "extra": f"{TAG} host={CAP}; mine",
    "min_mem_per_node": 4096 + CAP,
}
PER_CPU = {
    **PER_NODE,
    "extra": f"{TAG} host={CAP}/4",
    "min_mem_per_node": None,
    "min_mem_per_cpu": 100 + 5991,
}


@pytest.fixture(params=LUA_VERSIONS)
def taken(request: pytest.FixtureRequest, tmp_path: Path) -> Slurm:
    return Slurm(request.param, "taken", tmp_path)


def submitted(slurm: Slurm, parts: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    code, written, said = slurm.submit(parts, gres="qgpu:h200:30", qos="offline", **more)
    assert code == 0, said
    assert written["gres"] == BOOKED
    return {**written, "said": said}


def test_the_request_grows_by_the_cap_and_the_user_is_told(taken: Slurm) -> None:
    found = submitted(taken, min_mem_per_node=4096, extra="mine")
    assert found["min_mem_per_node"] == 4096 + CAP
    assert found["extra"] == f"{TAG} host={CAP}; mine"
    assert found["said"] == (
        "qgpu: memory of this job on its card may be taken back to its host memory, so its request"
        f" per node grew from 4096M to {4096 + CAP}M."
    )


@pytest.mark.parametrize(
    ("shape", "cpus"),
    [
        ({}, 1),
        ({"num_tasks": 4}, 1),  # tasks may be spread over nodes
        ({"num_tasks": 4, "max_nodes": 1, "min_cpus": 4}, 4),
        ({"num_tasks": 4, "max_nodes": 1, "min_cpus": 1}, 1),  # --overcommit
        ({"num_tasks": 4, "max_nodes": 1, "cpus_per_task": 2, "min_cpus": 8}, 8),
        ({"cpus_per_task": 6, "num_tasks": 4294967294, "min_cpus": 6}, 6),
        ({"ntasks_per_node": 3, "max_nodes": 2, "min_cpus": 6}, 3),
        ({"ntasks_per_node": 3, "max_nodes": 2, "num_tasks": 6, "min_cpus": 6}, 3),
        ({"ntasks_per_node": 3, "max_nodes": 2, "num_tasks": 5, "min_cpus": 5}, 1),
        ({"ntasks_per_node": 65534, "num_tasks": 1, "pn_min_cpus": 8, "min_cpus": 1}, 8),
    ],
)
def test_a_request_per_cpu_grows_by_a_part_of_the_cap(
    taken: Slurm, shape: dict[str, int], cpus: int
) -> None:
    found = submitted(taken, min_mem_per_cpu=100, **shape)
    assert found["min_mem_per_cpu"] == 100 + -(-CAP // cpus)
    assert found["extra"] == f"{TAG} host={CAP}/{cpus}"
    assert (found["min_mem_per_cpu"] - 100) * cpus >= CAP


PARTS = {
    "cpu": {"name": "cpu", "flag_default": 1, "def_mem_per_cpu": 2000},
    "node": {"name": "node", "flag_default": 0, "def_mem_per_node": 3000},
    "none": {"name": "none", "flag_default": 0, "def_mem_per_node": 0},
}


@pytest.mark.parametrize("version", LUA_VERSIONS)
@pytest.mark.parametrize(
    ("partition", "memory", "field", "mib"),
    [
        (None, HostDefault(), "min_mem_per_cpu", 2000 + CAP),
        ("cpu", HostDefault("node", 50), "min_mem_per_cpu", 2000 + CAP),
        ("node", HostDefault("cpu", 50), "min_mem_per_node", 3000 + CAP),
        ("node,cpu", HostDefault("cpu", 50), "min_mem_per_node", 3000 + CAP),
        ("none", HostDefault("cpu", 50), "min_mem_per_cpu", 50 + CAP),
        ("none", HostDefault("node", 50), "min_mem_per_node", 50 + CAP),
        ("none", HostDefault(), None, 0),
    ],
)
def test_without_mem_what_slurm_would_give_grows(
    tmp_path: Path,
    version: str,
    partition: str | None,
    memory: HostDefault,
    field: str | None,
    mib: int,
) -> None:
    slurm = Slurm(version, "taken", tmp_path)
    tables = render("qgpu_tables.lua", cluster("taken"), memory=memory)
    (tmp_path / "qgpu_tables.lua").write_text(tables)  # read at the next call
    found = submitted(slurm, PARTS, partition=partition)
    written = {name: found[name] for name in found if name.startswith("min_mem")}
    assert written == ({field: mib} if field else {})
    if field is None:  # all memory of the node
        assert (found["extra"], found["said"]) == (f"{TAG} host=0", "")


def test_the_partition_bounds_the_sum(taken: Slurm) -> None:
    parts = {"p": {"name": "p", "flag_default": 1, "max_mem_per_node": CAP + 1000}}
    words = {"gres": "qgpu:h200:30", "qos": "offline"}
    assert taken.submit(parts, **words, min_mem_per_node=1000)[0] == 0
    code, written, said = taken.submit(parts, **words, min_mem_per_node=1001)
    assert (code, written) == (2072, {})
    assert f"a node gives at most {CAP + 1000}M to a job; write at most --mem=1000M" in said


def test_all_memory_of_the_node_stays(taken: Slurm) -> None:
    for words in ({"min_mem_per_node": 0}, {"min_mem_per_cpu": 0}):
        found = submitted(taken, **words)
        assert not [name for name in found if name.startswith("min_mem")]
        assert found["extra"] == f"{TAG} host=0"


def test_online_jobs_and_whole_cards_keep_their_memory(taken: Slurm) -> None:
    for words in ({"gres": "qgpu:30", "qos": "online"}, {"gres": "gpu:1"}, {"gres": "tmpdisk:1G"}):
        _, written, said = taken.submit(min_mem_per_node=4096, **words)
        assert "min_mem_per_node" not in written and said == ""


# ---- updates of a waiting job


def test_a_comment_changes_no_memory_and_keeps_the_record(taken: Slurm) -> None:
    assert taken.modify(PER_NODE, extra="new")[1] == {"extra": f"{TAG} host={CAP}; new"}
    assert taken.modify({**PER_NODE, "job_state": 1}, extra="new")[1] == {
        "extra": f"{TAG} host={CAP}; new"
    }


def test_the_same_request_again_adds_nothing(taken: Slurm) -> None:
    _, written, _ = taken.modify(PER_NODE, gres="qgpu:h200:30")
    assert (written["min_mem_per_node"], written["gres"]) == (4096 + CAP, BOOKED)
    _, written, _ = taken.modify(PER_CPU, gres="qgpu:h200:30")
    assert (written["min_mem_per_cpu"], written["gres"]) == (100 + 5991, BOOKED)


def test_another_share_adds_the_difference(taken: Slurm) -> None:
    _, written, said = taken.modify(PER_NODE, gres="qgpu:h200:50")
    assert written["min_mem_per_node"] == 4096 + 39936
    assert written["extra"] == "qgpu/1 class=offline share=50 mem=39936 host=39936; mine"
    assert f"grew from 4096M to {4096 + 39936}M" in said
    _, written, _ = taken.modify(PER_CPU, gres="qgpu:h200:50")
    assert written["min_mem_per_cpu"] == 100 + 9984


def test_a_job_that_becomes_online_gives_it_back_and_one_that_becomes_offline_gets_it(
    taken: Slurm,
) -> None:
    for job, field, own in (
        (PER_NODE, "min_mem_per_node", 4096),
        (PER_CPU, "min_mem_per_cpu", 100),
    ):
        _, written, said = taken.modify(job, qos="online")
        assert (written[field], said) == (own, "")
        assert written["gres"] == f"qgpu:online:30,shard:h200:30,vram:{CAP}M"
        assert " host=" not in written["extra"]
    online = {
        **PER_NODE,
        "qos": "online",
        "tres_per_node": f"qgpu:online:30,shard:h200:30,vram:{CAP}M",
        "extra": f"qgpu/1 class=online share=30 mem={CAP}",
        "min_mem_per_node": 4096,
    }
    _, written, _ = taken.modify(online, qos="offline")
    assert (written["min_mem_per_node"], written["gres"]) == (4096 + CAP, BOOKED)
    per_cpu = {**online, "min_mem_per_node": None, "min_mem_per_cpu": 100}
    alone = {**per_cpu, "max_nodes": 1, "min_cpus": 4}
    assert taken.modify(per_cpu, qos="offline")[1]["min_mem_per_cpu"] == 100 + CAP
    assert taken.modify(alone, qos="offline")[1]["min_mem_per_cpu"] == 100 + 5991


def test_memory_in_an_update_is_the_jobs_own_and_grows(taken: Slurm) -> None:
    _, written, _ = taken.modify(PER_NODE, min_mem_per_node=8192)
    assert written == {
        "min_mem_per_node": 8192 + CAP,
        "extra": f"{TAG} host={CAP}; mine",
    }
    _, written, _ = taken.modify(PER_NODE, min_mem_per_cpu=200)
    assert (written["min_mem_per_cpu"], written["extra"]) == (
        200 + CAP,
        f"{TAG} host={CAP}/1; mine",
    )
    _, written, _ = taken.modify(PER_NODE, min_mem_per_node=0)
    assert written == {"extra": f"{TAG} host=0; mine"}
    # what scontrol shows is no new request
    _, written, _ = taken.modify(PER_NODE, min_mem_per_node=4096 + CAP)
    assert written["min_mem_per_node"] == 4096 + CAP
    _, written, _ = taken.modify(PER_NODE, min_mem_per_node=8192, gres="qgpu:h200:50")
    assert written["min_mem_per_node"] == 8192 + 39936
    _, written, _ = taken.modify(PER_NODE, min_mem_per_node=8192, qos="online")
    assert written["min_mem_per_node"] == 8192


def test_fewer_cpus_have_more_each(taken: Slurm) -> None:
    _, written, _ = taken.modify(PER_CPU, min_cpus=2)
    assert (written["min_mem_per_cpu"], written["extra"]) == (100 + 11981, f"{TAG} host={CAP}/2")
    _, written, _ = taken.modify(PER_CPU, min_cpus=8)
    assert (written["min_mem_per_cpu"], written["extra"]) == (100 + 5991, f"{TAG} host={CAP}/4")
    _, written, _ = taken.modify(PER_CPU, num_tasks=8)
    assert (written["min_mem_per_cpu"], written["extra"]) == (100 + CAP, f"{TAG} host={CAP}/1")
    assert taken.modify(PER_NODE, min_cpus=2)[1] == {}


def test_memory_that_slurm_changed_itself_is_not_reckoned_with(taken: Slurm) -> None:
    """MaxMemPerCPU: slurmctld gives a job more CPUs, with less memory each."""
    job = {**PER_CPU, "min_mem_per_cpu": 3046}
    code, written, said = taken.modify(job, gres="qgpu:h200:50")
    assert (code, written) == (2072, {})
    assert "job 7 cannot be changed so: its memory request is not what qgpu wrote" in said


def test_a_job_from_before_keeps_what_it_booked(taken: Slurm) -> None:
    before = {
        **PER_NODE,
        "tres_per_node": f"qgpu:offline:30,shard:h200:30,vram:{CAP}M",
        "extra": TAG,
        "min_mem_per_node": 4096,
    }
    assert taken.modify(before, min_mem_per_node=8192)[1] == {}
    assert taken.modify(before, extra="new")[1] == {"extra": f"{TAG}; new"}
    _, written, _ = taken.modify(before, gres="qgpu:h200:30")
    assert (written["gres"], written["min_mem_per_node"]) == (BOOKED, 4096 + CAP)


@pytest.mark.parametrize("version", LUA_VERSIONS)
def test_a_class_that_reserves_again_gives_the_memory_back(version: str, tmp_path: Path) -> None:
    slurm = Slurm(version, "one", tmp_path)
    job = {**PER_NODE, "comment": PER_NODE["extra"], "extra": None}
    _, written, _ = slurm.modify(job, gres="qgpu:h200:30")
    assert written["min_mem_per_node"] == 4096
    assert written["gres"] == f"qgpu:offline:30,shard:h200:30,vram:{CAP}M"


# ---- several cards


@pytest.mark.parametrize("version", LUA_VERSIONS)
def test_a_job_on_several_cards_gets_host_memory_for_all_of_them(
    version: str, tmp_path: Path
) -> None:
    slurm = Slurm(version, "taken", tmp_path, multi_card=True)
    cards = {"1": "QGPU_CARDS=2"}
    words = {"gres": "qgpu:h200:30", "qos": "offline", "spank_job_env": slurm.lua.table_from(cards)}
    _, written, _ = slurm.submit(**words, min_mem_per_node=4096)
    assert written["min_mem_per_node"] == 4096 + 2 * CAP
    assert written["extra"] == f"{TAG} cards=2 host={2 * CAP}"
    assert written["tres_per_task"] == "gres/shard:h200:1"
    # its tasks, one for each card, have a CPU each
    _, written, _ = slurm.submit(**words, min_mem_per_cpu=100, max_nodes=1, min_cpus=1)
    assert written["extra"] == f"{TAG} cards=2 host={2 * CAP}/1"
    job = {
        "job_id": 7,
        "job_state": 0,
        "qos": "offline",
        "tres_per_node": f"qgpu:offline:60,vram:{2 * CAP}M",
        "tres_per_task": "gres:shard:h200:1",
        "extra": f"{TAG} cards=2 host={2 * CAP}",
        "min_mem_per_node": 4096 + 2 * CAP,
    }
    _, written, _ = slurm.modify(job, min_mem_per_node=8192)
    assert written["min_mem_per_node"] == 8192 + 2 * CAP
    assert slurm.modify(job, extra="new")[1]["extra"] == f"{TAG} cards=2 host={2 * CAP}; new"
