"""Writes docs/specs/constants.md: each number of scheduling with unit, reason and evidence, from
the comment that stands directly before it.

    constants.py            writes the page
    constants.py --check    writes nothing; one sentence and exit status 1 for each constant without
                            unit, reason or evidence, and for a page that differs from the sources

Run by `make layouts` and `make lint`. The form of a comment, the units and the kinds of evidence
are in the page itself.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import layouts
from pycparser import c_parser

ROOT = Path(__file__).resolve().parent.parent
PAGE = "docs/specs/constants.md"
NATIVE = "enforcer/native"
# A heading of the page, and the files below it.
GROUPS = {
    "arbiter/policy": ("arbiter/policy/*.[ch]",),
    "arbiter/observe": ("arbiter/observe/*.[ch]",),
    "arbiter/card": ("arbiter/card/*.[ch]",),
    "shim/window": ("shim/window/*.[ch]", "shim/base/estimate.[ch]"),
    "shim/gate": ("shim/gate/*.[ch]",),
    "shim/track": ("shim/track/*.[ch]",),
    "shim/hooks/copy": ("shim/hooks/copy/copy.h", "shim/hooks/copy/small_copies.c"),
}
UNITS = {
    "ns": "nanoseconds of the clock",
    "ns of card time": "nanoseconds for which work has the card",
    "us": "microseconds",
    "us of card time": "the same",
    "ms": "milliseconds",
    "bytes": "",
    "bytes of host link": "time of the card, as what the host link copies in it",
    "bytes per us": "speed of a copy",
    "bits": "width of a field, or of a shift",
    "count": "how many",
    "percent": "",
    "times": "a multiple of something",
    "1/n": "a part of something",
    "mark": "no size: a sentinel, a flag, an index or a mask",
}
# What it means, and whether it needs a source.
EVIDENCE = {
    "promise": ("it follows from what this page promises", True),
    "protocol": ("it follows from what the other side does", True),
    "decision": ("this page argues for it", True),
    "attack": ("this test plays the attack that it answers", True),
    "measured": ("this page has its figure, of a machine or a card", True),
    "simulator": ("this page or commit has its figure, of simulated cards", True),
    "bound": ("it bounds memory, CPU time or what a job may claim; the size matters little", False),
    "none": ("chosen, and nothing was measured", False),
}
DEFINE = re.compile(r"^#[ \t]*define[ \t]+(\w+)(\([^)]*\))?((?:[^\n]*\\\n)*[^\n]*)$", re.MULTILINE)
CONST = re.compile(r"^(?:static )?const [\w ]+?(\w+) = ([^;]+);", re.MULTILINE)
ENUM = re.compile(r"^enum(?: \w+)? \{([^}]*)\}", re.MULTILINE)
ENTRY = re.compile(r"(\w+)\s*(?:=\s*([^,]+?))?\s*(?:,|$)")
REMARK = re.compile(r"/\*.*?\*/", re.DOTALL)
BEFORE = re.compile(r"[ \t]*/\*((?:(?!\*/).)*)\*/[ \t]*\n\Z", re.DOTALL)
NUMBER = re.compile(r"(?<![\w.])(?:0[xX][0-9a-fA-F]+|\d+)")
FORM = "/* <unit>: <reason>. Evidence: <kind> (<source>). */"
KNOWN = {"UINT64_MAX": "18446744073709551615", "UINT32_MAX": "4294967295"}
TYPES = "typedef unsigned long uint64_t; typedef long int64_t; typedef unsigned uint32_t;\n"


class Fault(Exception):
    """A constant that the page cannot show; the text is a sentence without the place."""


@dataclass(frozen=True)
class Found:
    """A definition as the file has it. `code`: not only a number may stand there."""

    line: int
    name: str
    text: str
    comment: str
    code: bool


@dataclass(frozen=True)
class Constant:
    """One row of the page."""

    group: str
    file: str
    name: str
    value: int
    unit: str
    reason: str
    kind: str
    source: str


def files(patterns: tuple[str, ...]) -> list[Path]:
    """The files of a group, in the order of the page."""
    return sorted(path for one in patterns for path in (ROOT / NATIVE).glob(one))


def comment_before(text: str, at: int) -> str:
    """The comment directly before this place, as one line; empty if there is none."""
    start = text.rfind("\n", 0, max(0, text.rfind("/*", 0, at))) + 1
    found = BEFORE.match(text, start, at)
    return " ".join(re.sub(r"^\s*\*", "", found[1], flags=re.MULTILINE).split()) if found else ""


def entries(text: str) -> Iterator[tuple[int, str, str]]:
    """Place, name and value of each enumerator that is more than a name: it does not just count
    on.
    """
    for enum in ENUM.finditer(text):
        body = REMARK.sub(lambda remark: " " * len(remark[0]), enum[1])
        for number, entry in enumerate(ENTRY.finditer(body)):
            if entry[2] and entry[2].strip() != str(number):
                yield enum.start(1) + entry.start(), entry[1], entry[2]


def definitions(text: str) -> Iterator[Found]:
    """Everything in a file that may be a constant."""
    places = [(m.start(), m[1], m[3], bool(m[2])) for m in DEFINE.finditer(text)]
    places += [(m.start(), m[1], m[2], False) for m in CONST.finditer(text)]
    places += [(at, name, value, False) for at, name, value in entries(text)]
    for at, name, value, code in sorted(places):
        plain = REMARK.sub(" ", value).replace("\\\n", " ").strip()
        line = text.count("\n", 0, at) + 1
        start = text.rfind("\n", 0, at) + 1
        yield Found(line, name, plain, comment_before(text, start), code)


def expanded(text: str, names: Mapping[str, str]) -> str:
    """The text with each known name replaced by what it stands for."""
    for _ in range(10):
        text = re.sub(
            r"\b[A-Za-z_]\w*", lambda m: f"({names[m[0]]})" if m[0] in names else m[0], text
        )
    return text


def value_of(found: Found, names: Mapping[str, str]) -> int | None:
    """The number; None if it is none. Raises Fault if a number hides in it."""
    if not found.code and found.text:
        try:
            source = f"{TYPES}long value = {expanded(found.text, names)};"
            value = layouts.evaluate(c_parser.CParser().parse(source).ext[-1].init, {})
        except (c_parser.ParseError, layouts.NotConstant):
            pass
        else:
            return value if isinstance(value, int) else None
    if any(int(number, 0) > 1 for number in NUMBER.findall(found.text)):
        raise Fault("has a number in a text that is no constant: give that number a name")
    return None


def described(group: str, file: str, found: Found, value: int) -> Constant:
    """The row of a constant, from its comment. Raises Fault."""
    if not found.comment:
        raise Fault(f"has no comment of its own directly before it: write {FORM}")
    unit, _, rest = found.comment.partition(": ")
    if unit not in UNITS:
        raise Fault(f'has the unit "{unit[:30]}": begin its comment with {", ".join(UNITS)}')
    reason, says, evidence = rest.rpartition("Evidence: ")
    if not says:
        raise Fault(f"has no evidence: end its comment with Evidence: {', '.join(EVIDENCE)}")
    if not reason.strip().endswith("."):
        raise Fault(f"has no reason: say in a sentence what it is for, as in {FORM}")
    kind, _, source = evidence.removesuffix(".").partition(" (")
    if kind not in EVIDENCE:
        raise Fault(f'has the evidence "{kind}": write one of {", ".join(EVIDENCE)}')
    if EVIDENCE[kind][1] and not source.endswith(")"):
        raise Fault(f"names no source of its evidence: write {kind} (page, ADR or commit)")
    source = source.removesuffix(")")
    for part in source.split(", "):
        if part.startswith("ADR") and not decision(part):
            raise Fault(f"names {part}, which is no page of docs/adr")
    return Constant(group, file, found.name, value, unit, reason.strip(), kind, source)


def known_names() -> dict[str, str]:
    """What each macro of the native headers stands for."""
    names = dict(KNOWN)
    for header in sorted((ROOT / NATIVE).rglob("*.h")):
        text = header.read_text(encoding="utf-8")
        names.update({found.name: found.text for found in definitions(text) if not found.code})
    return {name: text for name, text in names.items() if text}


def read() -> tuple[list[Constant], list[str]]:
    """All constants in the order of the page, and a sentence for each that it cannot show."""
    rows, faults, headers = [], [], known_names()
    for group, patterns in GROUPS.items():
        for path in files(patterns):
            name = str(path.relative_to(ROOT))
            found = list(definitions(path.read_text(encoding="utf-8")))
            names = headers | {one.name: one.text for one in found if one.text and not one.code}
            for one in found:
                try:
                    if (value := value_of(one, names)) is not None:
                        rows.append(described(group, name, one, value))
                except Fault as fault:
                    faults.append(f"{name}:{one.line}: {one.name} {fault}")
    return rows, faults


def shown(value: int) -> str:
    """The value as a person reads it."""
    if value >= 1 << 16 and not value & (value - 1):
        return f"2^{value.bit_length() - 1}"
    if value >= 1 << 16 and not value & (value + 1):
        return f"2^{value.bit_length()} - 1"
    return f"{value:,}".replace(",", " ")


def decision(source: str) -> Path | None:
    """The page of a decision, if this is one."""
    found = re.fullmatch(r"ADR (\d+)", source)
    return next((ROOT / "docs/adr").glob(f"{int(found[1]):04}-*.md"), None) if found else None


def linked(source: str) -> str:
    """The sources of evidence, as links from the page."""
    parts = []
    for part in source.split(", "):
        if page := decision(part):
            parts.append(f"[{part}](../adr/{page.name})")
        elif part.startswith("docs/"):
            place = part.removeprefix("docs/")
            parts.append(
                f"[{Path(part).name}]"
                f"({place.removeprefix('specs/') if place.startswith('specs/') else '../' + place})"
            )
        else:
            parts.append(f"`{part}`" if "." in part else part)
    return ", ".join(parts)


def table(head: str, rows: list[list[str]]) -> str:
    """A table of Markdown."""
    titles = head.split("|")
    lines = [titles, ["---"] * len(titles), *rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def counts(rows: list[Constant]) -> str:
    """How many constants each group has, by evidence. Marks have no size and do not count."""
    lines = []
    for group in [*GROUPS, "all"]:
        own = [row for row in rows if group in (row.group, "all")]
        kinds = Counter(row.kind for row in own if row.unit != "mark")
        numbers = [kinds.total(), *(kinds[kind] for kind in EVIDENCE)]
        lines.append([group, *map(str, numbers), str(len(own) - kinds.total())])
    return table("|".join(["files", "constants", *EVIDENCE, "marks"]), lines)


def page_text(rows: list[Constant]) -> str:
    """The page."""
    text = "# Constants of scheduling\n\n"
    text += "Generated by `make layouts` from the comments of the sources: edit those.\n\n"
    text += f"Below `{NATIVE}/`. Marks are not counted: they have no size.\n"
    text += f"\n{counts(rows)}\n"
    text += "A comment directly before each constant has this form, on one line or several:\n\n"
    text += f"    {FORM}\n\n"
    text += table("unit|means", [[unit, means or "as it says"] for unit, means in UNITS.items()])
    text += "\n" + table("evidence|means", [[kind, means] for kind, (means, _) in EVIDENCE.items()])
    files_of = dict.fromkeys((row.group, row.file) for row in rows)
    for group in dict.fromkeys(group for group, _ in files_of):
        text += f"\n## {group}\n"
        for file in (file for of, file in files_of if of == group):
            cells = [
                [
                    f"`{row.name}`",
                    shown(row.value),
                    row.unit,
                    row.reason.replace("|", "\\|"),
                    row.kind + (f" ({linked(row.source)})" if row.source else ""),
                ]
                for row in rows
                if row.file == file
            ]
            text += f"\n### {Path(file).name}\n\n"
            text += table("constant|value|unit|reason|evidence", cells)
    return text


def main(arguments: list[str]) -> int:
    """Write the page, or only say what is wrong."""
    rows, faults = read()
    text, page = page_text(rows), ROOT / PAGE
    print("\n".join(faults), end="\n" if faults else "")
    if faults:
        return 1
    if page.exists() and page.read_text(encoding="utf-8") == text:
        return 0
    if arguments == ["--check"]:
        print(f"{PAGE} differs from the sources: run `make layouts` and commit the page")
        return 1
    page.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
