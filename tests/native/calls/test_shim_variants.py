"""Each version and default-stream variant of a hooked call is made by its own name, and does
what the plain does.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import shim_support as s
from shim_memory_support import CAP, CONTEXT, MIB, node, walk
from test_shim_default_streams import BEGINS, ENDS, LOOKS, STREAM_ENDS
from test_shim_exports import HOOKED, LEDGER, function_classes, table
from test_shim_submissions import BEHIND_SYMBOLS, FORGETS, WORK_SYMBOLS

pytestmark = pytest.mark.native
NUMBERED = s.BUILD / "test" / "numbered" / "libcuda.so.1"
MEMORY = """begin 0 array_v1 4 array_3d_v1 36 arrays_v1_gone 0 async_ptsz 64 from_pool_ptsz 64
freed_ptsz 64 waited_ptsz 0 piece_ptsz 32 piece_freed_ptsz 0 captured_ptsz 0 too_large_v2 0
captured_pool_ptsz 0 too_large_ptsz 0 captured_v1 0
tile_ptsz 4 tile_gone 0 context_v3 16 context_v3_gone 0 context_v4 24 context_v4_gone 0
before_reset 8 reset_v1 0 before_release 12 released_v1 0"""


def called_under_the_ledger() -> set[str]:
    """What the programs call whose ledger is looked at after each step, or after each order."""
    small = Path(__file__).parents[1] / "programs"
    programs = [*small.glob("memory/mem_*.c"), small / "memory/step.h", small / "probe/probe.c"]
    orders = (Path(__file__).parents[1] / "memory/test_shim_memory.py").read_text(encoding="utf-8")
    text = "".join(path.read_text(encoding="utf-8") for path in programs)
    return {*re.findall(r"CALL\((cu\w+)\)", text), *re.findall(r"invoke (cu\w+) ", orders)}


def test_every_hooked_symbol_is_called_by_its_own_name() -> None:
    """None stands for another: each version and default-stream variant is hooked by a line of
    its own.
    """
    ledger = called_under_the_ledger()
    called = dict.fromkeys(LEDGER | {"entry"}, ledger) | {
        "work": set(WORK_SYMBOLS),
        "order": set(BEHIND_SYMBOLS),
        "forget": set(FORGETS),
        "observe": set(LOOKS),
        "capture": {*BEGINS, *ENDS},
        "stream": set(STREAM_ENDS),
    }
    kinds = function_classes()
    hooked = {row[0]: kinds[row[1]] for row in table() if kinds[row[1]] in HOOKED}
    assert called.keys() == HOOKED
    assert {symbol for symbol, kind in hooked.items() if symbol not in called[kind]} == set()
    tables = set.union(*(called[kind] for kind in HOOKED - LEDGER - {"entry"}))
    assert tables - hooked.keys() == set()


@pytest.mark.parametrize("sanitizer", ["", "asan"], ids=["plain", "asan"])
def test_memory(tmp_path: Path, sanitizer: str) -> None:
    words = MEMORY.split()
    with node(tmp_path) as running:
        program = running.run("mem_variant", sanitizer=sanitizer)
        for name, mib in zip(words[::2], map(int, words[1::2]), strict=True):
            # NVML's to tell, not ours
            context = CONTEXT if name in ("context_v3", "context_v4") else 0
            assert (name, program.at(name) / MIB) == (name, mib + context / MIB)
            assert (name, program.used() / MIB) == (name, mib)
            program.on()
        error = program.end()
    # a sanitizer would have more to say
    assert [line[:5] for line in error.splitlines()] == ["qgpu:"], error


@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_first_memory_node_of_a_process(tmp_path: Path, version: int) -> None:
    assert (
        walk(
            tmp_path, f"mem_variant node {version}", [("begin", 0), ("node", 50), ("node_gone", 0)]
        )
        == ""
    )


def opened(directory: Path, cap: int, governed: bool, step: str) -> tuple[int, int]:
    """What maker and taker are charged at this step of a program that opens 64 MiB by the call's
    first version.
    """
    directory.mkdir()
    with node(directory, cap) as running:
        maker = running.run("mem_share", "make", "ipc", governed=governed)
        maker.at("begin")
        maker.on()
        taker = running.run("mem_variant", "take", maker.line())
        maker.at("made")
        taker.at("begin")
        taker.on()
        if step == "closed":
            taker.at("taken")
            taker.on()
        taker.at(step)
        return (maker.used() // MIB if governed else 0, taker.used() // MIB)


def test_first_version_of_opening_a_handle(tmp_path: Path) -> None:
    """Charged as by the second: to the maker where it is of the job, else to who opens it;
    refused above the cap.
    """
    assert opened(tmp_path / "inside", CAP, True, "taken") == (64, 0)
    assert opened(tmp_path / "outside", CAP, False, "taken") == (0, 64)
    assert opened(tmp_path / "closed", CAP, False, "closed") == (0, 0)
    assert opened(tmp_path / "small", 63 * MIB, False, "refused") == (0, 0)


def test_every_export_leads_to_the_drivers_function_of_its_own_name(tmp_path: Path) -> None:
    """Hooked or not: each function of the driver answers a number of its own."""
    numbers: dict[str, int] = {}
    for number, row in enumerate(table(), 1):
        numbers.setdefault(row[0], number)
    probe = s.launch(tmp_path, {}, (), s.in_usual_place(NUMBERED))
    # An address of zeros for each argument; those that add up the sizes of a list would take it for
    # its length.
    arguments = {name: (" 0" if "Batch" in name else " zero") * 12 for name in numbers}
    answers = {name: probe.ask(f"invoke {name}{arguments[name]}") for name in numbers}
    probe.finish()
    assert answers == numbers


def test_each_variant_is_what_get_proc_address_gives(probe: s.Probe) -> None:
    """By its name, the version that it came with, and whether per-thread default streams are
    wanted.
    """
    wrong = {}
    for symbol, api, since, ptsz, kind in table():
        answer = probe.text(f"proc {api} {since} {2 * int(ptsz)}")
        if kind == "hook" and answer != f"0 shim {symbol}":
            wrong[symbol] = answer
    assert wrong == {}
