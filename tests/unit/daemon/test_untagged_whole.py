"""Whole cards without a tag, as of jobs that were queued before qgpu was installed; and all that
is none.
"""

from __future__ import annotations

import pytest
from daemon_support import SHARE
from daemon_support import hook_env as env

from enforcer.daemon.granting.hookproto import Answer
from gres.grant.hookenv import ALLOCATED, holds_whole_cards, parse_hook_env

ONE = "cpu=1,mem=64M,node=1,billing=1,gres/gpu=1"


@pytest.mark.parametrize(
    ("allocated", "gpus", "whole"),
    [
        (ONE, 1, True),
        ("gres/gpu=1", 1, True),
        ("cpu=4,gres/gpu:h200=2,gres/gpu=2", 2, True),
        ("cpu=4,gres/gpu:a=1,gres/gpu:b=1,gres/gpu=2", 2, True),
        ("cpu=4,gres/gpu:h200=2", 2, True),
        ("cpu=4,node=2,gres/gpu=4", 2, True),
        ("cpu=4,gres/gpu=1", 2, False),
        ("cpu=1,gres/shard=30", 1, False),
        ("cpu=1,gres/shard:h200=100", 1, False),
        ("cpu=1,gres/gpu=1,gres/shard=30", 1, False),
        ("cpu=1,gres/mps=30", 1, False),
        ("cpu=1,gres/gpu=1,gres/mps:x=1", 1, False),
        ("cpu=1,gres/gpu=1,gres/qgpu=30,gres/qgpu:online=30", 1, False),
        ("cpu=1,gres/gpu=1,gres/vram=1G", 1, False),
        ("cpu=1,mem=64M", 1, False),
        ("", 1, False),
        ("gres/gpu=0", 1, False),
        ("gres/gpu=-1", 1, False),
        ("gres/gpu=", 1, False),
        ("gres/gpu", 1, False),
        ("gres/gpu=1x", 1, False),
        ("gres/gpus=1", 1, False),
        (ONE, 0, False),
        ("x" * 2000, 1, False),
    ],
)
def test_only_whole_cards_are_whole(allocated, gpus, whole):
    assert holds_whole_cards(allocated, gpus) is whole


def job(comment="", allocated=ONE, **more):
    return parse_hook_env(env(comment=comment) | {ALLOCATED: allocated} | more, "comment")


def test_a_tag_counts_before_what_slurm_says():
    assert job(SHARE).tag.share == 30 and not job(SHARE).untagged
    assert job("qgpu/1 whole").untagged is False
    broken = job("qgpu/9 whole")
    assert broken.tag is None and broken.problem and not broken.untagged


def test_a_users_own_comment_stands_beside():
    assert job("my run about qgpu/1 whole").untagged


def test_native_counts_before_what_slurm_says():
    native = {
        "QGPU_NATIVE_CLASS": "online",
        "QGPU_NATIVE_SHARE": "30",
        "QGPU_NATIVE_MEM": str(1 << 30),
    }
    assert job(**native).tag.share == 30


def test_whole_cards_without_a_tag_are_granted_and_parts_refused(node, service):
    assert service.prolog(env(1, "") | {ALLOCATED: ONE}) == Answer(0)
    assert service.grants[1].state == "whole"
    assert service.prolog(env(2, "", "1") | {ALLOCATED: "cpu=1,gres/shard=30"}) == Answer(0)
    assert service.grants[2].state == "refused" and "without a grant" in service.grants[2].message
    assert service.prolog(env(3, "", "1")) == Answer(0)
    assert service.grants[3].state == "refused", "slurmctld could not be asked"
    assert service.prolog(env(4, "") | {ALLOCATED: "?"}) == Answer(0)
    assert service.grants[4].state == "refused" and "Submit it again." in service.grants[4].message
    assert "--gres" not in service.grants[4].message, "it may have asked for whole cards"


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        ((SHARE, ""), ("", ONE), "a share of it"),
        (("", ONE), (SHARE, ""), "it as a whole"),
        (("", ONE), ("", ONE), "it as a whole"),
    ],
)
def test_a_card_that_slurm_gave_away_twice_stays_with_the_first(
    node, service, first, second, words
):
    for number, (comment, allocated) in ((1, first), (2, second)):
        assert service.prolog(env(number, comment) | {ALLOCATED: allocated}) == Answer(0)
    assert service.grants[1].state != "refused"
    assert (
        service.grants[2].state == "refused" and f"job 1 holds {words}" in service.grants[2].message
    )
    service.epilog(env(1))
    service.epilog(env(2))
    assert service.prolog(env(3, second[0]) | {ALLOCATED: second[1]}) == Answer(0)
    assert service.grants[3].state != "refused"


def test_a_job_whose_epilog_found_no_qgpud_holds_no_card_any_more(node, service):
    service.prolog(env(1, "") | {ALLOCATED: ONE})
    (node.directory / "run/grants/1.ended").touch()
    service.prolog(env(2, SHARE))
    assert service.grants[2].state == "active" and 1 not in service.grants
