"""Checks the rules that no stock linter knows: who may import whom, how long a thing may be, and
one name a test file.

Exit status 1 and one line per fault. Run by `make lint` and by the tests.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("gres", "slurm_plugin", "enforcer", "simulator", "cli", "configs", "bench")
ALLOWED = {
    "gres": {"gres"},
    "slurm_plugin": {"slurm_plugin", "gres", "configs"},
    "enforcer": {"enforcer", "gres", "configs"},
    "simulator": {"simulator", "enforcer", "gres", "configs"},
    "cli": {"cli", "slurm_plugin", "gres", "enforcer", "configs"},
    "configs": {"configs"},
    "bench": set(PACKAGES),
}
# Commands that are made for simulated cards. The rest of cli/ runs on real ones and must not know
# them.
OF_SIMULATOR = ("cli/demo/", "cli/sandbox/", "cli/simulate.py")
MAX_PY_FILE, MAX_PY_FUNCTION = 400, 80
MAX_C_FILE, MAX_C_FUNCTION = 500, 120
# A file whose docstring says this has no limit: it is as long as its header (tools/layouts.py).
GENERATED = "Generated from it by `make layouts`"


def imported(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and top-level name of every import in the tree."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name.split(".")[0]) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            yield node.lineno, node.module.split(".")[0]


def allowed(name: Path) -> set[str]:
    """The packages that this file of a package may import."""
    more = {"simulator"} if str(name).startswith(OF_SIMULATOR) else set()
    return ALLOWED[name.parts[0]] | more


def python_faults(path: Path) -> Iterator[str]:
    """Faults of one Python file."""
    text = path.read_text(encoding="utf-8")
    name = path.relative_to(ROOT)
    package = name.parts[0]
    tree = ast.parse(text)
    for line, target in imported(tree):
        if package in ALLOWED and target in PACKAGES and target not in allowed(name):
            yield (
                f"{name}:{line}: {package} must not import {target}: imports go one way "
                "(CONTRIBUTING.md)"
            )
    if text.count("\n") > MAX_PY_FILE and GENERATED not in (ast.get_docstring(tree) or ""):
        yield f"{name}: {text.count(chr(10))} lines, the limit is {MAX_PY_FILE}"
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > MAX_PY_FUNCTION:
                yield (
                    f"{name}:{node.lineno}: {node.name} has {length} lines, the limit is "
                    f"{MAX_PY_FUNCTION}"
                )


def c_faults(path: Path) -> Iterator[str]:
    """Faults of one C file: its length, and its functions (a line in column 0 that ends with a
    brace).
    """
    name = path.relative_to(ROOT)
    lines = path.read_text(encoding="utf-8").splitlines()
    if len(lines) > MAX_C_FILE:
        yield f"{name}: {len(lines)} lines, the limit is {MAX_C_FILE}"
    start = 0
    for number, line in enumerate(lines, 1):
        if line == "{" or re.match(r"[A-Za-z_].*\)\s*{$", line):
            start = number
        elif line == "}" and start:
            if number - start > MAX_C_FUNCTION:
                yield (
                    f"{name}:{start}: a function of {number - start} lines, the limit is "
                    f"{MAX_C_FUNCTION}"
                )
            start = 0


def twin_faults(tests: Path) -> Iterator[str]:
    """Test files of one name: pytest imports by the name alone and would collect neither of
    them.
    """
    seen: dict[str, Path] = {}
    for path in sorted(tests.rglob("test_*.py")):
        other = seen.setdefault(path.name, path)
        if other != path:
            yield f"{path}: {other} has the same name, pytest can collect only one of them"


def faults() -> Iterator[str]:
    """All faults of the tree."""
    yield from twin_faults(ROOT / "tests")
    for package in (*PACKAGES, "tests", "tools"):
        for path in sorted((ROOT / package).rglob("*.py")):
            yield from python_faults(path)
    for package in ("enforcer", "simulator", "slurm_plugin", "gres", "bench", "tests"):
        for path in sorted((*(ROOT / package).rglob("*.c"), *(ROOT / package).rglob("*.h"))):
            yield from c_faults(path)


def main() -> int:
    """Print the faults; 1 if there are any."""
    found = list(faults())
    for fault in found:
        print(fault)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
