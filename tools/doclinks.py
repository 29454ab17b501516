"""Checks that each relative link of a tracked Markdown file leads to a file, and to a heading if it
names one.

Exit status 1 and one line per fault. Run by `make lint`.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LINK = re.compile(r"\]\(([^)\s]+)\)|^\[[^\]]+\]: (\S+)", re.M)
CODE = re.compile(r"^```.*?^```", re.M | re.S)
OUTSIDE = re.compile(r"[a-z]+:", re.I)  # https:, mailto:


def pages(root: Path) -> list[Path]:
    """The tracked Markdown files."""
    command = ["git", "-C", str(root), "ls-files", "-z", "--", "*.md"]
    names = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return [root / name for name in names.split("\0") if name and (root / name).is_file()]


def anchor(heading: str) -> str:
    """The name that a heading has in links, as GitHub makes it."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading.strip().lower())
    return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")


def anchors(page: Path) -> set[str]:
    """All headings of a page, as links name them."""
    lines = CODE.sub("", page.read_text(encoding="utf-8")).splitlines()
    return {anchor(line.lstrip("#")) for line in lines if line.startswith("#")}


def faults(page: Path) -> Iterator[str]:
    """Links of one page that lead nowhere."""
    for match in LINK.finditer(CODE.sub("", page.read_text(encoding="utf-8"))):
        link = match[1] or match[2]
        path, _, heading = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if OUTSIDE.match(link):
            continue
        if not target.exists():
            yield f"{link}: there is no such file"
        elif heading and target.suffix == ".md" and heading not in anchors(target):
            yield f"{link}: that page has no such heading"


def main(root: Path = ROOT) -> int:
    """Print all faults."""
    found = [f"{page.relative_to(root)}: {fault}" for page in pages(root) for fault in faults(page)]
    print("\n".join(found), end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
