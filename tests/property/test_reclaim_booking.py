"""Classes whose memory may be taken back: what jobs that reserve are promised, and host memory
through any sequence of updates.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import pytest
from gres_support import LUA_DIR, LUA_VERSIONS, module, runtime
from hypothesis import given, settings
from hypothesis import strategies as st

from gres.config.site import Config, JobClass, parse_config
from gres.request.reservation import CARD_SHARDS, shards
from slurm_plugin.render import render
from slurm_plugin.submission import JobSubmit, RequestError, Submission

USABLE = 79872
CLUSTER = """
version: 1
cluster: any
slurm: {{version: "24.11"}}
qos: {{online: online, offline: offline}}
classes:
  online: {{reserves: {online}}}
  offline: {{reserves: {offline}, memory: {memory}}}
models: {{h200: {{memory: 80GiB, reserve: 2GiB, context: 64MiB}}}}
nodes: [{{names: n1, model: h200, count: 2, files: "/dev/nvidia[0-1]"}}]
"""
RESERVES = ("[memory]", "[compute, memory]")
MEMORY = ("reserved", "reclaimable")


@cache
def config_of(online: str, offline: str, memory: str) -> Config:
    return parse_config(CLUSTER.format(online=online, offline=offline, memory=memory))


@cache
def judge(config_key: tuple[str, str, str]) -> JobSubmit:
    return JobSubmit(config_of(*config_key))


CONFIGS = st.tuples(st.sampled_from(RESERVES), st.sampled_from(RESERVES), st.sampled_from(MEMORY))
ASKS = st.tuples(
    st.sampled_from(["online", "offline"]),
    st.integers(1, 100),
    st.one_of(st.integers(64, USABLE), st.sampled_from([64, 798, 799, 800, USABLE])),
)


@pytest.mark.parametrize("version", LUA_VERSIONS)
@given(
    share=st.integers(1, 100),
    mem=st.integers(64, USABLE),
    compute=st.booleans(),
    reclaimable=st.booleans(),
)
def test_lua_and_python_book_the_same_shards(
    version: str, share: int, mem: int, compute: bool, reclaimable: bool
) -> None:
    _, q = module(version)
    booked = q.shards(share, mem, USABLE, compute, reclaimable)
    assert booked == shards(share, mem, USABLE, compute, reclaimable) >= 1
    if reclaimable:
        assert booked == (share if compute else 1)


@settings(max_examples=300)
@given(key=CONFIGS, asks=st.lists(ASKS, max_size=40))
def test_what_jobs_that_reserve_are_promised_fits_the_card(
    key: tuple[str, str, str], asks: list[tuple[JobClass, int, int]]
) -> None:
    """Slurm places what fits by shards. Reclaimable jobs beside it take nothing but one each."""
    config = config_of(*key)
    free, caps, compute = CARD_SHARDS, 0, 0
    for job_class, share, mem in asks:
        found = judge(key).decide(
            Submission(gres=f"qgpu:{share},vram:{mem}M", qos=job_class, mem=0)
        )
        assert found.tag is not None
        assert (found.tag.host is not None) == config.reclaims(job_class)
        assert 1 <= found.shards <= CARD_SHARDS
        if found.shards > free:
            continue
        free -= found.shards
        caps += 0 if config.reclaims(job_class) else found.tag.mem
        compute += share if "compute" in config.classes[job_class].reserves else 0
    assert caps <= USABLE
    assert compute <= 100


# ---- host memory through updates

NO_VAL, NO_VAL16 = 4294967294, 65534
WRITTEN = ("gres", "extra", "min_mem_per_node", "min_mem_per_cpu", "qos")


@dataclass
class Job:
    """A waiting job of slurmctld's, and what its user asked for: MiB per node or CPU; 0: all."""

    per: str
    own: int
    cpus: int
    cap: int
    reclaimable: bool
    record: dict[str, Any] = field(default_factory=dict)

    def apply(self, written: dict[str, Any]) -> None:
        """What slurmctld keeps of an update."""
        if "gres" in written:
            self.record["tres_per_node"] = written["gres"]
        for name in ("extra", "qos", "min_cpus"):
            if name in written:
                self.record[name] = written[name]
        for name, other in (
            ("min_mem_per_node", "min_mem_per_cpu"),
            ("min_mem_per_cpu", "min_mem_per_node"),
        ):
            if name in written:
                self.record[name] = written[name]
                self.record.pop(other, None)

    def check(self) -> None:
        """The request has the job's own memory and the cap once, whatever happened before."""
        found = self.record.get(f"min_mem_per_{self.per}")
        if self.own == 0:
            assert self.record.get("min_mem_per_node", 0) == 0
            assert "min_mem_per_cpu" not in self.record
            return
        assert found is not None, self.record
        tag = self.record["extra"].partition(";")[0]
        if not self.reclaimable:
            assert found == self.own
            assert " host=" not in tag
            return
        added = found - self.own
        if self.per == "node":
            assert added == self.cap
            return
        spread = re.search(r" host=(\d+)/(\d+)$", tag)
        assert spread and int(spread[1]) == self.cap
        assert added == -(-self.cap // int(spread[2]))
        assert added * self.cpus >= self.cap


class Controller:
    """job_submit.lua as slurmctld calls it."""

    def __init__(self, version: str) -> None:
        self.lua = runtime(version)(encoding="utf-8", unpack_returned_tuples=True)
        self.lua.execute(
            "slurm = { SUCCESS = 0, GRES_ONE_TASK_PER_SHARING = 2 ^ 38, GRES_ENFORCE_BIND = 16,"
            " log_user = function() end, log_error = function(_, text) error(text) end }"
        )
        tables = self.lua.execute(render("qgpu_tables.lua", config_of(*RESERVES[::-1], MEMORY[1])))
        self.hooks = self.lua.eval("dofile")(str(LUA_DIR / "qgpu_job_submit.lua"))(tables, True)

    def submit(self, fields: dict[str, Any]) -> dict[str, Any]:
        desc = self.lua.table_from(fields)
        assert self.hooks["submit"](desc, self.lua.table(), 1000) == 0
        return dict(desc)

    def modify(self, record: dict[str, Any], fields: dict[str, Any]) -> dict[str, Any]:
        desc, rec = self.lua.table_from(fields), self.lua.table_from(record)
        assert self.hooks["modify"](desc, rec, self.lua.table(), 1000) == 0
        return dict(desc)


@cache
def controller(version: str) -> Controller:
    return Controller(version)


MEM_WORDS = st.tuples(
    st.sampled_from(["node", "cpu"]), st.one_of(st.integers(1, 200_000), st.just(0))
)
SHARE = st.integers(1, 99)
UPDATE = st.one_of(
    st.tuples(st.just("share"), SHARE),
    st.tuples(st.just("qos"), st.sampled_from(["online", "offline"])),
    st.tuples(st.just("mem"), MEM_WORDS),
    st.tuples(st.just("repeat"), st.none()),
    st.tuples(st.just("extra"), st.sampled_from(["", "mine", "qgpu/1 whole; x", "host=5/2"])),
    st.tuples(st.just("cpus"), st.integers(1, 64)),
    st.tuples(st.just("both"), st.tuples(SHARE, MEM_WORDS)),
)


def cap_of(share: int) -> int:
    return share * USABLE // 100


def start(slurm: Controller, share: int, qos: str, memory: tuple[str, int], cpus: int) -> Job:
    per, own = memory
    fields = {"gres": f"qgpu:{share}", "qos": qos, f"min_mem_per_{per}": own, "max_nodes": 1}
    fields |= {"min_cpus": cpus, "num_tasks": cpus, "cpus_per_task": NO_VAL16}
    job = Job(per if own else "node", own, cpus, cap_of(share), qos == "offline")
    written = slurm.submit(fields)
    job.record = {"job_id": 7, "job_state": 0, "qos": qos, "max_nodes": 1, "min_cpus": cpus}
    job.apply({name: written[name] for name in WRITTEN if name in written})
    if own == 0:
        job.apply({"min_mem_per_node": 0})
    return job


def fields_of(job: Job, kind: str, value: Any) -> dict[str, Any]:
    """The update as slurmctld hands it over, after the model has taken it in."""
    if kind == "both":
        return {**fields_of(job, "share", value[0]), **fields_of(job, "mem", value[1])}
    if kind == "share":
        job.cap = cap_of(value)
        return {"gres": f"qgpu:{value}"}
    if kind == "qos":
        job.reclaimable = value == "offline"
        return {"qos": value}
    if kind == "extra":
        return {"extra": value}
    if kind == "cpus":
        job.cpus = value
        return {"min_cpus": value}
    if kind == "repeat":
        return {name: job.record[name] for name in WRITTEN[2:4] if name in job.record}
    per, own = value
    if job.record.get(f"min_mem_per_{per}") != own or own == 0:
        job.per, job.own = (per, own) if own else ("node", 0)
    return {f"min_mem_per_{per}": own}


@pytest.mark.parametrize("version", LUA_VERSIONS)
@settings(max_examples=150)
@given(
    share=SHARE,
    qos=st.sampled_from(["online", "offline"]),
    memory=MEM_WORDS,
    cpus=st.integers(1, 64),
    updates=st.lists(UPDATE, max_size=8),
)
def test_host_memory_is_added_once_through_any_updates(
    version: str,
    share: int,
    qos: str,
    memory: tuple[str, int],
    cpus: int,
    updates: list[tuple[str, Any]],
) -> None:
    slurm = controller(version)
    job = start(slurm, share, qos, memory, cpus)
    job.check()
    for kind, value in updates:
        fields = fields_of(job, kind, value)
        written = slurm.modify(job.record, fields)
        if written.get("min_mem_per_cpu") == 0:  # slurmctld takes it for --mem=0
            written["min_mem_per_node"] = written.pop("min_mem_per_cpu")
        job.apply(written)
        job.check()


def test_a_sentence_names_memory_that_would_fit() -> None:
    text = CLUSTER.format(online=RESERVES[1], offline=RESERVES[0], memory=MEMORY[1])
    small = parse_config(text.replace("count: 2", "count: 2, host_memory: 32GiB"))
    with pytest.raises(RequestError) as refused:
        JobSubmit(small).decide(Submission(gres="qgpu:30", qos="offline", mem=16384))
    room = re.search(r"at most --mem=(\d+)M", str(refused.value))
    assert room is not None
    job = Submission(gres="qgpu:30", qos="offline", mem=int(room[1]))
    found = JobSubmit(small).decide(job)
    assert found.host is not None and found.host.mib == 32768
