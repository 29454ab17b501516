"""tools/doclines.py: no page of the documentation has a line that is too long."""

from __future__ import annotations

import importlib.util
import subprocess
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(name="tool")
def loaded_tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("doclines", ROOT / "tools" / "doclines.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def repository(path: Path, **pages: str) -> Path:
    """A Git repository in which these pages are tracked."""
    subprocess.run(["git", "init", "-q", str(path)], check=True)
    for name, text in pages.items():
        (path / f"{name}.md").write_text(text)
    subprocess.run(["git", "-C", str(path), "add", "-A"], check=True)
    return path


def test_a_long_line_is_named(tool: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = repository(tmp_path, good="é" * 100 + "\n", bad="short\n" + "x" * 101 + "\n")
    assert tool.main(root) == 1
    assert capsys.readouterr().out == "bad.md:2: 101 columns, the limit is 100\n"


def test_rows_of_tables_are_counted(tool: ModuleType, tmp_path: Path) -> None:
    assert tool.main(repository(tmp_path, table=f"| {'x' * 101} |\n")) == 1


def test_files_that_are_not_tracked_are_not_read(tool: ModuleType, tmp_path: Path) -> None:
    root = repository(tmp_path, good="short\n")
    (root / "note.md").write_text("x" * 101)
    assert tool.main(root) == 0


def test_the_documentation_keeps_the_rule(tool: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert tool.main() == 0, capsys.readouterr().out
