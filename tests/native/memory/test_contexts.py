"""A context is admitted before it is made, at what the gate page says that one costs."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import shim_support as s
from shim_memory_support import MIB, Node, Program, node

pytestmark = pytest.mark.native

COST = 40 * MIB
OUT_OF_MEMORY = "2"
SCRIPT = Path(__file__).parents[2] / "support/shim/context_program.py"


class Contexts:
    """The program of SCRIPT, and what its slot says."""

    def __init__(self, running: Node, sanitizer: str = "") -> None:
        self.card = running.arbiter.card
        preload = {"LD_PRELOAD": str(s.SHIM)}
        self.program = Program(running, [sys.executable, str(SCRIPT)], preload)
        running.programs.append(self.program)
        assert self.program.line() == "0"
        running.until(lambda: self.program.process.pid in running.arbiter.slots)
        running.arbiter.name_slot(self.program.process.pid)
        self.slot = running.arbiter.slot_of(self.program.process.pid)

    def __getattr__(self, order: str):  # type: ignore[no-untyped-def]
        def told() -> str:
            assert self.program.process.stdin
            self.program.process.stdin.write(order + "\n")
            self.program.process.stdin.flush()
            return self.program.line()

        return told

    def held(self) -> tuple[int, int, int]:
        """MiB in use, MiB of that for contexts, and their number."""
        assert self.card.proc("mem_pending", self.slot) == 0
        used, reserved = (self.card.proc(f, self.slot) for f in ("mem_used", "mem_contexts"))
        return used // MIB, reserved // MIB, self.card.proc("made", self.slot)


def test_context_is_reserved_before_it_is_made_and_given_back_by_its_end(tmp_path: Path) -> None:
    with node(tmp_path, cap=100 * MIB) as running:
        running.arbiter.card.gate_page.mem_context = COST
        program = Contexts(running)
        assert program.held() == (0, 0, 0)
        assert program.create() == "0" and program.held() == (40, 40, 1)
        assert program.info() == "60 100", "right from the first call on"
        assert program.create() == "0" and program.alloc() == "0"
        assert program.held() == (81, 80, 2)
        assert program.create() == OUT_OF_MEMORY and program.held() == (81, 80, 2)
        assert program.destroy() == "0" and program.held() == (40, 40, 1), "with its memory"
        assert program.create() == "0" and program.held() == (80, 80, 2)
        assert program.destroy() == program.destroy() == "0" and program.held() == (0, 0, 0)
        error = program.program.end()
        assert "context of 40.0 MiB refused: job 4711 holds 81.0 of 100.0 MiB" in error


def test_primary_context_is_reserved_once_and_ends_with_its_last_release(tmp_path: Path) -> None:
    with node(tmp_path, cap=100 * MIB) as running:
        running.arbiter.card.gate_page.mem_context = COST
        program = Contexts(running)
        assert program.retain() == program.retain() == "0" and program.held() == (40, 40, 1)
        assert program.release() == "0" and program.held() == (40, 40, 1)
        assert program.release() == "0" and program.held() == (0, 0, 0)
        assert program.retain() == program.retain() == "0"
        assert program.reset() == "0" and program.held() == (0, 0, 0)
        assert program.retain() == "0" and program.held() == (40, 40, 1)
        running.arbiter.card.gate_page.mem_context = 61 * MIB
        assert program.create() == OUT_OF_MEMORY
        assert program.release() == "0" and program.create() == "0"
        assert program.retain() == OUT_OF_MEMORY and program.held() == (61, 61, 1)
        program.program.end()


def test_what_was_reserved_too_much_is_given_back_when_the_cost_is_known(tmp_path: Path) -> None:
    with node(tmp_path, cap=100 * MIB) as running:
        gate = running.arbiter.card.gate_page
        gate.mem_context = 50 * MIB
        program = Contexts(running)
        assert program.create() == program.create() == "0" and program.held() == (100, 100, 2)
        gate.mem_context = 30 * MIB  # measured: by the helper, or by the next allocation
        assert program.alloc() == "0"
        assert program.held() == (61, 60, 2)
        gate.mem_context = 45 * MIB  # what more they take is in mem_extra
        gate.mem_extra = 30 * MIB
        assert program.info() == "9 100" and program.held() == (61, 60, 2)
        assert program.destroy() == "0"
        assert program.held()[1:] == (30, 1)
        program.program.end()


@pytest.mark.parametrize(("cap", "fitting"), [(64, 1), (1024, 25)])
def test_contexts_of_many_processes_stay_below_the_cap_of_the_job(
    tmp_path: Path, cap: int, fitting: int
) -> None:
    with node(tmp_path, cap=cap * MIB) as running:
        running.arbiter.card.gate_page.mem_context = COST
        programs = [Contexts(running) for _ in range(fitting + 2)]
        answers = [program.create() for program in programs]
        assert answers == ["0"] * fitting + [OUT_OF_MEMORY] * 2
        running.kill(programs[0].program)
        assert programs[-1].create() == "0", "what the dead one had is free"


def test_child_reserves_nothing_of_its_own_and_takes_nothing_away(tmp_path: Path) -> None:
    with node(tmp_path, cap=100 * MIB) as running:
        running.arbiter.card.gate_page.mem_context = COST
        program = Contexts(running)
        assert program.create() == "0"
        assert program.fork() != "0", "CUDA does not survive a fork"
        assert program.held() == (40, 40, 1)
        program.program.end()


def test_process_that_is_not_registered_gets_no_context(tmp_path: Path) -> None:
    with node(tmp_path, cap=100 * MIB) as running:
        running.arbiter.status = 1  # EPERM
        program = Program(running, [sys.executable, str(SCRIPT)], {"LD_PRELOAD": str(s.SHIM)})
        running.programs.append(program)
        assert program.line() == "0"
        assert program.process.stdin
        program.process.stdin.write("retain\n")
        program.process.stdin.flush()
        assert program.line() == OUT_OF_MEMORY
        assert "no device memory: the arbiter of this node did not register" in program.end()
