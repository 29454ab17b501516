"""Checks that no line of a tracked Markdown file is longer than 100 columns, rows of tables included.

Exit status 1 and one line per fault. Run by `make lint`.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MAX_COLUMNS = 100
MEASURED = "docs/measurements/"  # pages that a benchmark wrote


def pages(root: Path) -> list[str]:
    """Names of the tracked Markdown files."""
    command = ["git", "-C", str(root), "ls-files", "-z", "--", "*.md"]
    names = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return [name for name in names.split("\0") if name and not name.startswith(MEASURED)]


def faults(name: str, text: str) -> Iterator[str]:
    """Lines of one page that are too long."""
    for number, line in enumerate(text.splitlines(), 1):
        if len(line) > MAX_COLUMNS:
            yield f"{name}:{number}: {len(line)} columns, the limit is {MAX_COLUMNS}"


def main(root: Path = ROOT) -> int:
    """Print all faults."""
    found = [
        fault
        for name in pages(root)
        if (root / name).is_file()
        for fault in faults(name, (root / name).read_text(encoding="utf-8"))
    ]
    print("\n".join(found), end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
