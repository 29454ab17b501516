"""A program that is captured anew has the kernels of its file in bench/worlds/programs/."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bench.worlds.capture import LOADS, capture
from bench.worlds.programs import HERE, Captured, read


def kernels(one: Captured) -> list[int]:
    """The length of each kernel. Gaps are another machine's, or another moment's."""
    return [row.ns for row in one.rows for _ in range(row.kernels)]


@pytest.mark.parametrize("name", ["train", "infer", "signals", "jitted"])
def test_the_kernels_are_those_of_the_file(environments: set[str], name: str) -> None:
    load = LOADS[name]
    if load.environment not in environments:
        pytest.skip(f"{load.environment} is not installed: tools/frameworks.sh {load.environment}")
    found = capture(name, replace(load, passes=load.kept + 20))
    had, wanted = kernels(found), kernels(read(HERE / f"{name}.json"))
    assert len(wanted) - len(had) in (0, 1), "the last one may be submitted as the next pass begins"
    assert had == wanted[: len(had)]
