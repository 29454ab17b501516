"""Grants of jobs whose memory may be taken back: which are, what counts against whom, how many of
them a card may have, and what `qgpu job class` does with them.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from daemon_support import hook_env
from hypothesis import given
from hypothesis import strategies as st
from questions_support import ME, peer, run

from enforcer.daemon.granting.admission import within_the_card
from enforcer.daemon.granting.decide import Paths, decide, overbooked, same_promise
from enforcer.daemon.granting.reclaimable import too_many
from enforcer.daemon.node import NodeService
from enforcer.daemon.requests.answers import Asks
from enforcer.wire.abi import GRANT_CARD_RECLAIMABLE, unpack_grant
from gres.config.site import Config, JobClass, parse_config
from gres.grant.hookenv import parse_hook_env
from gres.grant.store import Grant, GrantCard
from simulator.fakes import GIB, FakeNode, FakeNvml, fake_identify

TEXT = """
version: 1
cluster: c
default_class: offline
models: {h200: {memory: 80GiB, reserve: 2GiB}}
nodes: [{names: n1, model: h200, count: 2, files: "/dev/nvidia[0-1]"}]
"""
TAKEN = parse_config(TEXT + "classes: {offline: {memory: reclaimable}}")
NODE = TAKEN.node("n1")
TAG = "qgpu/1 class=offline share=30 mem=24576"
PATHS = Paths("/run/qgpu", "/usr/lib/libcuda.so.1", "/usr/lib/qgpu/1/libcuda.so.1")


def asked(comment: str, config: Config = TAKEN, native: str = "") -> Grant:
    env = {
        "SLURM_JOB_ID": "9",
        "SLURM_JOB_UID": "1000",
        "SLURM_JOB_GID": "100",
        "SLURMD_NODENAME": "n1",
        "SLURM_JOB_COMMENT": comment,
        "SLURM_JOB_GPUS": "0",
    }
    if native:
        counts = {"CLASS": native, "SHARE": "30", "MEM": str(24576 << 20)}
        env |= {f"QGPU_NATIVE_{name}": value for name, value in counts.items()}
    job = parse_hook_env(env, "comment", bool(native))
    cards = FakeNvml.with_cards(2, 80 * GIB).cards
    found = decide(job, config.node("n1"), config, cards, lambda: PATHS, fake_identify, 1)
    assert isinstance(found, Grant), found
    return found


def test_only_a_job_that_booked_host_memory_is_reclaimable() -> None:
    assert asked(f"{TAG} host=24576; mine").reclaimable
    assert asked(f"{TAG} host=0").reclaimable
    assert asked(f"{TAG} host=24576/4").reclaimable
    assert not asked(TAG).reclaimable, "it booked its memory before the class was reclaimable"
    assert not asked(f"{TAG} host=24576", parse_config(TEXT)).reclaimable
    assert not asked("qgpu/1 class=online share=30 mem=24576 host=24576").reclaimable
    assert not asked("qgpu/1 whole").reclaimable


@pytest.mark.parametrize(
    "isolation",
    [
        "enforcer: {isolation: none}",
        "cards: [{nodes: n1, cards: [0], isolation: {offline: none}}]",
    ],
)
def test_without_a_gate_memory_is_not_taken_back(isolation: str) -> None:
    config = parse_config(TEXT + "classes: {offline: {memory: reclaimable}}\n" + isolation)
    found = asked(f"{TAG} host=24576", config)
    assert (found.state, found.reclaimable, found.cards[0].governed) == ("active", False, False)


def test_slurms_own_counts_decide_the_class_and_the_tag_whether_it_is_reclaimable() -> None:
    assert asked(f"{TAG} host=24576", native="offline").reclaimable
    assert not asked(TAG, native="offline").reclaimable
    assert not asked(f"{TAG} host=24576", native="online").reclaimable


def job(number: int, gib: int, job_class: JobClass = "offline", card: int = 0) -> Grant:
    held = GrantCard(f"GPU-000{card}", card, card, 10, gib * GIB, 80 * GIB)
    return Grant(
        job_id=number,
        uid=1000,
        gid=100,
        node="n1",
        state="active",
        job_class=job_class,
        cards=(held,),
        run_dir="/run/qgpu",
        driver_path="/usr/lib/libcuda.so.1",
        shim_path="/shim",
        reclaimable=job_class == "offline",
    )


def test_jobs_that_reserve_are_overbooked_among_themselves() -> None:
    taken = [job(1, 60), job(2, 60)]
    assert within_the_card(job(3, 60, "online"), taken).state == "active"
    assert within_the_card(job(3, 70), [*taken, job(4, 60, "online")]).state == "active"
    said = overbooked(job(3, 30, "online"), [*taken, job(4, 60, "online")])
    assert "60G of its 80G belong to job 4." in said


def test_reclaimable_jobs_of_one_card_are_bounded() -> None:
    """200 % of 78 GiB are 156 GiB."""
    beside = [job(1, 70), job(2, 70), job(5, 70, card=1), job(6, 60, "online")]
    assert too_many(job(3, 16), beside, NODE, TAKEN) == ""
    assert too_many(job(3, 17), beside, NODE, TAKEN) == (
        "job 3 wants 17G of card 0 of n1 that may be taken back, and 140G belong to jobs 1, 2. At"
        " most 156G may (200 %, max_reclaimable)."
    )
    assert too_many(job(3, 70, card=1), beside, NODE, TAKEN) == ""
    assert too_many(job(3, 78, "online"), beside, NODE, TAKEN) == ""
    assert too_many(job(1, 70), beside, NODE, TAKEN) == "", "the same Prolog again"
    little = parse_config(
        TEXT + "classes: {offline: {memory: reclaimable, max_reclaimable: 50}}",
    )
    assert "which is more" in too_many(job(3, 40), [], NODE, little)


@given(
    caps=st.lists(
        st.tuples(st.integers(1, 80), st.sampled_from(["online", "offline"])), max_size=12
    ),
    percent=st.integers(1, 500),
)
def test_admitted_jobs_keep_both_bounds(caps: list[tuple[int, JobClass]], percent: int) -> None:
    """Whatever came past job_submit: by the two checks no sum exceeds its bound."""
    text = f"classes: {{offline: {{memory: reclaimable, max_reclaimable: {percent}}}}}"
    config = parse_config(TEXT + text)
    standing: list[Grant] = []
    for number, (gib, job_class) in enumerate(caps, 1):
        grant = job(number, gib, job_class)
        if not too_many(grant, standing, NODE, config) and not overbooked(grant, standing):
            standing.append(grant)
    held = {
        taken: [g.cards[0].mem_cap for g in standing if g.reclaimable == taken]
        for taken in (False, True)
    }
    assert sum(held[True]) <= 78 * GIB * percent // 100
    # A lone job may have the whole card (isolation none), beside which nothing is counted.
    assert sum(cap for cap in held[False] if cap < 80 * GIB) <= 80 * GIB


def test_another_promise_is_one_that_is_reclaimable_now() -> None:
    assert not same_promise(job(1, 10), replace(job(1, 10), reclaimable=False))


# ---- qgpu job class


@pytest.fixture
def service(node: FakeNode) -> NodeService:
    """A daemon whose offline class is reclaimable, with the jobs 9 (reclaimable) and 10 (not)."""
    node.config = node.config.model_copy(update={"classes": TAKEN.classes})
    service = node.service()
    service.start()
    assert service.prolog(hook_env(9, f"{TAG} host=24576")).status == 0
    assert service.prolog(hook_env(10, TAG)).status == 0
    return service


def change(service: NodeService, number: int, job_class: JobClass, force: bool = False) -> str:
    question = {"op": "job-class", "job": number, "job_class": job_class, "force": force}
    body = Asks(service, ME).answer(question, peer()).body
    return "" if body["ok"] else str(body["error"])


def test_a_reclaimable_job_cannot_become_online_as_its_memory_is_not_booked(
    service: NodeService,
) -> None:
    said = change(service, 9, "online")
    assert "job 9 is booked with 1 % of its card and online needs 31 %" in said
    assert service.grants[9].reclaimable
    assert change(service, 10, "online") == "", "job 10 booked its memory, and as much as its share"


def test_a_forced_change_ends_that_memory_is_taken_back(
    service: NodeService, node: FakeNode
) -> None:
    assert change(service, 9, "online", force=True) == ""
    found = service.grants[9]
    assert (found.job_class, found.reclaimable) == ("online", False)
    assert node.arbiter.grants[9] == found
    page = unpack_grant((service.store.directory / "9.grant").read_bytes())
    assert page.cards[0].flags == 0
    assert service.store.read(9) == found
    # It stays so: nothing tells any more that it has the host memory.
    assert change(service, 9, "offline", force=True) == ""
    assert not service.grants[9].reclaimable


def test_a_job_that_becomes_offline_keeps_the_memory_that_it_booked(service: NodeService) -> None:
    assert change(service, 10, "online") == ""
    assert change(service, 10, "offline") == ""
    assert not service.grants[10].reclaimable


def test_the_grant_files_say_that_memory_may_be_taken_back(service: NodeService) -> None:
    flags = [
        unpack_grant((service.store.directory / f"{number}.grant").read_bytes()).cards[0].flags
        for number in (9, 10)
    ]
    assert flags == [GRANT_CARD_RECLAIMABLE, 0]
    assert [service.store.read(number).reclaimable for number in (9, 10)] == [True, False]


def test_a_run_may_have_memory_of_reclaimable_jobs_and_keeps_its_own(service: NodeService) -> None:
    """Of 78 GiB job 10 reserves 24."""
    asks = Asks(service, ME)
    found = run(asks, mem=54 * 1024, card="0")
    assert found["ok"], found
    assert not service.grants[found["job_id"]].reclaimable
    assert "0M of 78G left" in run(asks, mem=1024, card="0")["error"]
