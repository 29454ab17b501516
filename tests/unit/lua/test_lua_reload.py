"""Tables that change while slurmctld runs: job_submit reads them again, a site's own script
untouched.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from gres_support import LUA_DIR, LUA_VERSIONS, cluster
from test_lua_job_submit import Slurm

from slurm_plugin.render import render


@pytest.fixture(params=LUA_VERSIONS)
def one(request: pytest.FixtureRequest, tmp_path: Path) -> Slurm:
    return Slurm(request.param, "one", tmp_path)


def exchange(path: Path, text: str) -> None:
    """As qgpu setup does it."""
    new = path.with_name("new")
    new.write_text(text)
    new.replace(path)


def errors(slurm: Slurm) -> list[str]:
    return list(slurm.lua.globals()["errors"].values())


def test_new_limits_hold_from_the_next_job_on(one: Slurm, tmp_path: Path) -> None:
    tables = tmp_path / "qgpu_tables.lua"
    assert one.submit(gres="qgpu:30", qos="online")[0] == 0
    exchange(tables, tables.read_text().replace("max_share = 100", "max_share = 20"))
    code, written, said = one.submit(gres="qgpu:30", qos="online")
    assert code == 2072 and not written and "20" in said
    job = {"job_id": 7, "job_state": 0, "qos": "online", "comment": "", "tres_per_node": ""}
    assert one.modify(job, gres="qgpu:30")[0] == 2072
    config = cluster("one")
    exchange(tables, render("qgpu_tables.lua", config, etc_dir=str(tmp_path), lua_dir=str(LUA_DIR)))
    assert one.submit(gres="qgpu:30", qos="online")[0] == 0 and not errors(one)


@pytest.mark.parametrize("text", ["return {", "return 7", "return { schema = 99 }", "", None])
def test_tables_that_cannot_be_read_leave_the_old_ones_in_force(
    one: Slurm, tmp_path: Path, text: str | None
) -> None:
    tables = tmp_path / "qgpu_tables.lua"
    whole = tables.read_text()
    if text is None:
        tables.unlink()
    else:
        exchange(tables, text)
    for _ in range(3):
        assert one.submit(gres="qgpu:30", qos="online")[0] == 0
    assert len(errors(one)) == 1 and "stay in force" in errors(one)[0]
    exchange(tables, whole.replace("max_share = 100", "max_share = 20"))
    assert one.submit(gres="qgpu:30", qos="online")[0] == 2072


def test_many_changes_cost_no_more_than_one(one: Slurm, tmp_path: Path) -> None:
    tables = tmp_path / "qgpu_tables.lua"
    whole = tables.read_text()
    for number in range(200):
        exchange(tables, f"-- {number}\n{whole}")
        assert one.submit(gres="qgpu:30", qos="online")[0] == 0
    assert not errors(one)
