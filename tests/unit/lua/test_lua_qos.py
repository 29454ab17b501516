"""Which QOS decides a job's class, that the job then has it, and what a fault of our Lua lets
pass.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from test_lua_job_submit import GRES30, JOB30, LUA_VERSIONS, Slurm


@pytest.fixture(params=LUA_VERSIONS)
def one(request: pytest.FixtureRequest, tmp_path: Path) -> Slurm:
    return Slurm(request.param, "one", tmp_path)


def test_a_qos_is_one_in_upper_case_too(one: Slurm) -> None:
    assert one.submit(gres="qgpu:30", qos="ONLINE")[1]["gres"] == GRES30
    assert one.modify(JOB30, qos="OffLine")[1]["gres"].startswith("qgpu:offline:30,")


def test_the_job_has_the_qos_that_its_class_was_taken_from(one: Slurm) -> None:
    assert one.submit(gres="qgpu:30", default_qos="online")[1]["qos"] == "online"
    assert "qos" not in one.submit(gres="qgpu:30", qos="online", default_qos="offline")[1]
    assert "qos" not in one.submit(gres="qgpu:30", qos="")[1]  # Slurm refuses that itself
    assert "qos" not in one.submit(gres="gpu:1", default_qos="online")[1]


def test_the_default_qos_is_asked_for_with_the_default_partition(one: Slurm) -> None:
    one.lua.execute(
        "real = record; function record(values, extra) local p, w = real(values, extra);"
        " return setmetatable({}, {__newindex = p, __index = function(_, name)"
        " if name == 'default_qos' then return w.partition == 'gpu' and 'offline' or 'online' end"
        " return p[name] end}), w end"
    )
    parts = {"gpu": {"name": "gpu", "flag_default": 1}, "cpu": {"name": "cpu", "flag_default": 0}}
    written = one.submit(parts, gres="qgpu:30")[1]
    assert (written["gres"].split(",")[0], written["qos"]) == ("qgpu:offline:30", "offline")
    assert written["partition"] == ""  # as the user left it


def test_the_qos_of_a_job_without_cards_is_not_read(one: Slurm) -> None:
    """slurmctld would look its association up under a lock, for every job of the cluster."""
    one.lua.execute(
        "real = record; function record(values, extra) local p, w = real(values, extra);"
        " return setmetatable({}, {__newindex = function() error('written') end, __index = "
        "function(_, name)"
        " assert(name ~= 'default_qos' and name ~= 'assoc_qos', name) return p[name] end}), w end"
    )
    parts = {"cpu": {"name": "cpu", "flag_default": 1}}
    assert one.submit(parts, comment="mine") == (0, {}, "")
    assert one.submit(parts, gres="qgpu:30")[0] == 2072, "that one's is asked for"


@pytest.mark.parametrize("lua", LUA_VERSIONS)
def test_the_only_qos_of_an_association_counts_where_slurm_tells_it(
    lua: str, tmp_path: Path
) -> None:
    for name in ("mixed", "old"):
        (tmp_path / name).mkdir()
    mixed = Slurm(lua, "mixed", tmp_path / "mixed", version="25.05.3")
    old = Slurm(lua, "old", tmp_path / "old", version="25.05.2")
    written = mixed.submit(gres="qgpu:30", partition="gpu", assoc_qos="prod")[1]
    assert (written["gres"].split(",")[0], written["qos"]) == ("qgpu:online:30", "prod")
    assert mixed.submit(gres="qgpu:30", partition="gpu", assoc_qos="prod,batch")[0] == 2072
    # not there yet
    assert old.submit(gres="qgpu:30", partition="gpu", assoc_qos="online")[0] == 2072


@pytest.mark.parametrize("asks", [{"gres": "gpu:1"}, {"tres_per_job": "gres:gpu:2"}, {"shared": 0}])
def test_a_fault_of_ours_lets_no_card_pass(tmp_path: Path, asks: dict[str, Any]) -> None:
    slurm = Slurm("lua54", "one", tmp_path)
    tables = tmp_path / "qgpu_tables.lua"
    tables.write_text(tables.read_text().replace("partitions = {", "partitionz = {"))
    slurm.lua.eval("dofile")(str(tmp_path / "job_submit.lua"))
    code, _, said = slurm.submit(**asks)
    assert (code, "tell your administrators" in said) == (2072, True)
    assert slurm.modify(JOB30, gres="qgpu:10")[0] == 2072
    assert any("partitions" in line for line in slurm.lua.globals()["errors"].values())
    assert slurm.submit(comment="no cards")[0] == 0
    assert slurm.modify({"job_id": 7, "job_state": 0})[0] == 0, "a time limit, a hold: none of ours"
    assert slurm.modify({"job_id": 7, "job_state": 0}, comment="qgpu/1 whole")[0] == 2072


def test_slurms_own_default_is_no_qos_for_an_update(one: Slurm) -> None:
    code, written, said = one.modify(JOB30, qos="")
    assert (code, written) == (2072, {})
    assert "the class of job 7 comes from its QOS" in said
    assert one.modify({"job_id": 7, "job_state": 0, "qos": "online"}, qos="")[0] == 0


def test_qgpu_plan_is_told_what_would_be_booked(one: Slurm) -> None:
    """By the line in the SPANK environment alone, and whatever the user's own words contain."""
    ask = {"gres": "qgpu:30,x:a\nqgpu: plan tag=mine", "default_qos": "online", "num_tasks": 2}
    said = one.submit(spank_job_env=one.lua.table("SPANK_QGPU_PLAN=1"), **ask)[2].splitlines()
    assert said == [
        "qgpu: plan gres=qgpu:online:30,shard:30,vram:23961M,x:a?qgpu: plan tag=mine",
        "qgpu: plan qos=online",
        "qgpu: plan tag=qgpu/1 class=online share=30 mem=23961",
        "qgpu: plan shards=30",
        "qgpu: plan tasks=2",
    ]


@pytest.mark.parametrize("line", ["QGPU_PLAN=0", "QGPU_PLAN=", "XQGPU_PLAN=1"])
def test_others_are_not(one: Slurm, line: str) -> None:
    assert one.submit(gres="qgpu:30", spank_job_env=one.lua.table(line))[2] == ""
