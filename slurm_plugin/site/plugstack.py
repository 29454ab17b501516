"""Reads plugstack.conf as Slurm does: words at blanks, no continuation, `include` takes patterns.
Pure.
"""

from __future__ import annotations

import posixpath
from dataclasses import dataclass, field

from slurm_plugin.site.conf import MAX_DEPTH, MAX_FILES, Fault, Include, Source, read_text, shown

_KINDS = ("required", "optional")


@dataclass(frozen=True)
class PluginLine:
    """One plugin of the stack, its arguments in order, and where its line is."""

    kind: str
    plugin: str
    arguments: tuple[str, ...]
    file: str
    line: int

    @property
    def place(self) -> str:
        """FILE:LINE."""
        return f"{self.file}:{self.line}"

    def argument(self, key: str) -> str | None:
        """The value of KEY=VALUE among the arguments; the last one counts, None without one."""
        found = [word.partition("=")[2] for word in self.arguments if word.startswith(f"{key}=")]
        return found[-1] if found else None


@dataclass
class Plugstack:
    """The plugins in the order in which Slurm loads them."""

    path: str
    plugins: list[PluginLine] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    includes: list[Include] = field(default_factory=list)
    files: list[str] = field(default_factory=list)


def parse_plugstack(path: str, source: Source) -> Plugstack:
    """Read plugstack.conf with its includes. A missing file is empty to Slurm, and no fault."""
    stack = Plugstack(path)
    _read(stack, source, path, ())
    return stack


def _read(stack: Plugstack, source: Source, path: str, above: tuple[str, ...]) -> None:
    if len(stack.files) >= MAX_FILES:
        stack.faults.append(
            Fault(path, 0, f"more than {MAX_FILES} files are included; it is left out")
        )
        return
    text, wrong = read_text(source, path)
    if wrong:
        if wrong != "there is no such file":
            stack.faults.append(Fault(path, 0, wrong))
        return
    stack.files.append(path)
    for number, raw in enumerate(text.split("\n"), 1):
        words = raw.partition("#")[0].replace("\t", " ").split(" ")
        words = [word for word in words if word]
        if words:
            _line(stack, source, (path, number), words, (*above, path))


def _line(
    stack: Plugstack,
    source: Source,
    place: tuple[str, int],
    words: list[str],
    chain: tuple[str, ...],
) -> None:
    path, number = place
    kind = words[0]
    if kind not in (*_KINDS, "include"):
        text = (
            f"'{shown(kind)}' is none of required, optional and include, so Slurm ignores the line"
        )
        stack.faults.append(Fault(path, number, text))
    elif len(words) < 2:
        stack.faults.append(
            Fault(path, number, f"'{kind}' names no file, so Slurm ignores the line")
        )
    elif kind == "include":
        _include(stack, source, place, words[1], chain)
    else:
        stack.plugins.append(PluginLine(kind, words[1], tuple(words[2:]), path, number))


def _include(
    stack: Plugstack, source: Source, place: tuple[str, int], word: str, chain: tuple[str, ...]
) -> None:
    path, number = place
    pattern = posixpath.join(posixpath.dirname(path), word)
    targets = source.glob(pattern)
    stack.includes.append(Include(word, pattern, path, number))
    for target in targets:
        if target in chain:
            stack.faults.append(Fault(path, number, f"{shown(target)} includes itself"))
        elif len(chain) >= MAX_DEPTH:
            text = f"includes are nested more than {MAX_DEPTH} deep; {shown(target)} is left out"
            stack.faults.append(Fault(path, number, text))
        else:
            _read(stack, source, target, chain)
