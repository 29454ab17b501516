"""Checks that no line of a tracked file is longer than 100 columns: pages, rows of their tables
included, and the text that neither ruff nor clang-format measures.

Free are words that cannot be broken (addresses), what a template writes as it is, and what a
program wrote: tables (.tsv), locked versions (.lock) and pages of measured figures. Exit status 1
and one line per fault. Run by `make lint`.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MAX_COLUMNS = 100
# Pages that a benchmark wrote have their date as name.
MEASURED = re.compile(r"docs/measurements/\d[^/]*\.md")
PAGES = ("*.md",)
# Of C the formatter breaks neither comments nor strings.
SOURCES = ("*.lua", "*.sh", "*.mk", "*Makefile", "*.yaml", "*.yml", "*.toml", "*.c", "*.h", "*.S")
TEMPLATES = ("*.j2",)
ADDRESS = re.compile(r"\w+://[^\s<>\"']+")
# Of a template: its comments, and its statements and expressions, in whose strings braces may be.
TAG = re.compile(r"""\{\#.*?\#\}|\{(?:%|\{)(?:'[^']*'|"[^"]*"|[^'"])*?(?:%|\})\}""", re.DOTALL)


def tracked(root: Path, patterns: tuple[str, ...]) -> list[str]:
    """Names of the tracked files of these kinds."""
    command = ["git", "-C", str(root), "ls-files", "-z", "--", *patterns]
    names = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return [name for name in names.split("\0") if name and not MEASURED.fullmatch(name)]


def written(text: str) -> set[int]:
    """Numbers of a template's lines with text that it writes as it is. A break would be written,
    too.
    """
    rest = TAG.sub(lambda tag: "\n" * tag[0].count("\n"), text)
    return {number for number, line in enumerate(rest.splitlines(), 1) if line.strip()}


def faults(name: str, text: str) -> Iterator[str]:
    """Lines of one file that are too long."""
    page = name.endswith(".md")
    free = written(text) if name.endswith(".j2") else set()
    for number, line in enumerate(text.splitlines(), 1):
        if len(line) <= MAX_COLUMNS or number in free:
            continue
        if page or len(ADDRESS.sub("", line)) > MAX_COLUMNS:
            yield f"{name}:{number}: {len(line)} columns, the limit is {MAX_COLUMNS}"


def main(root: Path = ROOT) -> int:
    """Print all faults."""
    found = [
        fault
        for name in tracked(root, PAGES + SOURCES + TEMPLATES)
        if (root / name).is_file()
        for fault in faults(name, (root / name).read_text(encoding="utf-8"))
    ]
    print("\n".join(found), end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
