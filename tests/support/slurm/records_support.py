"""Slurm's part in tests of what we read: the output of a call of sacct, squeue or sinfo."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from slurm_plugin.records import Columns

MARK = re.compile(r"<[0-9a-f]{32}>")
Row = Mapping[str, str]


def columns(command: Sequence[str]) -> Columns:
    """What a call asks for."""
    found = MARK.search(" ".join(command))
    assert found is not None, f"{command} has no mark"
    end = found[0]
    for word in command:
        if word.startswith("--format="):
            return Columns(tuple(word.removeprefix("--format=").split(",")), end)
    flag = "-O" if "-O" in command else "-o"
    names = command[command.index(flag) + 1].split(end)[:-1]
    return Columns(tuple(name.lstrip(",") for name in names), end)


def answer(command: Sequence[str], rows: Iterable[Row]) -> str:
    """The output for these rows; a field that a row lacks is empty, a width pads and cuts."""
    asked = columns(command)
    lines = []
    for row in rows:
        values = []
        for name in asked.names:
            word, _, width = name.partition(":")
            value = row.get(word, "")
            values.append(value[: int(width)].ljust(int(width)) if width else value)
        lines.append("".join(value + asked.end for value in values) + "\n")
    return "".join(lines)


def recorded(text: str) -> list[dict[str, str]]:
    """Rows of what `sacct -P` printed: a header, and lines of which only the last field has a |."""
    header, *lines = [line for line in text.split("\n") if line]
    names = header.split("|")
    return [dict(zip(names, line.split("|", len(names) - 1), strict=True)) for line in lines]


def sacct(rows: Sequence[Row]) -> Callable[[Sequence[str]], str]:
    """A sacct that has these jobs; rows of steps are left out by -X."""

    def run(command: Sequence[str]) -> str:
        found = [row for row in rows if "-X" not in command or "." not in row["JobIDRaw"]]
        if "-j" not in command:
            return answer(command, found)
        asked = set(command[command.index("-j") + 1].split(","))
        return answer(command, [row for row in found if asked & _numbers(row)])

    return run


def _numbers(row: Row) -> set[str]:
    job = row.get("JobID", row["JobIDRaw"])
    return {row["JobIDRaw"].split(".")[0], job, job.split("_")[0]}
