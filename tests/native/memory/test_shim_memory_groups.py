"""Every group of calls that take or return device memory: after each step ledger and simulated card
agree.

The numbers are MiB, exact: sizes are whole units of the card. A step's name says what the program
has just done (tests/native/programs/memory/mem_*.c).
"""

from __future__ import annotations

import signal
import threading
import time
from pathlib import Path

import pytest
import shim_support as s
from shim_memory_support import CONTEXT, MIB, Node, Program, node, walk

pytestmark = pytest.mark.native

POOL = """begin 0 first 32 fits 32 freed 32 waited 0 kept 64 again 64 kept_by_free 64
trimmed_nothing 64 trimmed 0 most 224 refused 224 served 224
gave_back 228 cap_free 0 own 64 current 64 destroyed 64 gone 0
by_place 64 piece_left 64 by_place_gone 0
in_domain 160 domain_refused 160 domain_default 192 domain_trimmed 32 domain_gone 0
host 0 host_more 0 host_freed 0 host_trimmed 0 host_cap 256 host_set 32
numa 0 numa_more 0 numa_freed 0 numa_trimmed 0 numa_cap 256
numa_destroyed 0 numa_gone 0 card_again 32
default 0 default_more 0 default_freed 0 default_trimmed 0 default_cap 256
captured 0 end 0"""
GRAPH = """begin 0 nodes 0 instantiated 0 launched 40 launched_again 40 destroyed 40 uploaded 60
refused 60 trimmed 0 nested 20 nested_gone 0 nested 20 nested_gone 0
with_params 50 with_params_gone 0
host_launched 0 host_and_card 20 host_gone 0 captured 0 captured_launched 30 gave_back 240 end 0"""
VMM = """begin 0 created 64 mapped_twice 64 unmapped_once 64 retained 64 released 0 range 48
range_gone 0 mixed 16 mixed_gone 0 left_over 32 left_over_gone 0
in_domain 192 domain_refused 192 domain_mapped 192 domain_gone 0 host_created 0 numa_created 0
host_gone 0 in_array 4 array_gone 0 team 0 bound 8 bound_by_address 24 bound_elsewhere 24
unbound 8 team_mapped 8 team_lives 8 team_gone 0 second_team_gone 0 part_bound 8 part_unbound 0"""
GREEN = """begin 0 in_green 16 pool_in_green 56 freed_in_green 8 green_gone 8 kept_freed 0 last 20
all_gone 0 green_again 24 reset 0"""
COUNTED = [("detached_once", 14), ("detached", 0), ("destroyed", 0)]
EXTERNAL = "begin 0 imported 64 buffer 64 destroyed 0 end 0"
PLAIN = """begin 0 alloc 64 managed 96 refused 96 full 256 free 0 v1_alloc 4 v1_pitch 8 v1_free 0
pitch 2 pitch_free 0 host 0 array 4 array_3d 36 mipmap 56 sparse 56 array_free 0"""


def steps(text: str) -> list[tuple[str, int]]:
    words = text.split()
    return [(name, int(mib)) for name, mib in zip(words[::2], words[1::2], strict=True)]


GROUPS = [
    ("mem_pool", POOL),
    ("mem_graph", GRAPH),
    ("mem_vmm", VMM),
    ("mem_share external", EXTERNAL),
]


@pytest.mark.parametrize(("program", "text"), GROUPS, ids=[name for name, _ in GROUPS])
@pytest.mark.parametrize("sanitizer", ["", "asan"], ids=["plain", "asan"])
def test_group(tmp_path: Path, program: str, text: str, sanitizer: str) -> None:
    error = walk(tmp_path, program, steps(text), sanitizer)
    assert error.count("qgpu: ") == 1  # each of them runs against the cap, and is told so once
    assert "of 256.0 MiB on this card" in error
    assert len(error.splitlines()) == 1, error  # a sanitizer would have more to say


def test_plain_memory_and_contexts(tmp_path: Path) -> None:
    with node(tmp_path) as running:
        program = running.run("mem_plain")
        for name, mib in steps(PLAIN):
            program.pass_by(name, mib * MIB)
        truth = program.at("second_context")
        assert (program.used(), truth) == (
            16 * MIB,
            16 * MIB + CONTEXT,
        )  # a context is NVML's to tell, not ours
        program.on()
        program.pass_by("context_gone", 0)
        assert "allocation of 161.0 MiB refused" in program.end()


def test_green_contexts_and_usage_counts(tmp_path: Path) -> None:
    """Green contexts' memory ends with the primary one; a context that was attached to, with its
    last detach.
    """
    with node(tmp_path) as running:
        program = running.run("mem_green")
        for name, mib in steps(GREEN):
            program.pass_by(name, mib * MIB)
        for name, mib in COUNTED:
            context = CONTEXT if mib else 0  # it is a second one, NVML's to tell
            assert (name, program.at(name)) == (name, mib * MIB + context)
            assert program.used() == mib * MIB
            program.on()
        assert "allocation of 240.0 MiB refused" in program.end()


def test_graph_that_waits_at_the_gate_holds_nothing(tmp_path: Path) -> None:
    """Nothing is announced meanwhile: others are not refused, and who jumps out of the wait
    leaves nothing.
    """
    with node(tmp_path) as running:
        program, card = running.run("mem_graph", "gate"), running.arbiter.card
        program.pass_by("begin", 0)
        for _ in ("launch", "upload", "instantiate"):
            program.at("closed")
            card.set(s.CLOSED | s.TRACK)
            program.on()
            program.at("standing")
            running.until(lambda: card.proc("waiting") == 1)
            assert program.used() == 0
            program.on()
            program.at("beside")
            assert program.used() == 200 * MIB
            card.set(s.TRACK)
            program.on()
            program.pass_by("refused", 0)
        program.at("closed")
        card.set(s.CLOSED | s.TRACK)
        program.on()
        program.at("jumped")
        assert program.used() == 0
        card.set(s.TRACK)
        program.on()
        program.pass_by("launched", 100 * MIB)
        assert "allocation of 100.0 MiB refused: job 4711 holds 200.0 of 256.0 MiB" in program.end()


@pytest.fixture(params=["ipc", "file", "device"])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How memory goes from one process to another. Files are the simulated driver's own, which
    differ, or one character device, as NVIDIA's.
    """
    if request.param == "device":
        monkeypatch.setenv("QGPU_SIM_EXPORTS", "device")
        return "file"
    return str(request.param)


def shared(
    running: Node, kind: str, *more: str, governed: bool = True, sanitizer: str = ""
) -> tuple[Program, str]:
    """A program that made 64 MiB to be shared, and how others may name it."""
    maker = running.run("mem_share", "make", kind, *more, governed=governed, sanitizer=sanitizer)
    maker.at("begin")
    maker.on()
    what = maker.line()
    assert maker.at("made") == 64 * MIB
    return maker, what


def taken(
    running: Node,
    kind: str,
    what: str,
    maker: Program,
    step: str = "taken",
    *more: str,
    sanitizer: str = "",
) -> Program:
    """A second program, at the step after it asked for the maker's memory."""
    words = ("mem_share", "take", kind, what, str(maker.process.pid), *more)
    taker = running.run(*words, sanitizer=sanitizer)
    taker.at("begin")
    taker.on()
    taker.at(step)
    return taker


def test_shared_memory_is_charged_once_and_never_lost(tmp_path: Path, kind: str) -> None:
    with node(tmp_path) as running:
        maker, what = shared(running, kind, sanitizer="asan")
        takers = [taken(running, kind, what, maker, sanitizer="asan") for _ in range(2)]
        assert [p.used() for p in (maker, *takers)] == [64 * MIB, 0, 0]
        maker.on()
        maker.at("let_go")
        assert maker.used() == 64 * MIB  # the takers still use it: somebody of the job must pay
        assert running.shared_on_card(contexts=3) == 64 * MIB
        for taker in takers:
            taker.on()
            taker.at("closed")
        running.until(lambda: maker.used() == 0)
        assert running.shared_on_card(contexts=3) == 0


def test_what_comes_out_of_an_imported_pool_is_its_makers(tmp_path: Path) -> None:
    """No size is told, so nothing is charged to who imports; the maker pays until its own pool
    is gone.
    """
    with node(tmp_path) as running:
        maker, what = shared(running, "pool", sanitizer="asan")
        taker = taken(running, "pool", what, maker, sanitizer="asan")
        assert [p.used() for p in (maker, taker)] == [64 * MIB, 0]
        taker.on()
        taker.at("closed")
        assert [p.used() for p in (maker, taker)] == [64 * MIB, 0]
        maker.on()
        assert maker.at("let_go") == 0
        assert maker.used() == 0


def test_user_of_a_dead_makers_memory_takes_the_charge_over(tmp_path: Path, kind: str) -> None:
    with node(tmp_path) as running:
        maker, what = shared(running, kind)
        taker = taken(running, kind, what, maker)
        running.kill(maker)
        running.until(lambda: taker.used() == 64 * MIB)
        assert running.shared_on_card(contexts=1) == 64 * MIB  # as on a real card
        taker.on()
        taker.at("closed")
        running.until(lambda: taker.used() == 0)
        assert running.shared_on_card(contexts=1) == 0


def test_slot_that_is_used_again_uses_nothing(tmp_path: Path, kind: str) -> None:
    """A taker dies, and before its maker lets go another process has its slot: its bits are not
    that one's.
    """
    with node(tmp_path) as running:
        maker, what = shared(running, kind)
        taker = taken(running, kind, what, maker)
        running.kill(taker)
        running.arbiter.slots.pop(taker.process.pid)
        other = running.run("mem_share", "idle")
        other.at("begin")
        assert running.arbiter.slot_of(other.process.pid) == 1
        maker.on()
        maker.at("let_go")
        assert maker.used() == 0


def test_program_that_executes_another_uses_nothing_any_more(tmp_path: Path, kind: str) -> None:
    """Pid and slot stay; what was opened is closed, and what was made belongs to its users."""
    with node(tmp_path) as running:
        maker, what = shared(running, kind, "idle")
        takers = [taken(running, kind, what, maker, "taken", *more) for more in ((), ("idle",))]
        takers[1].on()
        takers[1].at("begin")
        assert [p.used() for p in (maker, *takers)] == [64 * MIB, 0, 0]
        maker.on()
        maker.at("begin")
        running.until(lambda: takers[0].used() == 64 * MIB)
        assert [p.used() for p in (maker, takers[1])] == [0, 0]
        takers[0].on()
        takers[0].at("closed")
        running.until(lambda: takers[0].used() == 0)


def test_maker_that_comes_late_to_a_new_arbiter_is_not_taken_for_dead(
    tmp_path: Path, kind: str
) -> None:
    with node(tmp_path) as running:
        maker, what = shared(running, kind)
        taker = taken(running, kind, what, maker)
        maker.process.send_signal(signal.SIGSTOP)
        running.arbiter.stop()
        running.arbiter.start()
        running.until(lambda: taker.process.pid in running.arbiter.slots)
        running.arbiter.name_slot(taker.process.pid)
        time.sleep(0.8)  # three looks of its helper thread
        assert taker.used() == 0
        maker.process.send_signal(signal.SIGCONT)
        running.until(lambda: maker.process.pid in running.arbiter.slots)
        running.arbiter.name_slot(maker.process.pid)
        running.until(lambda: maker.used() == 64 * MIB)
        maker.on()
        maker.at("let_go")
        assert [p.used() for p in (maker, taker)] == [64 * MIB, 0]
        taker.on()
        taker.at("closed")
        running.until(lambda: maker.used() == 0)


OWN = {
    "kept": "kept 64 kept_by_one 64 returned 200 closed_before 0",
    "number": "number_again 32 number_gone 0",
    "import": "own_import 64 own_import_gone 200",
}


@pytest.mark.parametrize("how", list(OWN))
def test_own_descriptors_keep_memory_charged(tmp_path: Path, how: str) -> None:
    """The simulated card gives the memory back earlier than cuda.h says, so only the ledger is
    looked at.
    """
    with node(tmp_path) as running:
        program = running.run("mem_share", "own", how, sanitizer="asan")
        program.pass_by("begin", 0)
        for name, mib in steps(OWN[how]):
            program.at(name)
            assert (name, program.used() // MIB) == (name, mib)
            program.on()
        program.pass_by("end", 0)
        assert program.end().count("allocation of 200.0 MiB refused") == (how == "kept")


def test_name_of_two_lasts_as_long_as_either(tmp_path: Path) -> None:
    """One of two that are called alike was let go: who takes the other still knows its maker."""
    with node(tmp_path) as running:
        maker, what = shared(running, "alike")
        taker = taken(running, "alike", what, maker)
        assert [p.used() for p in (maker, taker)] == [64 * MIB, 0]
        maker.on()
        maker.at("let_go")
        taker.on()
        taker.at("closed")
        running.until(lambda: maker.used() + taker.used() == 0)


def test_who_takes_memory_by_a_device_that_cannot_be_watched_pays_for_it(tmp_path: Path) -> None:
    """All memory is called alike then, and nobody knows whose it is: too much is charged, and
    ends with the import. (The program lies about a file, which epoll does not take.)
    """
    with node(tmp_path) as running:
        maker, what = shared(running, "device")
        taker = taken(running, "device", what, maker)
        assert [p.used() for p in (maker, taker)] == [64 * MIB, 64 * MIB]
        maker.on()
        maker.at("let_go")
        assert maker.used() == 0
        taker.on()
        taker.at("closed")
        assert taker.used() == 0


def test_memory_from_outside_the_job_is_charged_to_its_importer(tmp_path: Path, kind: str) -> None:
    with node(tmp_path) as running:
        maker, what = shared(running, kind, governed=False)
        taker = taken(running, kind, what, maker)
        assert taker.used() == 64 * MIB
        taker.on()
        taker.at("closed")
        assert taker.used() == 0
        taker.on()
        taker.at("end")
        taker.on()
        taker.end()
    (tmp_path / "small").mkdir()
    with node(tmp_path / "small", cap=63 * MIB) as running:
        maker, what = shared(running, kind, governed=False)
        taker = taken(running, kind, what, maker, "refused")
        assert taker.used() == 0


def test_what_stands_beside_the_slots_counts_and_is_waited_for(tmp_path: Path) -> None:
    """Contexts, and a process that died: an allocation that only they hinder waits until they
    have left the card.
    """
    with node(tmp_path) as running:
        gate = running.arbiter.card.gate_page
        gate.mem_extra = 200 * MIB
        program = running.run(
            "mem_vmm"
        )  # its first allocation is refused anyway, its second needs 64 of 256 MiB
        program.at("begin")
        started = time.monotonic()
        released = threading.Timer(0.03, setattr, (gate, "mem_extra", 0))
        released.start()
        program.on()
        assert program.at("created") == 64 * MIB
        assert program.used() == 64 * MIB
        assert time.monotonic() - started >= 0.03
        released.join()


def test_dead_process_that_stays_is_not_waited_for_for_ever(tmp_path: Path) -> None:
    with node(tmp_path) as running:
        gate = running.arbiter.card.gate_page
        program = running.run("mem_vmm")
        program.at("begin")
        program.on()
        program.at("created")
        gate.mem_extra = 200 * MIB
        other = running.run("mem_share", "external")
        other.at("begin")
        other.on()
        output, error = other.process.communicate(timeout=60)
        # 64 beside 64 + 200 of 256: refused in the end
        assert other.process.returncode == 3, (output, error)
        assert "allocation of 64.0 MiB refused: job 4711 holds 264.0 of 256.0 MiB" in error
