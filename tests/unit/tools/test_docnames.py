"""tools/docnames.py: pages and comments name files that exist, and
functions that exist.
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
    spec = importlib.util.spec_from_file_location("docnames", ROOT / "tools" / "docnames.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def repository(path: Path, name: str, text: str) -> Path:
    """A Git repository with this file, two C files, a template and two pages."""
    subprocess.run(["git", "init", "-q", str(path)], check=True)
    has = ("arb/one.c", "arb/two.c", "configs/made.lua.j2", "docs/adr/0007-why.md", "docs/page.md")
    for other in has:
        (path / other).parent.mkdir(parents=True, exist_ok=True)
        (path / other).write_text("")
    (path / name).write_text(text)
    subprocess.run(["git", "-C", str(path), "add", "-A"], check=True)
    return path


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "new.md",
            "`one.c`, arb/two.c, arb/{one,two}.c, `o*.c`, made.lua, /etc/made.lua, cuda.h: see "
            "docs/page.md.\n",
        ),
        (
            "new.c",
            "/* one.c; docs/adr/0007 and docs/adr/0007-why.md */\n// two.c\nint a; char *b = "
            '"none.c";\n',
        ),
        ("new.py", '"""As one.c does: docs/page.md."""\n\nNAME = "none.c"  # two.c\n'),
        ("new.sh", "none.c # docs/adr\n"),
    ],
)
def test_names_of_files_that_exist(tool: ModuleType, tmp_path: Path, name: str, text: str) -> None:
    assert tool.main(repository(tmp_path, name, text)) == 0


@pytest.mark.parametrize(
    ("name", "text", "fault"),
    [
        ("new.md", "\n`gone.c`\n", "2: gone.c: there is no such file"),
        ("new.md", "base/one.c\n", "1: base/one.c: there is no such file"),
        ("new.md", "arb/{one,gone}.c\n", "1: arb/{one,gone}.c: there is no such file"),
        ("new.c", "int a;\n/* see\n * gone.md */\n", "3: gone.md: there is no such file"),
        ("new.py", '"""See\ngone.py."""\n', "2: gone.py: there is no such file"),
        ("new.py", "\nA = 1  # gone.h\n", "2: gone.h: there is no such file"),
        ("new.py", '\nA = "docs/gone.md"\n', "2: docs/gone.md: there is no such page"),
        ("new.sh", "# docs/adr/0008\n", "1: docs/adr/0008: there is no such page"),
    ],
)
def test_names_of_files_that_do_not_exist(
    tool: ModuleType,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    name: str,
    text: str,
    fault: str,
) -> None:
    assert tool.main(repository(tmp_path, name, text)) == 1
    assert capsys.readouterr().out == f"{name}:{fault}\n"


CODE = {
    "arb/call.c": "/* gone_c() */\n#define STEP(a) a\nint step(void) { return close(3); }\n",
    "call.py": '"""gone_py()"""\n\n\ndef parse() -> str:\n    return str("gone_text()")\n',
    "made.lua": "-- gone_lua()\nfunction M.shards(n) return tonumber(n) end\n",
}


def with_code(path: Path, page: str) -> Path:
    """A repository with this page, and C, Python and Lua code."""
    root = repository(path, "new.md", page)
    for name, text in CODE.items():
        (root / name).write_text(text)
    subprocess.run(["git", "-C", str(root), "add", "-A"], check=True)
    return root


def test_functions_that_code_defines_or_calls(tool: ModuleType, tmp_path: Path) -> None:
    page = "`step()`, STEP(), close(), mmap(2)\n```\n└─ parse() M.shards() tonumber()\n```\n"
    assert tool.main(with_code(tmp_path, page)) == 0


@pytest.mark.parametrize("name", ["gone", "gone_c", "gone_py", "gone_text", "gone_lua", "M.gone"])
def test_functions_that_no_code_has(
    tool: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    assert tool.main(with_code(tmp_path, f"\n   ├─ {name}()  does\n")) == 1
    assert capsys.readouterr().out == f"new.md:2: {name}(): there is no such function\n"


def test_this_repository_keeps_the_rule(
    tool: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tool.main() == 0, capsys.readouterr().out
