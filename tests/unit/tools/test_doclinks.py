"""tools/doclinks.py: links of the documentation lead somewhere."""

from __future__ import annotations

import importlib.util
import subprocess
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(name="tool")
def loaded_tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("doclinks", ROOT / "tools" / "doclinks.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def linked(path: Path, link: str) -> Path:
    """A Git repository with a page that has this link, and a second page."""
    subprocess.run(["git", "init", "-q", str(path)], check=True)
    (path / "docs").mkdir()
    (path / "docs/one.md").write_text(f"# One\n\nSee [this]({link}).\n")
    (path / "two.md").write_text("# Two\n\n## What `it` says: all\n\n```\n# no heading\n```\n")
    subprocess.run(["git", "-C", str(path), "add", "-A"], check=True)
    return path


@pytest.mark.parametrize(
    "link", ["../two.md", "../two.md#what-it-says-all", "#one", "..", "https://nowhere/x.md"]
)
def test_a_link_that_leads_somewhere(tool: ModuleType, tmp_path: Path, link: str) -> None:
    assert tool.main(linked(tmp_path, link)) == 0


@pytest.mark.parametrize(
    ("link", "fault"),
    [
        ("two.md", "there is no such file"),
        ("../two.md#three", "that page has no such heading"),
        ("../two.md#no-heading", "that page has no such heading"),
        ("#two", "that page has no such heading"),
    ],
)
def test_a_link_that_leads_nowhere(
    tool: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str], link: str, fault: str
) -> None:
    assert tool.main(linked(tmp_path, link)) == 1
    assert capsys.readouterr().out == f"docs/one.md: {link}: {fault}\n"


def test_the_documentation_keeps_the_rule(
    tool: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tool.main() == 0, capsys.readouterr().out
