"""tools/layers.py: its rules hold for this tree, and a tree that breaks one is reported."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

TOOL = Path(__file__).parents[3] / "tools" / "layers.py"


@pytest.fixture(scope="module")
def layers() -> ModuleType:
    spec = importlib.util.spec_from_file_location("layers", TOOL)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_tree_keeps_the_rules(layers: ModuleType) -> None:
    assert list(layers.faults()) == []


def test_two_test_files_of_one_name_are_a_fault(layers: ModuleType, tmp_path: Path) -> None:
    for place in (
        "unit/test_a.py",
        "slurm/test_a.py",
        "slurm/test_b.py",
        "unit/conftest.py",
        "slurm/conftest.py",
    ):
        (tmp_path / place).parent.mkdir(exist_ok=True)
        (tmp_path / place).touch()
    found = list(layers.twin_faults(tmp_path))
    assert len(found) == 1 and "unit/test_a.py" in found[0] and "slurm/test_a.py" in found[0]
