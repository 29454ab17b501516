"""Each heuristic of the table can still be taken away, each constant still changed."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from bench.worlds import ablate
from bench.worlds.worlds import KINDS


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for folder in (ablate.POLICY, ablate.ENGINE):
        shutil.copytree(ablate.ROOT / folder, tmp_path / folder)
    return tmp_path


def texts(tree: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in tree.rglob("*") if path.is_file()}


@pytest.mark.parametrize("one", (*ablate.ABLATIONS, *ablate.constants()), ids=lambda one: one.name)
def test_each_text_is_in_the_source_once(one: ablate.Ablation, tree: Path) -> None:
    before = texts(tree)
    ablate.changed(one, tree)
    after = texts(tree)
    assert {name for name in before if before[name] != after[name]} == {
        name for name, _, _ in one.changes
    }


def test_a_text_that_is_gone_is_named(tree: Path) -> None:
    one = ablate.Ablation("gone", (("policy.c", "no such line", ""),))
    with pytest.raises(ValueError, match=r"gone: policy\.c has not exactly one 'no such line'"):
        ablate.changed(one, tree)


def test_each_constant_of_the_policy_is_changed() -> None:
    changed = {one.name.split("`")[1] for one in ablate.constants()}
    header = (ablate.ROOT / ablate.POLICY / "policy.h").read_text()
    defined = set(re.findall(r"^#define (QP_\w+) ", header, re.M))
    assert len(defined) > 15 and defined == {n for n in changed if "QP_" in n} | ablate.NO_SIZE
    assert len(ablate.constants()) == 2 * len(changed)


@pytest.mark.native
def test_a_heuristic_that_is_away_changes_figures() -> None:
    """Without long quanta more hand-overs cost time: some figure of these worlds must move."""
    (long,) = (one for one in ablate.ABLATIONS if one.name.startswith("long quanta"))
    whole, without = (ablate.outcome(one, range(12)) for one in (None, long))
    assert whole.keys() == without.keys()
    assert any(
        getattr(whole[seed], kind.field) != getattr(without[seed], kind.field)
        for seed in whole
        for kind in KINDS
    )
