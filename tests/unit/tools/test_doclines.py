"""tools/doclines.py: no page, and no text that no other linter measures, has a line that is too
long.
"""

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


def repository(path: Path, files: dict[str, str] | None = None, **pages: str) -> Path:
    """A Git repository in which these pages, and these files, are tracked."""
    subprocess.run(["git", "init", "-q", str(path)], check=True)
    for name, text in {
        **(files or {}),
        **{f"{name}.md": text for name, text in pages.items()},
    }.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text(text)
    subprocess.run(["git", "-C", str(path), "add", "-A"], check=True)
    return path


def test_a_long_line_is_named(
    tool: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = repository(tmp_path, good="é" * 100 + "\n", bad="short\n" + "x" * 101 + "\n")
    assert tool.main(root) == 1
    assert capsys.readouterr().out == "bad.md:2: 101 columns, the limit is 100\n"


def test_rows_of_tables_are_counted(tool: ModuleType, tmp_path: Path) -> None:
    assert tool.main(repository(tmp_path, table=f"| {'x' * 101} |\n")) == 1


def test_files_that_are_not_tracked_are_not_read(tool: ModuleType, tmp_path: Path) -> None:
    root = repository(tmp_path, good="short\n")
    (root / "note.md").write_text("x" * 101)
    assert tool.main(root) == 0


LONG = "x" * 101


@pytest.mark.parametrize(
    "name",
    [
        "Makefile",
        "gres/Makefile",
        "build.mk",
        "a.sh",
        "a.lua",
        "docs/measurements/README.md",
        "a.c",
        "a.h",
        "a.S",
        "a.yaml",
        "a.yml",
        "a.toml",
    ],
)
def test_each_kind_of_source_is_measured(tool: ModuleType, tmp_path: Path, name: str) -> None:
    assert tool.main(repository(tmp_path, {name: f"# {LONG}\n"})) == 1


@pytest.mark.parametrize("name", ["a.tsv", "a.lock", "docs/measurements/2026-11-25-a.md", "a.py"])
def test_what_a_program_wrote_or_ruff_measures_is_free(
    tool: ModuleType, tmp_path: Path, name: str
) -> None:
    assert tool.main(repository(tmp_path, {name: f"# {LONG}\n"})) == 0


@pytest.mark.parametrize(
    ("name", "line", "found"),
    [
        ("a.yaml", f"# https://example.org/{LONG}", 0),
        ("a.yaml", f"# {'x ' * 50}https://example.org", 1),  # too long without it
        ("a.md", f"https://example.org/{LONG}", 1),  # a page can name it below
    ],
)
def test_an_address_cannot_be_broken(
    tool: ModuleType, tmp_path: Path, name: str, line: str, found: int
) -> None:
    assert tool.main(repository(tmp_path, {name: line})) == found


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        (f"{LONG}", []),
        (f"a {{{{ {LONG} }}}}", []),
        (f"{{# it's {LONG} #}}", [1]),
        (f"{{% set a = '{LONG}' %}}", [1]),
        (f"  {{{{ f('{{{{a}}}}', '{LONG}') }}}}  ", [1]),
        (f"{{# a\n{LONG}\n#}}\n{LONG}", [2]),
        (f"{{{{ f(\n'}}}} {LONG}', \"%}}\") }}}}\n{{% {LONG} %}}", [2, 3]),
    ],
)
def test_a_template_may_write_long_lines_and_not_be_written_in_them(
    tool: ModuleType, text: str, lines: list[int]
) -> None:
    assert [int(fault.split(":")[1]) for fault in tool.faults("a.j2", text)] == lines


def test_the_tree_keeps_the_rule(tool: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert tool.main() == 0, capsys.readouterr().out
