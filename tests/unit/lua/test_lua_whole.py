"""A whole card before Slurm 23.11.5: booked as its hundred shards by job_submit.lua, and asked
for so by srun.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from test_lua_job_submit import LUA_VERSIONS, Slurm


@pytest.fixture(params=LUA_VERSIONS)
def old(request: pytest.FixtureRequest, tmp_path: Path) -> Slurm:
    return Slurm(request.param, "old", tmp_path)


@pytest.mark.parametrize(
    ("gres", "env", "wanted"),
    [
        ("gpu:1", {}, "shard:100"),
        ("gpu", {}, "shard:100"),
        ("gpu:h200", {}, "shard:h200:100"),
        ("gpu:h200:1,tmpdisk:1G", {}, "shard:h200:100,tmpdisk:1G"),
        ("qgpu:100", {}, "shard:100"),
        ("qgpu:h200:100", {}, "shard:h200:100"),
        ("gpu:2", {}, None),
        ("gpu:1", {"SLURM_JOB_ID": "7", "SLURM_SHARDS_ON_NODE": "100"}, "shard:100"),
        ("gpu:h200:1", {"SLURM_JOB_ID": "7", "SLURM_SHARDS_ON_NODE": "100"}, "shard:100"),
        ("qgpu:100", {"SLURM_JOB_ID": "7", "SLURM_SHARDS_ON_NODE": "100"}, "shard:100"),
        ("gpu:1", {"SLURM_JOB_ID": "7", "SLURM_SHARDS_ON_NODE": "30"}, None),
        ("gpu:1", {"SLURM_JOB_ID": "7"}, None),
        ("qgpu:10", {"SLURM_JOB_ID": "7", "SLURM_SHARDS_ON_NODE": "30"}, "qgpu:10,shard:1"),
    ],
)
def test_srun_asks_for_a_whole_card_as_job_submit_books_it(
    old: Slurm, gres: str, env: dict[str, str], wanted: str | None
) -> None:
    assert old.srun(env, gres=gres) == wanted


def test_a_change_of_a_whole_job_keeps_its_tag(old: Slurm) -> None:
    gres = "gres:shard:100,gres:qgpu:online:100"
    whole = {
        "job_id": 7,
        "job_state": 0,
        "partition": "gpu",
        "tres_per_node": gres,
        "qos": "online",
    }
    assert old.modify(whole, comment="new")[1] == {"comment": "qgpu/1 whole; new"}
    assert old.modify(whole, gres="gpu:h200:1")[1] == {
        "gres": "shard:h200:100,qgpu:online:100",
        "comment": "qgpu/1 whole",
    }
    code, written, said = old.modify(whole, gres="qgpu:30", qos="online")
    assert (code, written) == (2072, {}) and "from whole cards (online) to" in said
    code, _, said = old.modify(whole, qos="offline")
    assert code == 2072 and "from whole cards (online) to whole cards (offline)" in said
    code, _, said = old.modify({**whole, "job_state": 1}, gres="gpu:1")
    assert code == 2072 and "job 7 has started" in said


def test_a_job_with_the_node_for_itself_has_whole_cards_as_such(old: Slurm) -> None:
    code, written, _ = old.submit(gres="gpu:2", shared=0, partition="gpu")
    assert (code, written) == (0, {"comment": "qgpu/1 whole"})
    assert old.srun({}, gres="gpu:1", exclusive="exclusive") is None
    job = {
        "job_id": 7,
        "job_state": 0,
        "partition": "gpu",
        "tres_per_node": "gres:gpu:2",
        "comment": "qgpu/1 whole",
    }
    assert old.modify(job, comment="new")[1] == {"comment": "qgpu/1 whole; new"}
    assert old.modify(job, qos="offline", shared=65534)[0] == 0
    code, written, said = old.modify(job, shared=1)
    assert (code, written) == (2072, {}) and "gpu:2 is refused: where cards are shared" in said


@pytest.mark.parametrize("tables", ["old", "mixed"])
@pytest.mark.parametrize("lua", LUA_VERSIONS)
def test_a_job_with_the_node_for_itself_that_asks_for_no_card(
    lua: str, tables: str, tmp_path: Path
) -> None:
    """Slurm gives it all cards of the node all the same; its tag stays, and goes when it gets
    company.
    """
    slurm = Slurm(lua, tables, tmp_path)
    field, qos = ("comment", "online") if tables == "old" else ("extra", "prod")
    assert slurm.submit(shared=0, partition="gpu")[:2] == (0, {field: "qgpu/1 node"})
    assert slurm.submit(shared=65534, partition="gpu")[:2] == (0, {})
    job = {"job_id": 7, "job_state": 0, "partition": "gpu", "qos": qos, field: "qgpu/1 node"}
    assert slurm.modify(job, **{field: "new"})[1] == {field: "qgpu/1 node; new"}
    assert slurm.modify(job, **{field: "qgpu/1 class=online share=9 mem=9"})[1] == {
        field: "qgpu/1 node"
    }
    assert slurm.modify(job, shared=1)[:2] == (0, {field: ""})
    code, _, said = slurm.modify(job, gres="qgpu:30")
    assert code == 2072 and "--exclusive is refused together with qgpu:30" in said


@pytest.mark.parametrize(
    ("nodes", "fields", "gres"),
    [
        ("a[1-9]", {}, "gpu:8,qgpu:online:800"),
        ("a[2-3,7],h1", {}, "gpu:4,qgpu:online:400"),
        ("h1,x[01-03]", {}, None),
        ("n[1-2]x[1-2]", {}, None),
        ("a[1-9],h1", {"gres": "gpu:1"}, "gpu:1,qgpu:online:400"),
        ("a[1-9],h1", {"gres": "gpu:a100:1"}, "gpu:a100:1,qgpu:online:800"),
        ("a[1-9],h1", {"gres": "gpu:5"}, "gpu:5,qgpu:online:800"),
        ("h1", {"tres_per_job": "gpu:2"}, "qgpu:online:400"),
    ],
)
@pytest.mark.parametrize("lua", LUA_VERSIONS)
def test_the_node_for_itself_counts_by_its_cards(
    lua: str, nodes: str, fields: dict[str, str], gres: str | None, tmp_path: Path
) -> None:
    slurm = Slurm(lua, "mixed", tmp_path)
    parts = {"gpu": {"name": "gpu", "nodes": nodes}, "other": {"name": "other", "nodes": "h1"}}
    code, written, _ = slurm.submit(parts, shared=0, partition="gpu", qos="prod", **fields)
    tag = "qgpu/1 whole" if gres else "qgpu/1 node"
    assert (code, written) == (0, {"extra": tag, **({"gres": gres} if gres else {})})


def test_the_node_for_itself_stays_so_when_its_class_changes(tmp_path: Path) -> None:
    slurm = Slurm("lua54", "mixed", tmp_path)
    job = {
        "job_id": 7,
        "job_state": 0,
        "partition": "gpu",
        "qos": "prod",
        "extra": "qgpu/1 whole",
        "tres_per_node": "gres/gpu:a100:1,gres/qgpu:online:800",
    }
    written = slurm.modify(job, qos="batch")[1]
    assert written["gres"] == "gpu:a100:1,qgpu:offline:800"
    assert slurm.modify(job, partition="cpu")[1] == {"gres": "gres/gpu:a100:1", "extra": ""}
    code, _, said = slurm.modify({**job, "extra": ""}, tres_per_job="gpu:3", gres="", shared=1)
    assert code == 2072 and "cancel it and submit it again" in said


@pytest.mark.parametrize(("sockets", "gres"), [(2, "gpu:2,qgpu:online:200"), (None, None)])
def test_cards_per_socket_need_the_number_of_sockets(
    tmp_path: Path, sockets: int | None, gres: str | None
) -> None:
    slurm = Slurm("lua54", "one", tmp_path)
    fields = {"tres_per_socket": "gpu:1", "sockets_per_node": sockets}
    _, written, said = slurm.submit(qos="online", **fields)
    assert written.get("gres") == gres and ("--gpus-per-socket" in said) == (gres is None)


def test_a_job_over_nodes_gets_its_shape(tmp_path: Path) -> None:
    slurm = Slurm("lua54", "one", tmp_path)
    shape = {"num_tasks": 4, "min_nodes": 4294967294}
    _, written, said = slurm.submit(qos="online", tres_per_task="gpu:1", **shape)
    assert not said
    names = ("gres", "min_nodes", "max_nodes", "ntasks_per_node")
    assert [written.get(name) for name in names] == ["gpu:2,qgpu:online:200", 2, 2, 2]


def test_the_old_word_for_memory_is_refused_before_slurm_does(tmp_path: Path) -> None:
    slurm = Slurm("lua54", "one", tmp_path)
    assert slurm.srun({}, gres="qgpu:30,vram:12G", type="sbatch") is None
    with pytest.raises(AssertionError):
        slurm.srun({}, gres="qgpu:30,qgpu_mem:12G", type="sbatch")
    (said,) = slurm.lua.globals()["errors"].values()
    assert "qgpu_mem:12G is refused" in said and "write vram:12G in its place" in said


NO_VAL16 = 65534
GPU = {"gpu": {"name": "gpu", "nodes": "n[1-3]", "total_nodes": 3, "total_cpus": 192}}


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        # --gpus=2 -n 66; -n 20 -c 4; --cpus-per-gpu=33; -n2 -c 40 per task: two nodes by their CPUs
        ({"tres_per_job": "gpu:2", "num_tasks": 66}, {"gres": 1, "nodes": 2}),
        ({"tres_per_job": "gpu:2", "num_tasks": 20, "cpus_per_task": 4}, {"gres": 1, "nodes": 2}),
        ({"tres_per_job": "gpu:2", "cpus_per_tres": "gres/gpu:33"}, {"gres": 1, "nodes": 2}),
        (
            {"tres_per_task": "gpu:1", "num_tasks": 2, "cpus_per_task": 40},
            {"gres": 1, "nodes": 2, "ntasks_per_node": 1},
        ),
        # two of three cards per node would not be even: three nodes of one
        ({"tres_per_job": "gpu:3"}, {"gres": 1, "nodes": 3}),
        # fewer cards than nodes: Slurm gives each one
        ({"tres_per_job": "gpu:1", "num_tasks": 66}, {"gres": 1, "nodes": 2, "tres": "gres/gpu:2"}),
        # --ntasks-per-gpu alone, per job and per node
        (
            {"ntasks_per_tres": 2, "num_tasks": 4},
            {"gres": 2, "nodes": 1, "ntasks_per_tres": NO_VAL16},
        ),
        # of one node: per job alone, because only there does Slurm look at Links=
        (
            {"tres_per_job": "gpu:2", "num_tasks": 2},
            {"gres": "qgpu:online:200", "nodes": 1, "max_nodes": 1, "tres": None},
        ),
        (
            {"ntasks_per_tres": 2, "gres": "gpu:1", "min_nodes": 2},
            {"gres": 1, "ntasks_per_node": 2, "num_tasks": 4, "ntasks_per_tres": NO_VAL16},
        ),
        # of one model the last entry counts
        ({"gres": "gpu:h200:1,gpu:h200:2"}, {"gres": "gpu:h200:1,gpu:h200:2,qgpu:online:200"}),
    ],
)
def test_whole_cards_have_the_nodes_that_slurm_would_give(
    tmp_path: Path, fields: dict[str, Any], wanted: dict[str, Any]
) -> None:
    slurm = Slurm("lua54", "one", tmp_path)
    _, written, said = slurm.submit(GPU, qos="online", partition="gpu", **fields)
    assert not said
    count = wanted["gres"]
    gres = f"gpu:{count},qgpu:online:{100 * count}" if isinstance(count, int) else count
    names = {"nodes": "min_nodes", "tres": "tres_per_job"}
    want = {names.get(name, name): value for name, value in wanted.items()} | {"gres": gres}
    assert {name: written.get(name) for name in want} == want


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"tres_per_task": "gpu:1", "num_tasks": 5}, "--gpus-per-task=1 is refused"),
        ({"tres_per_task": "gpu:1", "num_tasks": 5}, "write --nodes=3 --gres=gpu:2 in its place"),
        ({"tres_per_job": "gpu:3", "max_nodes": 2}, "write --nodes=2 --gres=gpu:2 in its place"),
        ({"tres_per_job": "gpu:h200:5"}, "write --nodes=3 --gres=gpu:h200:2 in its place"),
        ({"ntasks_per_tres": 1, "num_tasks": 5}, "--ntasks-per-gpu=1 is refused"),
    ],
)
def test_the_words_to_type_in_its_place_hold_all_cards(
    tmp_path: Path, fields: dict[str, Any], says: str
) -> None:
    slurm = Slurm("lua54", "one", tmp_path)
    code, _, said = slurm.submit(GPU, qos="online", partition="gpu", **fields)
    assert code == 2072 and says in said


def test_a_share_has_no_whole_card_by_its_tasks(tmp_path: Path) -> None:
    slurm = Slurm("lua54", "one", tmp_path)
    code, _, said = slurm.submit(gres="qgpu:30", qos="online", ntasks_per_tres=2, num_tasks=4)
    assert code == 2072 and "qgpu:30 is refused beside gpu:2" in said


@pytest.mark.parametrize(
    ("update", "refused"),
    [
        ({"min_nodes": 2, "max_nodes": 2}, True),
        ({"num_tasks": 4}, True),
        ({"tres_per_job": "gpu:4"}, True),
        ({"gres": "gpu:1"}, True),
        ({"qos": "offline"}, False),
        ({"comment": "mine"}, False),
    ],
)
def test_an_update_does_not_contradict_the_count(
    tmp_path: Path, update: dict[str, Any], refused: bool
) -> None:
    slurm = Slurm("lua54", "one", tmp_path)
    fixed = {"tres_per_node": "gres/gpu:2,gres/qgpu:online:200", "tres_per_job": "gres/gpu:2"}
    job = {"job_id": 7, "job_state": 0, "partition": "gpu", "qos": "online", **fixed}
    code, _, said = slurm.modify(job, **update)
    assert (code == 2072, "cancel it and submit it again" in said) == (refused, refused)


def test_steps_of_a_job_that_names_no_card_ask_for_none(tmp_path: Path) -> None:
    """They would take turns on the cards that we name for it; a job within it has its own."""
    slurm = Slurm("lua54", "mixed", tmp_path)
    parts = {"gpu": {"name": "gpu", "nodes": "a[1-9]"}}
    environment = slurm.lua.table_from({})
    job = {"qos": "prod", "script": "#!/bin/sh", "environment": environment}
    slurm.submit(parts, partition="gpu", shared=0, **job)
    assert environment["QGPU_STEP_GRES"] == "none"
    inside = {"SLURM_JOB_ID": "7", "QGPU_STEP_GRES": "none"}
    assert slurm.srun(inside) == "none"
    for asked in ({"gres": "gpu:1"}, {"gpus": "1"}, {"gpus-per-task": "1"}):
        assert slurm.srun(inside, **asked) is None
    slurm.submit(parts, partition="gpu", gres="gpu:a100:2", **job)
    assert environment["QGPU_STEP_GRES"] == ""
    assert slurm.srun({**inside, "QGPU_STEP_GRES": ""}) is None
