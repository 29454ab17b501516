"""Classes whose memory is taken back: what qgpu.yaml may say, and what a grant says of it."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gres.config.site import ConfigError, parse_config
from gres.grant.store import Grant, GrantCard, GrantError
from gres.grant.tag import Tag, TagError, parse_tag
from slurm_plugin.render import node_gres, render

SMALL = """
version: 1
cluster: small
default_class: offline
models: {h200: {memory: 80GiB, reserve: 2GiB}}
nodes: [{names: "n[1-2]", model: h200, count: 2, files: "/dev/nvidia[0-1]"}]
"""
RECLAIMABLE = "classes: {offline: {memory: reclaimable}}\n"
GRANT = Grant(
    job_id=7,
    uid=1000,
    gid=1000,
    node="n1",
    state="active",
    job_class="offline",
    cards=(GrantCard("GPU-0000", 0, 0, 30, 1 << 30, 80 << 30),),
    run_dir="/run/qgpu",
    driver_path="/lib/libcuda.so.1",
    shim_path="/shim",
)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ("classes: {online: {memory: reclaimable}}", "taken back for online jobs, from offline"),
        (
            "classes: {offline: {memory: reserved, max_reclaimable: 300}}",
            "classes.offline: max_reclaimable is given, but memory is reserved",
        ),
        ("classes: {offline: {memory: taken}}", "classes.offline.memory: Input should be"),
        (
            "classes: {offline: {memory: reclaimable, max_reclaimable: 0}}",
            "classes.offline.max_reclaimable: Input should be greater than or equal to 1",
        ),
        ("classes: {offline: {memory: reclaimable, max_reclaim: 9}}", "mean max_reclaimable?"),
        ("reclaim: {deadline: 500ms}", "reclaim.deadline: 500ms is outside 1s to 1h"),
        ("reclaim: {operation: 500ms}", "reclaim.operation: 500ms is outside 1s to 1h"),
        ("reclaim: {hysteresis: 2h}", "reclaim.hysteresis: 2h is outside 0ns to 1h"),
        ("reclaim: {unable: kill}", "reclaim.unable: Input should be 'requeue' or 'stop'"),
        ("reclaim: {operations: 5s}", "did you mean operation?"),
        ("reclaim: {helper: qgpu-checkpoint}", "must be an absolute path"),
    ],
)
def test_a_bad_key_is_refused_with_a_sentence(change: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse_config(SMALL + change)
    assert sentence in str(error.value)


def test_a_class_takes_what_it_leaves_out_from_its_own_defaults() -> None:
    plain, taken = parse_config(SMALL), parse_config(SMALL + RECLAIMABLE)
    assert [config.reclaiming for config in (plain, taken)] == [False, True]
    assert [taken.reclaims(name) for name in ("online", "offline", None)] == [False, True, False]
    assert [config.max_reclaimable for config in (plain, taken)] == [0, 200]
    assert list(taken.classes) == ["online", "offline"]
    assert taken.classes["online"] == plain.classes["online"]
    assert (plain.classes["offline"].overcommit, plain.classes["offline"].reserves) == (
        400,
        ["memory"],
    )
    offline = taken.classes["offline"]
    assert (offline.reserves, offline.overcommit) == (["memory"], 200)
    more = "classes: {offline: {memory: reclaimable, max_reclaimable: 300, overcommit: 50}}"
    for text, count in ((more, 50), (more.replace(", overcommit: 50", ""), 300)):
        assert parse_config(SMALL + text).classes["offline"].overcommit == count


def test_slurm_counts_what_may_be_promised_beside_what_is_reserved() -> None:
    assert "qgpu:offline:800,vram:156G" in node_gres(parse_config(SMALL), "n1")
    assert "qgpu:offline:400,vram:468G" in node_gres(parse_config(SMALL + RECLAIMABLE), "n1")


def test_a_prolog_may_wait_for_memory_and_an_epilog_does_not() -> None:
    plain, taken = parse_config(SMALL), parse_config(SMALL + RECLAIMABLE)
    short = parse_config(SMALL + RECLAIMABLE + "reclaim: {deadline: 5s}")
    waits = [str(config.prolog_deadline) for config in (plain, taken, short)]
    assert waits == ["10s", "70s", "15s"]
    assert "--deadline-ms 70000 --connect-ms 10000 " in render("prolog", taken)
    assert "--connect-ms" not in render("prolog", plain)
    assert "--deadline-ms 10000 " in render("epilog", taken)


def test_a_grant_keeps_that_its_memory_may_be_taken_back() -> None:
    taken = replace(GRANT, reclaimable=True)
    assert Grant.from_json(taken.to_json()) == taken
    assert json.loads(taken.to_json())["reclaimable"] is True
    # Older versions read such grants only.
    assert "reclaimable" not in json.loads(GRANT.to_json())
    assert Grant.from_json(GRANT.to_json()) == GRANT


@pytest.mark.parametrize("value", [1, "true", None])
def test_a_grant_with_another_word_for_it_is_not_believed(value: object) -> None:
    text = json.dumps({**json.loads(GRANT.to_json()), "reclaimable": value})
    with pytest.raises(GrantError, match="does not fit state active"):
        Grant.from_json(text)


def test_whole_cards_are_never_taken_back() -> None:
    with pytest.raises(GrantError, match="reclaimable True does not fit state whole"):
        replace(GRANT, state="whole", job_class=None, reclaimable=True)


@pytest.mark.parametrize(
    ("text", "host", "cpus", "cards"),
    [
        ("qgpu/1 class=offline share=30 mem=24576 host=24576", 24576, None, 1),
        ("qgpu/1 class=offline share=30 mem=24576 host=0", 0, None, 1),
        ("qgpu/1 class=offline share=30 mem=24576 host=24576/4", 24576, 4, 1),
        ("qgpu/1 class=offline share=30 mem=100 cards=2 host=200/1", 200, 1, 2),
        ("qgpu/1 class=offline share=30 mem=100", None, None, 1),
    ],
)
def test_a_tag_keeps_the_host_memory(
    text: str, host: int | None, cpus: int | None, cards: int
) -> None:
    found = parse_tag(f"{text}; mine host=7")
    assert found == Tag("offline", 30, 100 if "=100" in text else 24576, cards, False, host, cpus)
    assert str(found) == text


@pytest.mark.parametrize(
    "tail", [" host=", " host=04", " host=-1", " host=1/0", " host=1/", " host=1 cards=2", "host=1"]
)
def test_a_tag_with_another_form_of_it_is_none(tail: str) -> None:
    with pytest.raises(TagError):
        parse_tag(f"qgpu/1 class=offline share=30 mem=100{tail}")


@given(
    st.builds(
        Tag,
        st.sampled_from(["online", "offline"]),
        st.integers(1, 100),
        st.integers(1, 10**9),
        st.integers(1, 16),
        st.just(False),
        st.none() | st.integers(0, 10**11),
    ),
    st.none() | st.integers(1, 99_999),
)
def test_what_is_written_is_read(tag: Tag, cpus: int | None) -> None:
    wanted = tag if tag.host is None else replace(tag, cpus=cpus)
    assert parse_tag(str(wanted)) == wanted
    assert parse_tag(f"{wanted}; host=1") == wanted
