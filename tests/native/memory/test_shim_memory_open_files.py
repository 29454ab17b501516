"""Memory that is exported as a character device, as NVIDIA's driver does: it is paid once, since
the open file behind a descriptor tells whose it is (docs/adr/0029).
"""

from __future__ import annotations

from pathlib import Path

import pytest
from shim_memory_support import MIB, Node, Program, node

pytestmark = pytest.mark.native


@pytest.fixture(autouse=True)
def _devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QGPU_SIM_EXPORTS", "device")


def made(running: Node, sanitizer: str = "") -> tuple[Program, str]:
    """A program that exported 32 and 64 MiB, and the number of the second one's descriptor."""
    maker = running.run("mem_open_file", "make", sanitizer=sanitizer)
    maker.at("begin")
    maker.on()
    number = maker.line()
    assert maker.at("made") == 96 * MIB
    return maker, number


def received(running: Node, maker: Program, number: str, then: str, sanitizer: str = "") -> Program:
    """A program that got the descriptor, but has not imported it."""
    words = ("mem_open_file", then, number, str(maker.process.pid))
    other = running.run(*words, sanitizer=sanitizer)
    other.at("begin")
    other.on()
    other.at("received")
    return other


def step(program: Program, name: str) -> int:
    """The next step; what the program is charged there."""
    program.on()
    program.at(name)
    return program.used() // MIB


@pytest.mark.parametrize("sanitizer", ["", "asan"], ids=["plain", "asan"])
def test_who_imports_after_the_number_was_closed_pays_nothing(
    tmp_path: Path, sanitizer: str
) -> None:
    """An importer used to pay beside the maker. It takes the right one of two that look alike:
    the maker stays charged for that while it is used.
    """
    with node(tmp_path) as running:
        maker, number = made(running, sanitizer)
        takers = [received(running, maker, number, "take", sanitizer) for _ in range(2)]
        assert step(maker, "numbers_closed") == 96
        assert [step(taker, "taken") for taker in takers] == [0, 0]
        assert step(maker, "let_go") == 96
        assert running.shared_on_card(contexts=3) == 96 * MIB
        assert [step(taker, "closed") for taker in takers] == [0, 0]
        running.until(lambda: maker.used() == 32 * MIB)
        assert running.shared_on_card(contexts=3) == 32 * MIB
        assert step(maker, "end") == 0


def test_descriptor_that_others_hold_keeps_its_memory_charged(tmp_path: Path) -> None:
    """The maker has closed its number and released the memory, which lives in a descriptor that
    was sent: it used to be charged to no process then.
    """
    with node(tmp_path) as running:
        maker, number = made(running)
        holder = received(running, maker, number, "hold")
        assert step(maker, "numbers_closed") == 96
        assert step(maker, "let_go") == 96
        assert step(holder, "dropped") == 0
        running.until(lambda: maker.used() == 32 * MIB)


def test_who_cannot_look_at_the_maker_pays(tmp_path: Path) -> None:
    """Not the same open file: an importer of a descriptor that the job did not export."""
    with node(tmp_path) as running:
        outside = running.run("mem_open_file", "make", governed=False)
        outside.at("begin")
        outside.on()
        number = outside.line()
        outside.at("made")
        made(running)
        taker = received(running, outside, number, "take")
        assert step(taker, "taken") == 64
        assert step(taker, "closed") == 0


def test_epoll_of_the_program_at_the_number_of_ours_is_left_alone(tmp_path: Path) -> None:
    """A program may close all descriptors; what it then opens must not get our entries."""
    with node(tmp_path) as running:
        program = running.run("mem_open_file", "replace")
        program.at("begin")
        program.on()
        program.pass_by("replaced", 32 * MIB)
        program.at("end")
