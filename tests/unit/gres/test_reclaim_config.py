"""Classes whose memory is taken back: what qgpu.yaml may say, and what a grant says of it."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from gres.config.site import ConfigError, parse_config
from gres.grant.store import Grant, GrantCard, GrantError
from slurm_plugin.render import render

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
    offline = taken.classes["offline"]
    assert (offline.reserves, offline.overcommit) == (["memory"], 400)


def test_a_prolog_may_wait_for_memory_and_an_epilog_does_not() -> None:
    plain, taken = parse_config(SMALL), parse_config(SMALL + RECLAIMABLE)
    short = parse_config(SMALL + RECLAIMABLE + "reclaim: {deadline: 5s}")
    waits = [str(config.prolog_deadline) for config in (plain, taken, short)]
    assert waits == ["10s", "70s", "15s"]
    assert "--deadline-ms 70000 " in render("prolog", taken)
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
