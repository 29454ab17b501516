"""A whole card before Slurm 23.11.5: booked as its hundred shards by job_submit.lua, and asked
for so by srun.
"""

from __future__ import annotations

from pathlib import Path

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
