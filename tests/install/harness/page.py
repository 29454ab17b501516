"""The command blocks of docs/install.md: what the test runs is what the page shows.

A block that is run begins with ```sh on=WHERE, where WHERE is one of PLACES (site.py), or build;
`as=USER` runs it as that user. A block that begins with ```output right behind it is what the
command prints; a line `...` in it stands for any lines, and `...` within a line for any text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from harness.trees import CHECKOUT

FILE = CHECKOUT / "docs/install.md"
_FENCE = re.compile(r"^```(.*)$")
_HEADING = re.compile(r"^#+ (.*)$")


@dataclass
class Block:
    """One fenced block. `on` is empty where it is not run; `shown` is the output below it, None
    without one.
    """

    section: str
    line: int
    words: list[str]
    text: str
    shown: str | None = None

    def word(self, name: str) -> str:
        """The value of NAME=VALUE behind the fence; empty without it."""
        return next(
            (word.split("=", 1)[1] for word in self.words if word.startswith(f"{name}=")), ""
        )

    @property
    def on(self) -> str:
        """Where it is run."""
        return self.word("on")

    @property
    def edits(self) -> bool:
        """Whether the reader writes the lines that the command lists."""
        return self.word("then") == "write-what-it-lists"

    @property
    def user(self) -> str:
        """Who runs it."""
        return self.word("as") or "root"

    def commands(self) -> list[str]:
        """The commands of the block: continued lines are one, a here-document belongs to its
        command.
        """
        found: list[str] = []
        lines = iter(self.text.splitlines())
        for line in lines:
            if not line.strip() or line.lstrip().startswith("#"):
                continue
            found.append(_whole(line, lines))
        return found


def _whole(line: str, lines: Iterator[str]) -> str:
    while line.endswith("\\"):
        line += "\n" + next(lines)
    if here := re.search(r"<<\s*'?(\w+)'?", line):
        for more in lines:
            line += "\n" + more
            if more == here[1]:
                break
    return line


def blocks(file: Path = FILE) -> list[Block]:
    """All `sh` blocks of the page, in order."""
    found: list[Block] = []
    section, fence, body, begin = "", None, [], 0
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        if mark := _FENCE.match(line):
            if fence is None:
                fence, body, begin = mark[1].split(), [], number
                continue
            _end(found, Block(section, begin, fence, "\n".join(body) + "\n"))
            fence = None
        elif fence is not None:
            body.append(line)
        elif heading := _HEADING.match(line):
            section = heading[1]
    return found


def _end(found: list[Block], block: Block) -> None:
    if block.words[:1] == ["output"]:
        found[-1].shown = block.text
    elif block.words[:1] == ["sh"]:
        found.append(block)


def shows(shown: str, real: str) -> bool:
    """Whether a command's output is what the page shows; spaces at the ends of lines and empty
    lines do not count.
    """
    lines = [line.strip() for line in shown.splitlines() if line.strip()]
    pattern = "".join(r"(?:.*\n)*" if line == "..." else _line(line) for line in lines)
    plain = "".join(f"{line.strip()}\n" for line in real.splitlines() if line.strip())
    return re.fullmatch(pattern, plain) is not None


def _line(line: str) -> str:
    words = [".*".join(re.escape(part) for part in word.split("...")) for word in line.split()]
    return r"\s+".join(words) + r"\n"
