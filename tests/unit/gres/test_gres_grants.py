"""Grants and their store, tags, the hook's environment, card identity: what root believes, and
what not.
"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from gres.config.site import CardSpec, Node
from gres.grant.hookenv import HookEnvError, parse_gpus, parse_hook_env
from gres.grant.identity import IdentityError, identify
from gres.grant.store import Grant, GrantCard, GrantError, GrantMissing, GrantStore, clip_message
from gres.grant.tag import Tag, TagError, parse_tag

CARD = GrantCard("GPU-0000", 0, 1, 30, 1 << 30, 80 << 30)
GRANT = Grant(
    4711,
    1000,
    1000,
    "n1",
    "active",
    "online",
    5,
    "",
    (CARD,),
    "/run/qgpu",
    "/lib/libcuda.so.1",
    "/shim",
)


@pytest.fixture
def store(tmp_path: Path) -> GrantStore:
    return GrantStore(tmp_path / "run" / "grants")


def test_a_grant_survives_the_file(store: GrantStore) -> None:
    refused = Grant(5, 1, 1, "n1", "refused", message="größe: no card")
    store.write(GRANT)
    store.write(refused)
    assert (store.read(4711), store.read(5)) == (GRANT, refused)
    assert store.job_ids() == [5, 4711]
    path = store.directory / "4711.json"
    assert (path.stat().st_mode & 0o777, json.loads(path.read_text())["version"]) == (0o600, 1)


def test_a_moved_job_names_its_home(store: GrantStore) -> None:
    """Absent where it was not moved, so older versions read such a file, and this one theirs."""
    moved = replace(CARD, home="GPU-1111", home_minor=3)
    grant = replace(GRANT, cards=(moved,))
    assert Grant.from_json(grant.to_json()) == grant
    assert (moved.name, CARD.name) == ("GPU-1111", "GPU-0000")
    assert "home" not in GRANT.to_json()
    for key in ("home", "home_minor"):
        body = json.loads(grant.to_json())
        del body["cards"][0][key]
        with pytest.raises(GrantError, match=f"these differ: \\['{key}'\\]"):
            Grant.from_json(json.dumps(body))


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"home": "card 1", "home_minor": 1}, "must look like GPU-"),
        ({"home": "GPU-1111"}, "home_minor is -1"),
        ({"home_minor": 1}, "not moved is 1"),
        ({"home": None}, "home is None"),
        ({"home": "GPU-1111", "home_minor": True}, "home_minor is True"),
    ],
)
def test_a_home_is_checked(changes: dict[str, object], why: str) -> None:
    with pytest.raises(GrantError, match=why):
        replace(CARD, **changes)  # type: ignore[arg-type]


def test_names_of_cards_are_never_ambiguous() -> None:
    """By a home a process means one card of its job."""
    here = replace(CARD, home="GPU-1111", home_minor=3)
    for home in ("GPU-0000", "GPU-1111", "GPU-2222"):
        other = replace(CARD, uuid="GPU-2222", home=home, home_minor=3)
        with pytest.raises(GrantError, match=f"names {home} as the home"):
            replace(GRANT, cards=(here, other))
    with pytest.raises(GrantError, match="names GPU-0000 as the home"):
        replace(GRANT, cards=(replace(CARD, home=CARD.uuid, home_minor=0),))
    replace(GRANT, cards=(here, replace(CARD, uuid="GPU-2222", home="GPU-3333", home_minor=5)))


def test_writing_again_replaces_whole_and_leaves_nothing_behind(store: GrantStore) -> None:
    old = os.umask(0o077)
    try:
        store.write(GRANT)
        store.write(replace(GRANT, created_ns=9))
        store.write_blob(4711, b"blob")
    finally:
        os.umask(old)
    assert store.read(4711).created_ns == 9
    assert sorted(path.name for path in store.directory.iterdir()) == ["4711.grant", "4711.json"]
    assert (store.directory / "4711.grant").stat().st_mode & 0o777 == 0o644


def test_removal(store: GrantStore) -> None:
    store.write(GRANT)
    store.write_blob(4711, b"blob")
    assert (store.remove(4711), store.remove(4711), list(store.directory.iterdir())) == (
        True,
        False,
        [],
    )
    with pytest.raises(GrantMissing):
        store.read(4711)


def _spoil(store: GrantStore, how: str) -> None:
    path = store.directory / "4711.json"
    text = path.read_text()
    if how == "symlink":
        path.rename(store.directory / "elsewhere")
        path.symlink_to("elsewhere")
    elif how == "hard link":
        os.link(path, store.directory / "second")
    elif how == "fifo":
        path.unlink()
        os.mkfifo(path, 0o600)
    elif how == "mode":
        path.chmod(0o640)
    elif how == "owner":
        os.chown(path, 12345, 12345)
    elif how == "size":
        path.write_text(text + " " * 70_000)
    elif how == "directory mode":
        store.directory.chmod(0o777)
    elif how == "other job":
        path.write_text(text.replace("4711", "4712"))
    else:
        path.write_text(how)


@pytest.mark.parametrize(
    "how",
    [
        "symlink",
        "hard link",
        "fifo",
        "mode",
        "owner",
        "size",
        "directory mode",
        "other job",
        "",
        "[]",
        "{}",
        '{"version": 2}',
        "[" * 50_000,
    ],
)
def test_a_file_that_root_did_not_leave_like_this_is_refused(store: GrantStore, how: str) -> None:
    if how == "owner" and os.geteuid() != 0:
        pytest.skip("only root can give a file away")
    store.write(GRANT)
    _spoil(store, how)
    with pytest.raises(GrantError):
        store.read(4711)


def test_a_directory_reached_by_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    with pytest.raises(GrantError, match="is not a directory of grants"):
        GrantStore(tmp_path / "link")


@pytest.mark.parametrize(
    "change",
    [
        {"job_id": 0},
        {"job_id": True},
        {"uid": -1},
        {"node": "n" * 64},
        {"state": "great"},
        {"job_class": None},
        {"job_class": "root"},
        {"cards": ()},
        {"cards": (CARD, CARD)},
        {"message": "x" * 512},
        {"created_ns": 1.5},
        {"state": "refused", "job_class": None},
        {"state": "whole"},
        {"shim_path": "/" * 256},
    ],
)
def test_values_that_contradict_each_other_are_no_grant(change: dict[str, object]) -> None:
    with pytest.raises(GrantError):
        replace(GRANT, **change)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "change",
    [
        {"share": 0},
        {"share": 101},
        {"mem_cap": 0},
        {"mem_cap": 1 << 40},
        {"uuid": "GPU 1"},
        {"minor": -1},
    ],
)
def test_values_that_are_no_card(change: dict[str, object]) -> None:
    with pytest.raises(GrantError):
        replace(CARD, **change)  # type: ignore[arg-type]
    body = json.loads(GRANT.to_json())
    body["cards"][0].update(change)
    with pytest.raises(GrantError):
        Grant.from_json(json.dumps(body))


def test_a_long_message_is_cut_at_a_character() -> None:
    assert clip_message("ä" * 400) == "ä" * 255
    assert clip_message("a\x1b[31m\nb") == "a\\x1b[31m\\x0ab"


# ---- tags


@pytest.mark.parametrize(
    ("text", "tag"),
    [
        ("qgpu/1 class=online share=30 mem=24576", Tag("online", 30, 24576)),
        ("qgpu/1 class=offline share=100 mem=1; mine; too\nsecond", Tag("offline", 100, 1)),
        ("qgpu/1 class=offline share=30 mem=1 cards=16; mine", Tag("offline", 30, 1, 16)),
        ("qgpu/1 whole", Tag()),
        ("qgpu/1 whole; x", Tag()),
        ("qgpu/1 node; x", Tag(node=True)),
        ("", None),
        ("about qgpu/1 whole", None),
    ],
)
def test_tags(text: str, tag: Tag | None) -> None:
    assert parse_tag(text) == tag


@pytest.mark.parametrize(
    "text",
    [
        " qgpu/1 whole",
        "qgpu/2 whole",
        "qgpu/1 wholesale",
        "qgpu/1 nodes",
        "qgpu/1 node cards=2",
        "qgpu/1 whole;x",
        "qgpu/1 class=online share=0 mem=1",
        "qgpu/1 class=online share=101 mem=1",
        "qgpu/1 class=root share=1 mem=1",
        "qgpu/1 class=online share=1 mem=0",
        "qgpu/1 class=online share=01 mem=1",
        "qgpu/1 class=online share=1 mem=1 more=2",
        "qgpu/1 class=online share=1 mem=1 cards=1",
        "qgpu/1 class=online share=1 mem=1 cards=17",
        "qgpu/1 class=online share=1 mem=1 cards=02",
        "qgpu/1 whole cards=2",
        "qgpu/",
        "qgpu/1 class=online share=1 mem=99999999999",
    ],
)
def test_what_only_begins_like_a_tag_is_an_error(text: str) -> None:
    with pytest.raises(TagError):
        parse_tag(text)


# ---- the hook's environment

ENV = {
    "SLURM_JOB_ID": "7",
    "SLURM_JOB_UID": "1000",
    "SLURM_JOB_GID": "1000",
    "SLURMD_NODENAME": "n1",
}


def test_the_hook_reads_the_tag_from_extra_and_else_from_comment() -> None:
    both = {**ENV, "SLURM_JOB_GPUS": "0,2-3", "SLURM_JOB_COMMENT": "qgpu/1 whole; c"}
    assert parse_hook_env(both).tag == Tag()
    assert parse_hook_env({**both, "SLURM_JOB_EXTRA": "mine"}).tag == Tag()
    both["SLURM_JOB_EXTRA"] = "qgpu/1 class=online share=30 mem=9"
    job = parse_hook_env(both)
    assert (job.tag, job.gpus, job.node, job.job_id) == (Tag("online", 30, 9), (0, 2, 3), "n1", 7)
    assert parse_hook_env(both, "comment").tag == Tag()


def test_no_tag_and_a_broken_tag_are_two_things() -> None:
    assert (parse_hook_env(ENV).tag, parse_hook_env(ENV).problem, parse_hook_env(ENV).gpus) == (
        None,
        "",
        (),
    )
    broken = parse_hook_env({**ENV, "SLURM_JOB_COMMENT": "qgpu/7 x"})
    assert (broken.tag, "'qgpu/7 x' is not of the form" in broken.problem) == (None, True)


@pytest.mark.parametrize(
    "change",
    [
        {"SLURM_JOB_ID": ""},
        {"SLURM_JOB_ID": "0"},
        {"SLURM_JOB_ID": "4294967296"},
        {"SLURM_JOB_UID": "-1"},
        {"SLURM_JOB_GID": "x"},
        {"SLURMD_NODENAME": "../n1"},
        {"SLURMD_NODENAME": ""},
        {"SLURM_JOB_GPUS": "0,a"},
        {"SLURM_JOB_GPUS": "0,0"},
        {"SLURM_JOB_GPUS": "0-9999"},
        {"SLURM_JOB_COMMENT": "x" * 5000},
    ],
)
def test_an_environment_that_slurmd_would_not_make(change: dict[str, str]) -> None:
    with pytest.raises(HookEnvError):
        parse_hook_env({**ENV, **change})


def test_gpu_lists() -> None:
    assert (parse_gpus(""), parse_gpus("3"), parse_gpus("1-2,0")) == ((), (3,), (1, 2, 0))


# ---- identity


def _node(*paths: str) -> Node:
    return Node(
        "n1",
        "h200",
        tuple(CardSpec(i, path, "h200", 2, 1) for i, path in enumerate(paths)),
        "/r",
        "/s",
    )


def test_the_card_is_the_device_behind_the_configured_file() -> None:
    [card] = identify(_node("/dev/null", "/dev/zero"), [1])
    assert (card.spec.index, card.major, card.minor) == (1, 1, 5)


@pytest.mark.parametrize(
    ("paths", "indexes", "sentence"),
    [
        (["/dev/null"], [1], "Slurm gave card 1, but qgpu.yaml names 1 card"),
        (["/etc/passwd"], [0], "/etc/passwd is not a character device"),
        (["/nowhere"], [0], "cannot be examined: No such file"),
        (["/dev/null", "/dev/null"], [0, 1], "is the same device as another card's file"),
    ],
)
def test_a_card_that_cannot_be_identified(
    paths: list[str], indexes: list[int], sentence: str
) -> None:
    with pytest.raises(IdentityError, match=sentence):
        identify(_node(*paths), indexes)


def test_a_mark_stays_until_the_next_grant_or_its_time_is_over(store: GrantStore) -> None:
    """SPANK refuses a job by JOBID.over that runs again without a Prolog."""
    mark = store.directory / "4711.over"
    store.write(GRANT)
    store.write_blob(4711, b"x")
    assert store.remove(4711, mark=True) and mark.exists()
    assert not store.remove(4711, mark=True)
    store.forget_over(mark.stat().st_mtime)
    assert mark.exists()
    store.write_blob(4711, b"x")
    assert not mark.exists()
    store.remove(4711, mark=True)
    store.forget_over(mark.stat().st_mtime + 1)
    assert not mark.exists()
