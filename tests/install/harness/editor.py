"""What an admin does with an editor: the lines that `qgpu setup` lists, and nothing else."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

from harness.machine import Machine


def follow(host: Machine, role: str) -> list[dict[str, Any]]:
    """Do on a host what `qgpu setup` lists there; returns the list. Asserts that nothing is left
    then.
    """
    ask = f"qgpu setup --role {role} --json"
    found: list[dict[str, Any]] = json.loads(host.run(ask, check=False).out)["differences"]
    write(host, found)
    left = json.loads(host.run(ask, check=False).out)["differences"]
    assert left == [], f"{host.name}: after all that qgpu setup asked for it asks for {left}"
    return found


def write(host: Machine, found: list[dict[str, Any]]) -> None:
    """Write the lines of some differences into the host's files; run what is to be run."""
    files: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for each in found:
        if each["action"] == "run":
            host.run(each["write"])
        else:
            files[each["file"]].append(each)
    for file, wanted in files.items():
        _edit(host.inside(file), wanted)


def _edit(file: Path, wanted: list[dict[str, Any]]) -> None:
    lines: list[str | None] = list(file.read_text().splitlines()) if file.exists() else []
    for each in wanted:
        if each["action"] == "add":
            lines.append(each["write"])
        else:
            lines[each["line"] - 1] = each["write"] if each["action"] == "replace" else None
    file.write_text("".join(f"{line}\n" for line in lines if line is not None))
