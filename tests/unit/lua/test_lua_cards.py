"""--vram and --qgpu-cards inside slurmctld: fields for Slurm, and messages for the user."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from gres_support import ROOT, Outcome, outcome
from test_lua_job_submit import LUA_VERSIONS, Slurm

from slurm_plugin.submission import Submission

NO_VAL, NO_VAL16 = 4294967294, 65534
FLAG = 2**38
OPEN = {"min_nodes": NO_VAL, "num_tasks": NO_VAL, "ntasks_per_node": NO_VAL16, "bitflags": 5}


@pytest.fixture(params=LUA_VERSIONS)
def several(request: pytest.FixtureRequest, tmp_path: Path) -> Slurm:
    return Slurm(request.param, "one", tmp_path, multi_card=True)


@pytest.fixture(params=LUA_VERSIONS)
def single(request: pytest.FixtureRequest, tmp_path: Path) -> Slurm:
    return Slurm(request.param, "one", tmp_path)


def _submit(
    slurm: Slurm, gres: str, spank: tuple[str, ...] = (), **fields: Any
) -> tuple[dict[str, Any], str]:
    """Fields written, or nothing and the sentence."""
    lines = slurm.lua.table_from(dict(enumerate(spank)))
    code, written, said = slurm.submit(
        **(OPEN | {"gres": gres, "qos": "online", "spank_job_env": lines} | fields)
    )
    assert (code == 0) == (said == "")
    return (written if code == 0 else {}), said


def _tag(written: dict[str, Any]) -> str:
    return str(written.get("extra") or written.get("comment"))


@pytest.mark.parametrize("name", ["QGPU_VRAM", "SPANK_QGPU_VRAM"])
def test_memory_ends_in_the_native_request(single: Slurm, name: str) -> None:
    option = _submit(single, "gres:qgpu:30", (f"{name}=4G", "OTHER=1", "=", ""))[0]
    assert (
        option == _submit(single, "gres:qgpu:30,vram:4G")[0] != _submit(single, "gres:qgpu:30")[0]
    )


def test_variables_of_others_and_long_ones_say_nothing(single: Slurm) -> None:
    lines = ("QGPU_MEMORY=4G", "XQGPU_VRAM=4G", "QGPU_VRAM=" + "9" * 40, "QGPU_VRAM")
    assert _submit(single, "gres:qgpu:30", lines)[0] == _submit(single, "gres:qgpu:30")[0]


def test_one_card_is_one_task(several: Slurm) -> None:
    plain, _ = _submit(several, "gres:qgpu:30,vram:4G")
    assert plain["gres"] == "qgpu:online:30,vram:4096M"
    assert plain["tres_per_task"] == "gres/shard:30"
    assert (plain["num_tasks"], plain["ntasks_per_node"], plain["bitflags"]) == (1, 1, FLAG + 5)
    assert _tag(plain) == "qgpu/1 class=online share=30 mem=4096"
    assert _submit(several, "gres:qgpu:30,vram:4G", ("QGPU_CARDS=1",))[0] == plain


def test_two_cards_are_two_tasks_and_count_twice(several: Slurm) -> None:
    two, _ = _submit(several, "gres:qgpu:h200:30,vram:4G,fast:1", ("QGPU_CARDS=2",), bitflags=FLAG)
    assert two["gres"] == "qgpu:online:60,vram:8192M,fast:1"
    assert two["tres_per_task"] == "gres/shard:h200:30"
    assert (two["num_tasks"], two["ntasks_per_node"], two["bitflags"]) == (2, 2, FLAG)
    assert _tag(two) == "qgpu/1 class=online share=30 mem=4096 cards=2"


@pytest.mark.parametrize(
    ("shape", "cards", "good"),
    [
        ({"num_tasks": 1}, "1", True),
        ({"num_tasks": 1}, "2", True),
        ({"num_tasks": 4}, "1", False),
        ({"num_tasks": 4}, "2", False),
        ({"num_tasks": 4, "min_nodes": 2}, "2", True),
        ({"num_tasks": 2, "min_nodes": 2}, "1", True),
        ({"ntasks_per_node": 2}, "2", True),
        ({"ntasks_per_node": 2}, "1", False),
        ({"min_nodes": 2}, "2", True),
    ],
)
def test_a_share_goes_with_one_task_for_each_card(
    several: Slurm, shape: dict[str, int], cards: str, good: bool
) -> None:
    written, said = _submit(several, "gres:qgpu:40", (f"QGPU_CARDS={cards}",), **shape)
    assert bool(written) == good
    if good:
        nodes = shape.get("min_nodes", 1)
        assert (written["num_tasks"], written["ntasks_per_node"]) == (
            int(cards) * nodes,
            int(cards),
        )
    else:
        assert f"write --gres=qgpu:40 --ntasks-per-node={cards}" in said


@pytest.mark.parametrize("cards", ["3", "16"])
def test_more_cards_than_a_node_has_are_refused(several: Slurm, cards: str) -> None:
    written, said = _submit(several, "gres:qgpu:h200:30", (f"QGPU_CARDS={cards}",))
    assert not written
    assert f"qgpu:30 on {cards} cards is refused: no node has more than 2 such card(s)" in said
    assert "--gres=qgpu:30 --qgpu-cards=2" in said


def test_the_native_spelling_says_the_same(several: Slurm) -> None:
    option, _ = _submit(several, "gres:qgpu:30,vram:4G", ("QGPU_CARDS=2",), num_tasks=2)
    environment = several.lua.table_from({"SLURM_TRES_PER_TASK": "gres/qgpu:30"})
    native, _ = _submit(
        several,
        "",
        tres_per_task="gres/qgpu:30,gres/vram:4G",
        num_tasks=2,
        environment=environment,
    )
    assert native == option
    assert environment["SLURM_TRES_PER_TASK"] == "gres/shard:30"
    bound, _ = _submit(
        several, "", tres_per_task="gres/qgpu:30", num_tasks=2, tres_bind="gres/qgpu:per_task:30"
    )
    assert bound["tres_bind"] == "", (
        "what the client wrote for itself does not outlive what it asked for"
    )
    typed, _ = _submit(
        several, "gres:fast:1", tres_per_task="cpu:4,gres/qgpu:h200:30,gres/slow:2", num_tasks=2
    )
    assert typed["tres_per_task"] == "gres/shard:h200:30,cpu:4,gres/slow:2"
    assert typed["gres"] == "qgpu:online:60,vram:47922M,fast:1"


def test_the_native_spelling_is_one_card_for_a_job_without_tasks(several: Slurm) -> None:
    assert (
        _submit(several, "", tres_per_task="gres/qgpu:30")[0] == _submit(several, "gres:qgpu:30")[0]
    )


TABLE: dict[str, Any] = yaml.safe_load((ROOT / "tests/cases/cards.yaml").read_text())
NAMES = {"tasks": "num_tasks", "nodes": "min_nodes", "tasks_per_node": "ntasks_per_node"}
OPTIONS = {"cards": "QGPU_CARDS", "vram": "QGPU_VRAM"}


def _cases() -> list[Any]:
    """What is asked, the name of a shape, whether there is slurm.multi_card, what becomes of it."""
    found = []
    for case in TABLE["cases"]:
        for multi in (False, True):
            for row in case["several" if multi else "single"]:
                shapes = TABLE["shapes"] if row["shapes"] == "all" else row["shapes"]
                found += [(case["ask"], shape, multi, row) for shape in shapes]
    return found


def test_the_table_of_cards_has_each_shape_once() -> None:
    for case in TABLE["cases"]:
        found = [(multi, shape) for ask, shape, multi, _ in _cases() if ask == case["ask"]]
        assert sorted(found) == sorted(
            (multi, shape) for shape in TABLE["shapes"] for multi in (False, True)
        )


@pytest.mark.parametrize(("asked", "shape", "multi", "row"), _cases(), ids=str)
def test_cards_are_decided_as_the_table_says(
    tmp_path: Path, asked: dict[str, str], shape: str, multi: bool, row: dict[str, Any]
) -> None:
    """By the hook, as slurmctld calls it, and as `qgpu plan` asks."""
    numbers: dict[str, int] = TABLE["shapes"][shape]
    found = outcome(Submission(qos="online", **asked, **numbers), "one", multi_card=multi)  # type: ignore[arg-type]
    spank = tuple(f"{name}={asked[key]}" for key, name in OPTIONS.items() if key in asked)
    fields: dict[str, Any] = {key: value for key, value in asked.items() if key not in OPTIONS}
    fields |= {NAMES[key]: value for key, value in numbers.items()}
    slurm = Slurm("lua51", "one", tmp_path, multi_card=multi)
    written, said = _submit(slurm, fields.pop("gres", ""), spank, **fields)
    if "rule" in row:
        assert (found.key, said) == (row["rule"], f"qgpu: {found.text}")
        return
    tasks = row.get("tasks_per_node", 0) * numbers.get("nodes", 1)
    names = ("gres", "tag", "tres_per_task", "tasks_per_node")
    want = {name: row[name] for name in names if name in row}
    assert found == Outcome(**want, comment=row.get("tag"), tasks=tasks)
    told = {"gres": found.gres, "comment": found.comment, "tres_per_task": found.tres_per_task}
    told |= {"ntasks_per_node": found.tasks_per_node or None, "num_tasks": found.tasks or None}
    assert {name: value for name, value in told.items() if value is not None} == {
        name: value for name, value in written.items() if name not in ("bitflags", "tres_bind")
    }


@pytest.mark.parametrize("cards", ["2", "0", "17", "x", "1.5", "-1", "0x1", "1e0", " 1"])
def test_elsewhere_several_cards_are_refused(single: Slurm, cards: str) -> None:
    written, said = _submit(single, "gres:qgpu:30", (f"QGPU_CARDS={cards}",))
    assert not written and "on this cluster a job has a part of one card of each node" in said


def test_several_cards_go_with_a_share(several: Slurm) -> None:
    for gres in ("gres:gpu:2", "gres:fast:1"):
        assert "tres_per_task" not in _submit(several, gres)[0]
    assert "goes with a share of a card" in _submit(several, "gres:gpu:2", ("QGPU_CARDS=2",))[1]


TAG2 = "qgpu/1 class=online share=30 mem=4096 cards=2"
ON_TWO = {
    "job_id": 7,
    "qos": "online",
    "tres_per_node": "gres/qgpu:online:60,gres/vram:8192M",
    "tres_per_task": "gres/shard:30",
    "comment": TAG2,
}


@pytest.mark.parametrize("state", [0, 1])
def test_a_new_comment_promises_no_card_what_was_booked_on_several(
    several: Slurm, state: int
) -> None:
    """Seen live: 60 % and 8 GiB of one card by `scontrol update extra=`, then"""
    job = {**ON_TWO, "job_state": state}
    assert several.modify(job, comment="new")[1] == {"comment": f"{TAG2}; new"}
    forged = "qgpu/1 class=online share=60 mem=8192 cards=1"
    assert several.modify(job, comment=f"{forged}; x")[1] == {"comment": f"{TAG2}; x"}
    # a field of other numbers than the allocation's says nothing
    odd = {**job, "comment": TAG2.replace("cards=2", "cards=7")}
    assert several.modify(odd, comment="")[1] == {
        "comment": "qgpu/1 class=online share=60 mem=8192"
    }


@pytest.mark.parametrize(
    "change", [{"gres": "qgpu:10"}, {"qos": "offline"}, {"partition": "other"}]
)
def test_a_waiting_share_stays_as_it_is_where_cards_go_with_tasks(
    several: Slurm, change: dict[str, str]
) -> None:
    code, written, said = several.modify({**ON_TWO, "job_state": 0}, **change)
    assert (code, written) == (2072, {})
    assert "neither gres, class nor partition of a share can be changed" in said


BIND, OTHERS = 2**4, 2**3 + 2**5 + FLAG
BOUND = [
    ({}, True),
    ({"num_tasks": 4}, True),
    ({"num_tasks": 1}, False),
    ({"ntasks_per_node": 4}, False),
    ({"num_tasks": 4, "ntasks_per_node": 4}, False),
    ({"bitflags": OTHERS}, False),
    ({"bitflags": 0}, False),
]


@pytest.mark.parametrize(("fields", "refused"), BOUND)
@pytest.mark.parametrize("version", LUA_VERSIONS)
def test_binding_with_open_tasks_is_refused_as_slurm_hands_it_over(
    tmp_path: Path, version: str, fields: dict[str, int], refused: bool
) -> None:
    words = {"qos": "prod", "partition": "gpu", "bitflags": BIND + OTHERS, **fields}
    here = Slurm(version, "mixed", tmp_path)
    written, said = _submit(here, "gres/qgpu:l4:30", **words)
    assert said.startswith("qgpu: --gres-flags=enforce-binding is refused") == refused
    assert bool(written) != refused


def test_with_multi_card_qgpu_names_the_tasks_itself(tmp_path: Path) -> None:
    words = {"qos": "prod", "partition": "gpu", "bitflags": BIND}
    for version in LUA_VERSIONS:
        here = Slurm(version, "mixed", tmp_path, multi_card=True)
        written, said = _submit(here, "gres/qgpu:l4:30", **words)
        assert (written["ntasks_per_node"], written["bitflags"], said) == (1, BIND + FLAG, "")
