"""Each heuristic of the table can still be taken away, and the rest still builds."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from bench.worlds import ablate
from bench.worlds.worlds import KINDS


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    shutil.copytree(ablate.ROOT / ablate.POLICY, tmp_path / ablate.POLICY)
    return tmp_path


@pytest.mark.parametrize("one", ablate.ABLATIONS, ids=lambda one: one.name)
def test_each_text_is_in_the_source_once(one: ablate.Ablation, tree: Path) -> None:
    before = {path.name: path.read_text() for path in (tree / ablate.POLICY).iterdir()}
    ablate.changed(one, tree)
    after = {path.name: path.read_text() for path in (tree / ablate.POLICY).iterdir()}
    assert {name for name in before if before[name] != after[name]} == {
        name for name, _, _ in one.changes
    }


def test_a_text_that_is_gone_is_named(tree: Path) -> None:
    one = ablate.Ablation("gone", (("policy.c", "no such line", ""),))
    with pytest.raises(ValueError, match=r"gone: policy\.c has not exactly one 'no such line'"):
        ablate.changed(one, tree)


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
