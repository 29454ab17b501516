"""From hook environment to decision: each rule, with the exact outcome."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from enforcer.daemon.granting.decide import Broken, Decision, Ignore, Paths, decide, same_promise
from enforcer.nvml.port import CardInfo
from gres.config.site import parse_config
from gres.grant.hookenv import parse_hook_env
from gres.grant.store import Grant
from simulator.fakes import GIB, FakeNvml, fake_identify

CONFIG = parse_config(
    """
version: 1
cluster: c
default_class: offline
models: {h200: {memory: 80GiB, reserve: 2GiB}}
nodes: [{names: n1, model: h200, count: 2, files: "/dev/nvidia[0-1]"}]
"""
)
TWO_CARDS = FakeNvml.with_cards(2, 80 * GIB)
PATHS = Paths("/run/qgpu", "/usr/lib/libcuda.so.1", "/usr/lib/qgpu/1/libcuda.so.1")


def ask(
    comment: str = "",
    gpus: str = "",
    node: str = "n1",
    cards: Callable[[], tuple[CardInfo, ...]] = TWO_CARDS.cards,
) -> Decision:
    env = {
        "SLURM_JOB_ID": "9",
        "SLURM_JOB_UID": "1000",
        "SLURM_JOB_GID": "100",
        "SLURMD_NODENAME": node,
    }
    job = parse_hook_env(env | {"SLURM_JOB_COMMENT": comment, "SLURM_JOB_GPUS": gpus}, "comment")
    return decide(job, CONFIG.node("n1"), CONFIG, cards, lambda: PATHS, fake_identify, 123)


def grant(decision: Decision) -> Grant:
    assert isinstance(decision, Grant), decision
    return decision


def test_share_becomes_an_active_grant():
    found = grant(ask("qgpu/1 class=online share=30 mem=12288; my text", "1"))
    assert (found.state, found.job_class, found.uid, found.gid, found.created_ns) == (
        "active",
        "online",
        1000,
        100,
        123,
    )
    (card,) = found.cards
    assert (card.index, card.minor, card.share) == (1, 1, 30)
    assert (card.mem_cap, card.mem_total) == (12 * GIB, 80 * GIB)
    assert card.uuid.endswith("000001")
    assert (found.run_dir, found.driver_path, found.shim_path) == (
        "/run/qgpu",
        PATHS.driver,
        PATHS.shim,
    )


def test_two_cards_each_get_the_share():
    found = grant(ask("qgpu/1 class=offline share=50 mem=1024 cards=2", "0,1"))
    assert [(card.index, card.share, card.mem_cap) for card in found.cards] == [
        (0, 50, GIB),
        (1, 50, GIB),
    ]


@pytest.mark.parametrize(("cards", "given"), [("", "0,1"), (" cards=2", "0")])
def test_a_job_on_more_or_fewer_cards_than_promised_does_not_run(cards: str, given: str) -> None:
    """Slurm split what was to be on one card, or gave one where two were meant: twice the share,
    or half.
    """
    found = ask(f"qgpu/1 class=offline share=50 mem=1024{cards}", given)
    assert isinstance(found, Grant) and found.state == "refused"
    assert "MULTIPLE_SHARING_GRES_PJ" in found.message


def test_whole_cards_are_granted_in_full_and_without_class():
    assert ask("qgpu/1 node", "0-1") == ask("qgpu/1 whole", "0-1")
    found = grant(ask("qgpu/1 whole", "0-1"))
    assert (found.state, found.job_class) == ("whole", None)
    assert [card.mem_cap for card in found.cards] == [80 * GIB] * 2


@pytest.mark.parametrize("comment", ["just text", "qgpu/1 node", "qgpu/1 node; mine"])
def test_job_without_card_and_share_is_none_of_our_business(comment):
    """A job with --exclusive is tagged so wherever it runs, also where there is no card."""
    assert ask(comment) == Ignore()


@pytest.mark.parametrize(
    ("comment", "gpus", "words"),
    [
        ("", "0", ["without a grant", "--gres=qgpu:30", "--gres=gpu:1"]),
        ("about my job", "0", ["without a grant"]),
        ("qgpu/1 class=online share=30 mem=12288", "", ["asked for qgpu:30", "no card on n1"]),
        ("qgpu/1 whole", "", ["asked for whole cards", "no card on n1", "--gres=gpu:1"]),
        ("qgpu/1 class=best share=30 mem=1", "0", ["cannot be used", "not of the form"]),
        ("qgpu/1 class=online share=101 mem=1", "0", ["cannot be used", "share of 101"]),
        ("qgpu/1 class=online share=30 mem=12288, sneaky", "0", ["cannot be used"]),
        ("qgpu/1 class=online share=30 mem=81920", "0", ["vram:80G", "78G", "or less"]),
    ],
)
def test_what_the_job_has_wrong_refuses_the_job_and_not_the_node(comment, gpus, words):
    found = grant(ask(comment, gpus))
    assert (found.state, found.cards) == ("refused", ())
    assert all(word in found.message for word in ["job 9", *words]), found.message


def test_largest_memory_that_fits_is_granted():
    assert grant(ask("qgpu/1 class=online share=30 mem=79872", "0")).cards[0].mem_cap == 78 * GIB


def test_index_that_is_not_configured_is_a_broken_node():
    decision = ask("qgpu/1 whole", "2")
    assert isinstance(decision, Broken) and "names 2 card(s) for n1" in decision.reason


def test_lost_card_is_a_broken_node():
    nvml = FakeNvml.with_cards(2, 80 * GIB)
    nvml.lose(nvml.cards()[0].uuid)
    decision = ask("qgpu/1 class=online share=30 mem=1024", "0", cards=nvml.cards)
    assert isinstance(decision, Broken)
    assert (
        "card 0 (/dev/nvidia0) does not answer" in decision.reason
        and "sees 1 card(s)" in decision.reason
    )


def test_neighbour_of_a_lost_card_is_served():
    nvml = FakeNvml.with_cards(2, 80 * GIB)
    nvml.lose(nvml.cards()[0].uuid)
    assert grant(ask("qgpu/1 whole", "1", cards=nvml.cards)).state == "whole"


def test_smaller_card_than_configured_is_a_broken_node():
    decision = ask(
        "qgpu/1 class=online share=30 mem=1024", "0", cards=FakeNvml.with_cards(2, 40 * GIB).cards
    )
    assert (
        isinstance(decision, Broken)
        and "has 40G of memory" in decision.reason
        and "80G" in decision.reason
    )


def test_prolog_of_another_node_is_a_broken_node():
    decision = ask("qgpu/1 whole", "0", node="n2")
    assert (
        isinstance(decision, Broken)
        and "node n2" in decision.reason
        and "serves n1" in decision.reason
    )


def test_driver_is_not_asked_for_a_refused_job():
    def cards() -> tuple[CardInfo, ...]:
        raise AssertionError("asked")

    assert grant(ask("", "0", cards=cards)).state == "refused"


def test_same_promise_ignores_the_date_and_nothing_else():
    one = grant(ask("qgpu/1 class=online share=30 mem=1024", "0"))
    import dataclasses

    assert same_promise(one, dataclasses.replace(one, created_ns=5))
    assert not same_promise(one, dataclasses.replace(one, uid=5))
    assert not same_promise(one, grant(ask("qgpu/1 class=online share=31 mem=1024", "0")))
