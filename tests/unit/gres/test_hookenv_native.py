"""The native carrier beside the tag: which one counts, and messages about impossible values."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gres.config.schema import JobClass
from gres.grant.hookenv import HookEnvError, parse_hook_env
from gres.grant.tag import Tag
from gres.units import MIB

ENV = {
    "SLURM_JOB_ID": "7",
    "SLURM_JOB_UID": "1000",
    "SLURM_JOB_GID": "1000",
    "SLURMD_NODENAME": "n1",
    "SLURM_JOB_GPUS": "0",
}
FORGED = "qgpu/1 class=online share=100 mem=70000"


def native(job_class: str, share: int, mem_mib: int) -> dict[str, str]:
    return {
        "QGPU_NATIVE_CLASS": job_class,
        "QGPU_NATIVE_SHARE": str(share),
        "QGPU_NATIVE_MEM": str(mem_mib * MIB),
    }


@given(
    job_class=st.sampled_from(["online", "offline"]),
    share=st.integers(1, 100),
    mem=st.integers(1, 10**6),
    cards=st.integers(1, 8),
    note=st.sampled_from(["", "mine", FORGED, "qgpu/1 whole", "qgpu/9 x"]),
)
def test_both_carriers_give_the_same_value_and_the_native_one_wins(
    job_class: JobClass, share: int, mem: int, cards: int, note: str
) -> None:
    """Also for several cards, of which each has an equal part of what Slurm counts for all.

    A forged tag that agrees with Slurm's count by chance is believed about the number of cards.
    """
    assume(note != FORGED or cards == 1 or share * cards != 100)
    wanted = Tag(job_class, share, mem, cards)
    env = ENV | {"SLURM_JOB_GPUS": ",".join(map(str, range(cards)))}
    both = env | native(job_class, share * cards, mem * cards) | {"SLURM_JOB_COMMENT": note}
    for only in (False, True):
        job = parse_hook_env(both, "comment", only)
        assert (job.tag, job.problem) == (wanted, "")
        assert bool(job.overruled) == note.startswith("qgpu/")
    by_tag = parse_hook_env(env | {"SLURM_JOB_COMMENT": str(wanted)}, "comment")
    assert by_tag.tag == wanted


def test_what_agrees_is_not_called_overruled() -> None:
    job = parse_hook_env(
        ENV
        | native("online", 30, 8192)
        | {"SLURM_JOB_COMMENT": "qgpu/1 class=online share=30 mem=8192"}
    )
    assert (job.tag, job.overruled) == (Tag("online", 30, 8192), "")


def test_one_cards_share_that_slurm_split_over_two_is_not_taken_for_two() -> None:
    """The daemon then refuses it: its cards are not as many as the job holds."""
    env = ENV | {
        "SLURM_JOB_GPUS": "0,1",
        "SLURM_JOB_COMMENT": "qgpu/1 class=online share=60 mem=8192",
    }
    assert parse_hook_env(env | native("online", 60, 8192)).tag == Tag("online", 60, 8192, 1)
    two = {"SLURM_JOB_COMMENT": "qgpu/1 class=online share=30 mem=4096 cards=2"}
    assert parse_hook_env(env | two | native("online", 60, 8192)).tag == Tag("online", 30, 4096, 2)


def test_a_share_by_tag_alone_where_the_plugin_should_have_spoken() -> None:
    job = parse_hook_env(ENV | {"SLURM_JOB_COMMENT": FORGED}, "comment", native_only=True)
    assert job.tag is None
    assert FORGED in job.problem and "slurm.native_gres" in job.problem
    whole = parse_hook_env(ENV | {"SLURM_JOB_COMMENT": "qgpu/1 whole"}, "comment", native_only=True)
    assert (whole.tag, whole.problem) == (Tag(), "")
    nothing = parse_hook_env(ENV, "comment", native_only=True)
    assert (nothing.tag, nothing.problem) == (None, "")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"QGPU_NATIVE_CLASS": "none"}, "class of its qgpu is 'none'"),
        ({"QGPU_NATIVE_CLASS": ""}, "class of its qgpu is 'none'"),
        ({"QGPU_NATIVE_CLASS": "online,offline", "QGPU_NATIVE_SHARE": "10,20"}, "'online,offline'"),
        ({"QGPU_NATIVE_SHARE": ""}, "no qgpu to it"),
        ({"QGPU_NATIVE_SHARE": "0"}, "'0' of qgpu to it"),
        ({"QGPU_NATIVE_SHARE": "101"}, "the limit is 100"),
        ({"QGPU_NATIVE_SHARE": "30 "}, "'30 ' of qgpu"),
        ({"QGPU_NATIVE_MEM": ""}, "no vram to it"),
        ({"QGPU_NATIVE_MEM": str(MIB + 1)}, "no number of MiB"),
        ({"QGPU_NATIVE_MEM": "9" * 19}, "of vram to it"),
        ({"SLURM_JOB_GPUS": "0,1", "QGPU_NATIVE_SHARE": "61"}, "2 cards cannot have equal parts"),
    ],
)
def test_an_allocation_that_is_no_share_is_refused_in_words_and_no_tag_helps(
    change: dict[str, str], says: str
) -> None:
    job = parse_hook_env(ENV | native("online", 60, 8192) | {"SLURM_JOB_COMMENT": FORGED} | change)
    assert job.tag is None
    assert says in job.problem


@pytest.mark.parametrize("classes", ["online,offline", "offline,online"])
def test_a_job_with_the_node_for_itself_has_all_there_is(classes: str) -> None:
    """The tag of whole cards then counts: our job_submit wrote it. Without it, such counts are
    no share.
    """
    env = ENV | {
        "QGPU_NATIVE_CLASS": classes,
        "QGPU_NATIVE_SHARE": "200,800",
        "QGPU_NATIVE_MEM": "163577856000",
    }
    job = parse_hook_env(env | {"SLURM_JOB_COMMENT": "qgpu/1 whole"}, native_only=True)
    assert (job.tag, job.problem) == (Tag(), "")
    for note in ("", FORGED):
        assert parse_hook_env(env | {"SLURM_JOB_COMMENT": note}, native_only=True).problem


def test_a_value_of_absurd_length_is_not_read() -> None:
    with pytest.raises(HookEnvError, match="QGPU_NATIVE_CLASS"):
        parse_hook_env(ENV | native("x" * 5000, 1, 1))
