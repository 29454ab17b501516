"""Threads that take and return memory of every kind at once, plain and under each sanitizer."""

from __future__ import annotations

from pathlib import Path

import pytest
from shim_memory_support import Program, node

pytestmark = pytest.mark.native
TURNS = 300


def counts(program: Program) -> list[tuple[int, int]]:
    """What each thread was given and refused, after its end."""
    assert program.process.stdout
    out, error = program.process.communicate(timeout=60)
    assert program.process.returncode == 0, (program.process.returncode, error)
    assert all(line.startswith("qgpu: ") for line in error.splitlines()), error
    return [(int(given), int(refused)) for given, refused in map(str.split, out.splitlines())]


@pytest.mark.parametrize("sanitizer", ["", "tsan", "asan"], ids=["plain", "tsan", "asan"])
def test_every_kind_from_many_threads(tmp_path: Path, sanitizer: str) -> None:
    """At rest after each of two rounds ledger and card say that all was returned."""
    with node(tmp_path) as running:
        program = running.run("mem_threads", str(TURNS), sanitizer=sanitizer)
        for step in ("begin", "first", "second"):
            program.pass_by(step, 0)
        each = counts(program)
    given, refused = map(sum, zip(*each, strict=True))
    assert len(each) == 8 and all(count > TURNS for count, _ in each), each
    assert refused, "no two of them ever wanted more than there is: the cap was not part of this"
    assert given > refused
