"""job_submit.lua and cli_filter.lua as rendered, called as slurmctld and srun call them, by a
stand-in.

The stand-in refuses to hand out a field that the real one has not, and formats log_user's first
argument as the real one does.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from gres_support import LUA_DIR, LUA_VERSIONS, cluster, runtime

from slurm_plugin.render import render

FAKE_SLURM = b"""
local os_env = {}
messages = {}
slurm = { SUCCESS = 0, ERROR = -1, ESLURM_INVALID_GRES = 2072, GRES_ONE_TASK_PER_SHARING = 2 ^ 38,
    GRES_ENFORCE_BIND = 2 ^ 4 }
errors = {}
function slurm.log_error(fmt, ...) errors[#errors + 1] = string.format(fmt, ...) end
function slurm.log_user(fmt, ...) messages[#messages + 1] = string.format(fmt, ...) end
os.getenv = function(name) return os_env[name] end
function set_env(name, value) os_env[name] = value end
local KNOWN = {}
for name in ("gres qos default_qos assoc_qos comment partition shared tres_per_job script "
    .. "tres_per_task tres_per_socket tres_per_node ntasks_per_tres cpus_per_tres mem_per_tres "
    .. "tres_freq job_state job_id type jobid gpus gpus-per-node gpus-per-socket gpus-per-task "
    .. "cpus-per-gpu gpu-bind gpu-freq exclusive tres-per-task spank_job_env spank_job_env_size "
    .. "min_mem_per_node min_mem_per_cpu max_nodes min_cpus pn_min_cpus cpus_per_task tres_bind "
    .. "environment min_nodes num_tasks ntasks_per_node bitflags sockets_per_node"):gmatch("%S+") do
    KNOWN[name] = true
end
function record(values, has_extra)
    local written = {}
    local proxy = setmetatable({}, {
        __index = function(_, name)
            assert(KNOWN[name] or (has_extra and name == "extra"), "no such field: " .. name)
            if written[name] ~= nil then return written[name] end
            return values[name]
        end,
        __newindex = function(_, name, value)
            local count = name:find("^min_mem") or name:find("tasks") and name ~= "tres_per_task"
                or name == "bitflags" or name:find("_nodes$")
            assert(type(value) == (count and "number" or "string"), "of another type: " .. name)
            written[name] = value
        end,
    })
    return proxy, written
end
"""


class Slurm:
    """One rendered pair of scripts in one Lua version."""

    def __init__(self, lua: str, name: str, tmp_path: Path, **slurm: Any) -> None:
        self.lua = runtime(lua)(encoding="utf-8", unpack_returned_tuples=True)
        self.lua.execute(FAKE_SLURM.decode())
        self.has_extra = cluster(name).slurm.version >= "23.02"
        for file in ("qgpu_tables.lua", "job_submit.lua", "cli_filter.lua"):
            text = render(file, cluster(name, **slurm), etc_dir=str(tmp_path), lua_dir=str(LUA_DIR))
            (tmp_path / file).write_text(text)
        for file in ("job_submit.lua", "cli_filter.lua"):
            self.lua.eval("dofile")(str(tmp_path / file))

    def _record(self, values: dict[str, Any], extra: bool = True) -> Any:
        table = self.lua.table_from(
            {key: value for key, value in values.items() if value is not None}
        )
        return self.lua.globals()["record"](table, extra)

    def _said(self) -> str:
        return "\n".join(self.lua.globals()["messages"].values())

    def submit(
        self, parts: dict[str, Any] | None = None, **fields: Any
    ) -> tuple[int, dict[str, Any], str]:
        """Return code, fields written, and what the user was told."""
        job, written = self._record(fields)
        rows = {name: self.lua.table_from(row) for name, row in (parts or {}).items()}
        code = self.lua.globals()["slurm_job_submit"](job, self.lua.table_from(rows), 1000)
        return code, dict(written), self._said()

    def modify(self, job: dict[str, Any], **fields: Any) -> tuple[int, dict[str, Any], str]:
        """The same for `scontrol update` of a job."""
        desc, written = self._record(fields)
        rec, untouched = self._record(job, self.has_extra)
        code = self.lua.globals()["slurm_job_modify"](desc, rec, self.lua.table_from({}), 1000)
        assert not dict(untouched)
        return code, dict(written), self._said()

    def srun(self, env: dict[str, str] | None = None, **options: str) -> str | None:
        """gres that srun would ask for; None where cli_filter left it alone."""
        for name, value in (env or {}).items():
            self.lua.globals()["set_env"](name, value)
        opts, written = self._record({"type": "srun", **options})
        assert self.lua.globals()["slurm_cli_pre_submit"](opts, 0) == 0
        return dict(written).get("gres")


@pytest.fixture(params=LUA_VERSIONS)
def one(request: pytest.FixtureRequest, tmp_path: Path) -> Slurm:
    return Slurm(request.param, "one", tmp_path)


@pytest.fixture(params=LUA_VERSIONS)
def old(request: pytest.FixtureRequest, tmp_path: Path) -> Slurm:
    return Slurm(request.param, "old", tmp_path)


@pytest.fixture(params=LUA_VERSIONS)
def mixed(request: pytest.FixtureRequest, tmp_path: Path) -> Slurm:
    return Slurm(request.param, "mixed", tmp_path)


TAG30 = "qgpu/1 class=online share=30 mem=23961"
GRES30 = "qgpu:online:30,shard:30,vram:23961M"
JOB30 = {
    "job_id": 7,
    "job_state": 0,
    "qos": "online",
    "tres_per_node": GRES30,
    "comment": f"{TAG30}; mine",
}


# ---- submit


def test_a_share_is_rewritten_and_tagged(one: Slurm) -> None:
    code, written, said = one.submit(gres="gres:qgpu:30", qos="online", comment="mine")
    assert (code, written, said) == (0, {"gres": GRES30, "comment": f"{TAG30}; mine"}, "")


def test_the_default_qos_decides_where_none_is_given(one: Slurm) -> None:
    assert one.submit(gres="qgpu:30", default_qos="online")[1]["gres"] == GRES30
    assert one.submit(gres="qgpu:30", qos="", default_qos="online")[1]["gres"] == GRES30
    assert one.submit(gres="qgpu:30")[1]["gres"].startswith("qgpu:offline:30,")


def test_a_refusal_writes_nothing_and_keeps_percent_signs(one: Slurm) -> None:
    code, written, said = one.submit(gres="qgpu:30%d%s", qos="online", comment="qgpu/1 whole")
    assert (code, written) == (2072, {})
    assert said.startswith(
        "qgpu: qgpu:30%d%s is refused: '30%d%s' is not a whole number of percent"
    )


def test_a_slurm_that_does_not_name_the_error_code_gets_its_number(one: Slurm) -> None:
    one.lua.execute("slurm.ESLURM_INVALID_GRES = nil")
    assert one.submit(gres="qgpu:0")[0] == 2072


def test_jobs_without_cards_are_left_alone_but_for_tags(one: Slurm) -> None:
    assert one.submit(comment="mine") == (0, {}, "")
    assert one.submit(comment="qgpu/1 class=online share=99 mem=1")[1] == {"comment": ""}


def test_exclusive_is_slurms_zero(one: Slurm) -> None:
    assert one.submit(gres="qgpu:30", qos="online", shared=0)[0] == 2072
    assert one.submit(gres="qgpu:30", qos="online", shared=65534)[0] == 0


@pytest.mark.parametrize(("shared", "word"), [(2, "user"), (3, "mcs"), (4, "topo"), (9, "9")])
def test_exclusive_for_some_is_refused_by_slurms_numbers(
    one: Slurm, shared: int, word: str
) -> None:
    code, written, said = one.submit(gres="qgpu:1", qos="online", shared=shared)
    assert (code, written) == (2072, {}) and f"--exclusive={word} is refused" in said
    assert one.submit(gres="qgpu:1", qos="online", shared=1)[0] == 0


def test_an_update_cannot_give_a_share_the_node(one: Slurm) -> None:
    code, written, said = one.modify(JOB30, shared=0)
    assert (code, written) == (2072, {}) and "--exclusive is refused together with qgpu:30" in said
    # OverSubscribe=yes of scontrol; a number above 1 means the same there
    assert one.modify(JOB30, shared=1)[0] == one.modify(JOB30, shared=2)[0] == 0


def test_an_update_that_gives_a_job_the_node_tags_it(mixed: Slurm) -> None:
    job = {"job_id": 7, "job_state": 0, "partition": "gpu", "qos": "prod"}
    assert mixed.modify(job, shared=0)[:2] == (0, {"extra": "qgpu/1 node"})
    assert mixed.modify({**job, "job_state": 1}, shared=0)[:2] == (0, {})


def test_a_long_comment_is_refused_with_the_room_there_is(one: Slurm) -> None:
    room = 1024 - len(TAG30) - 2
    assert (
        one.submit(gres="qgpu:30", qos="online", comment="x" * room)[1]["comment"]
        == f"{TAG30}; {'x' * room}"
    )
    code, written, said = one.submit(gres="qgpu:30", qos="online", comment="x" * (room + 1))
    assert (code, written) == (2072, {})
    assert f"the comment has {room + 1} bytes, but beside qgpu's own line only {room} fit" in said


def test_the_default_partition_counts_where_none_is_named(mixed: Slurm) -> None:
    parts = {"cpu": {"name": "cpu", "flag_default": 0}, "gpu": {"name": "gpu", "flag_default": 1}}
    code, written, _ = mixed.submit(parts, gres="gres/qgpu:30", qos="prod")
    assert (code, written["extra"]) == (0, "qgpu/1 class=online share=30 mem=7372")
    parts = {"cpu": {"name": "cpu", "flag_default": 1}, "gpu": {"name": "gpu", "flag_default": 0}}
    code, _, said = mixed.submit(parts, gres="gres/qgpu:30", qos="prod")
    assert (code, "partition 'cpu' has no cards that are shared" in said) == (2072, True)


def test_tables_of_another_version_are_an_error_when_loading(tmp_path: Path) -> None:
    slurm = Slurm("lua54", "one", tmp_path)
    (tmp_path / "qgpu_tables.lua").write_text("return { schema = 99 }")
    with pytest.raises(Exception, match=r"run `qgpu setup --role controller` again"):
        slurm.lua.eval("dofile")(str(tmp_path / "job_submit.lua"))


# ---- modify


def test_a_new_comment_keeps_the_tag(one: Slurm) -> None:
    assert one.modify(JOB30, comment="new")[1] == {"comment": f"{TAG30}; new"}
    assert one.modify(JOB30, comment="")[1] == {"comment": TAG30}
    assert one.modify(JOB30, comment="qgpu/1 class=online share=100 mem=1")[1] == {"comment": TAG30}
    assert one.modify({**JOB30, "job_state": 1}, comment="running")[1] == {
        "comment": f"{TAG30}; running"
    }


def test_a_job_without_cards_cannot_be_given_a_tag(one: Slurm) -> None:
    assert one.modify({"job_id": 7, "job_state": 0}, comment="qgpu/1 whole; x")[1] == {
        "comment": "x"
    }
    assert one.modify({"job_id": 7, "job_state": 1}, comment="plain") == (0, {}, "")


def test_whole_cards_keep_their_tag(one: Slurm) -> None:
    job = {"job_id": 7, "job_state": 1, "tres_per_job": "gres:gpu:2", "comment": "qgpu/1 whole"}
    assert one.modify(job, comment="qgpu/1 class=online share=9 mem=9")[1] == {
        "comment": "qgpu/1 whole"
    }


def test_a_waiting_job_may_ask_for_something_else(one: Slurm) -> None:
    code, written, _ = one.modify(JOB30, gres="gres:qgpu:50")
    assert code == 0
    assert written["gres"] == "qgpu:online:50,shard:50,vram:39936M"
    assert written["comment"] == "qgpu/1 class=online share=50 mem=39936; mine"
    code, written, said = one.modify(JOB30, gres="gres:qgpu:130")
    assert (code, written) == (2072, {})
    assert "qgpu:130 is refused" in said
    assert one.modify(JOB30, gres="gres:qgpu:offline:30,gres:shard:1")[0] == 2072


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"qos": "offline"}, "from online to offline"),
        ({"gres": "tmpdisk:1G"}, "from online to no cards"),
        ({"gres": "gres:qgpu:100"}, "from online to whole cards (online)"),
    ],
)
def test_22_05_would_count_both_kinds_so_a_waiting_job_keeps_its_own(
    old: Slurm, change: dict[str, str], words: str
) -> None:
    code, written, said = old.modify({**JOB30, "partition": "gpu"}, **change)
    assert (code, written) == (2072, {})
    assert f"job 7 cannot change {words} while it waits" in said


def test_another_qos_of_the_same_class_is_free(one: Slurm) -> None:
    code, written, _ = one.modify(JOB30, qos="online")
    assert code == 0 and written["gres"] == GRES30


def test_newer_slurm_lets_another_qos_change_the_class_of_a_waiting_job(mixed: Slurm) -> None:
    tag = "qgpu/1 class=online share=30 mem=7372"
    gres = "gres/qgpu:online:30,gres/shard:30,gres/vram:7372M"
    job = {
        "job_id": 7,
        "job_state": 0,
        "partition": "gpu",
        "tres_per_node": gres,
        "extra": tag,
        "qos": "prod",
    }
    code, written, said = mixed.modify(job, qos="batch")
    assert (code, said) == (0, "")
    assert (
        written["gres"].startswith("qgpu:offline:30,shard:") and "class=offline" in written["extra"]
    )


def test_a_started_job_keeps_its_class_and_gres(one: Slurm) -> None:
    running = {**JOB30, "job_state": 0x8000 + 1}
    code, written, said = one.modify(running, qos="offline")
    assert (code, written) == (2072, {})
    assert (
        "job 7 has started: the class (QOS) of a job with cards cannot be changed any more" in said
    )
    assert one.modify(running, qos="burst") == (0, {}, said)
    assert one.modify(running, gres="qgpu:10")[0] == 2072


def test_the_tag_in_extra_is_protected_and_comment_is_free(mixed: Slurm) -> None:
    tag = "qgpu/1 class=online share=30 mem=7372"
    job = {
        "job_id": 7,
        "job_state": 1,
        "qos": "prod",
        "partition": "gpu",
        "tres_per_node": "gres/qgpu:online:30,gres/shard:30,gres/vram:7372M",
    }
    assert mixed.modify(job, extra="x")[1] == {"extra": f"{tag}; x"}
    assert mixed.modify(job, comment="mine")[1] == {}
    assert mixed.modify(job, comment="qgpu/1 whole;mine")[1] == {"comment": "mine"}


def test_a_waiting_job_cannot_leave_the_managed_partitions(mixed: Slurm) -> None:
    job = {
        "job_id": 7,
        "job_state": 0,
        "qos": "prod",
        "partition": "gpu",
        "tres_per_node": "qgpu:online:30,shard:30,vram:7372M",
    }
    assert mixed.modify(job, partition="gpu2")[0] == 0
    code, written, said = mixed.modify(job, partition="cpu")
    assert (code, written) == (2072, {})
    assert "partition 'cpu'" in said


# ---- srun

INSIDE = {"SLURM_JOB_ID": "7", "SLURM_SHARDS_ON_NODE": "30"}


@pytest.mark.parametrize(
    ("env", "gres", "want"),
    [
        (INSIDE, "qgpu:10", "qgpu:10,shard:1"),
        (INSIDE, "gres:qgpu:10,gres:tmpdisk:1G", "qgpu:10,shard:1,tmpdisk:1G"),
        (INSIDE, "qgpu:10,vram:4G", "qgpu:10,shard:1,vram:4G"),
        (INSIDE, "qgpu:h200:10", "qgpu:10,shard:1"),
        (INSIDE, "qgpu:100", "qgpu:100,shard:1"),
        ({"SLURM_JOB_ID": "7"}, "qgpu:100", "gpu:1"),
        ({}, "qgpu:30", "qgpu:30,shard:1"),
        ({}, "qgpu:h200:30", "qgpu:30,shard:h200:1"),
        ({}, "qgpu:200", "gpu:2"),
        ({}, "qgpu:h200:200,tmpdisk:1", "gpu:h200:2,tmpdisk:1"),
        ({}, "qgpu:100,vram:20G", "qgpu:100,shard:1,vram:20G"),
        ({}, "qgpu:130", None),
        ({}, "tmpdisk:1", None),
        ({}, "qgpu:30,shard:1", None),
        ({}, "qgpu:30%", None),
        ({}, "qgpu", None),
        ({}, "qgpu:30,qgpu:40", None),
        ({}, "qgpu:30,gpu:1", None),
        ({}, "qgpu:online:x:30", None),
    ],
)
def test_srun_asks_for_the_shard_that_carries_the_card(
    one: Slurm, env: dict[str, str], gres: str, want: str | None
) -> None:
    assert one.srun(env, gres=gres) == want


def test_only_srun_is_changed(one: Slurm) -> None:
    assert one.srun(type="sbatch", gres="qgpu:30") is None
    assert one.srun() is None


@pytest.mark.parametrize(
    "gres", ["qgpu:30", "qgpu:h200:30", "qgpu:200", "qgpu:30,vram:12G", "qgpu:130", "qgpu:0"]
)
def test_a_standalone_srun_ends_as_the_same_job_as_without_the_filter(
    one: Slurm, gres: str
) -> None:
    """The filter's string goes to job_submit.lua as well: the two must not quarrel."""
    plain = one.submit(gres=gres, qos="online")
    filtered = one.submit(gres=one.srun(gres=gres) or gres, qos="online")
    plain_written = {
        key: value
        for key, value in plain[1].items()
        if key != "gres" or plain[1]["comment"] != "qgpu/1 whole"
    }
    assert filtered[0] == plain[0]
    assert {key: filtered[1][key] for key in plain_written} == plain_written


@pytest.mark.parametrize(
    "text", ["qgpu/;" * 200_000, " " * 1_000_000 + "x" + " " * 1_000_000, "qgpu/" + " " * 1_000_000]
)
def test_an_enormous_comment_does_not_hold_up_slurmctld(one: Slurm, text: str) -> None:
    """Under 2 s where a quadratic way would take minutes: slurmctld holds its locks meanwhile."""
    # what slurmctld would compute, not what this machine had to wait for
    start = time.process_time()
    one.submit(gres="qgpu:30", qos="online", comment=text)
    one.submit(gres="gres:" * 200_000 + "qgpu:30" + "," * 100_000, qos="online", comment="x")
    assert time.process_time() - start < 2
