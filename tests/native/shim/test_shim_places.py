"""Where memory lies: what is not known to be memory of the host is charged, also what a later
header adds.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import shim_support as s

pytestmark = pytest.mark.native
GIB = s.GIB
PREFIX = "CU_MEM_LOCATION_TYPE_"
# Where it is, the device it tells (-1: none), whether pinned and whether managed memory there is
# charged.
DECIDED = {
    "INVALID": "none -1 0 1",
    "NONE": "none -1 0 1",
    "DEVICE": "card 3 1 1",
    "HOST": "host -1 0 1",
    "HOST_NUMA": "host -1 0 1",
    "HOST_NUMA_CURRENT": "host -1 0 1",
    "INVISIBLE": "card -1 1 1",
    "DEVICE_LOCALITY_DOMAIN": "card 3 1 1",
    "MAX": "card -1 1 1",
}


def taken_for(*types: int) -> list[str]:
    """What the shim takes these types for."""
    argv = [str(s.BUILD / "test" / "shim-place-unit"), *map(str, types)]
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout.splitlines()


def header_types() -> dict[str, int]:
    """Every value of CUmemLocationType in the installed headers, those of the newest."""
    headers = sorted(
        (s.ROOT / ".venv").glob("lib/python3*/site-packages/nvidia/cu13/include/cuda.h")
    )
    if not headers:
        pytest.skip("the CUDA headers are not installed")
    enum = re.search(r"enum CUmemLocationType_enum \{(.*?)\}", headers[-1].read_text(), re.DOTALL)
    assert enum
    return {
        name: int(value, 0)
        for name, value in re.findall(rf"{PREFIX}(\w+)\s*=\s*(0x[0-9A-F]+|\d+)", enum[1])
    }


def test_every_type_of_the_header_is_decided_about() -> None:
    types = header_types()
    assert set(types) == set(DECIDED), (
        "decide in place.h where memory of a new type is, then write it here"
    )
    assert dict(zip(types, taken_for(*types.values()), strict=True)) == DECIDED


def test_types_that_no_header_knows_are_memory_of_a_card() -> None:
    assert set(taken_for(*range(7, 64), 0x40000000, -1)) == {"card -1 1 1"}


@pytest.mark.parametrize("kind", [1, 6])
def test_card_is_the_one_that_the_location_names(tmp_path: Path, kind: int) -> None:
    """Whatever context is current, or none; of a locality domain, the second byte is its number
    on the device.
    """
    arbiter = s.FakeArbiter(tmp_path, [GIB, 2 * GIB])
    with s.governed(tmp_path, [GIB, 2 * GIB]) as probe:
        domain = 0x100 if kind == 6 else 0
        assert probe.ask("devices 3") == 0
        assert probe.ask("init") == 0
        assert probe.ask(f"create 0 {2 * GIB} {kind} {domain + 1}") == 0
        assert probe.ask(f"create 1 1 {kind} {domain + 1}") == s.OUT_OF_MEMORY
        assert probe.ask(f"create 1 1 {kind} {domain + 2}") == s.OUT_OF_MEMORY  # not granted
        assert probe.ask(f"create 1 {GIB} {kind} {domain}") == 0
        assert [arbiter.tenants[s.UUID.format(n)].proc("mem_used") for n in (1, 2)] == [
            GIB,
            2 * GIB,
        ]
        assert [probe.ask(f"release {at}") for at in (0, 1)] == [0, 0]
        assert [arbiter.tenants[s.UUID.format(n)].proc("mem_used") for n in (1, 2)] == [0, 0]
    arbiter.stop()


def test_unknown_place_is_on_the_card_of_the_context(tmp_path: Path) -> None:
    """This driver takes every type. Host types pass, whatever their size; the unknown is charged
    or refused.
    """
    arbiter = s.FakeArbiter(tmp_path, [GIB])
    with s.governed(tmp_path, [GIB]) as probe:
        assert probe.ask("init") == 0
        assert probe.ask(f"create 0 {GIB} 7 0") == s.OUT_OF_MEMORY  # no context, no card
        s.started(probe)
        for kind in (2, 3, 4):
            assert probe.ask(f"create 0 {4 * GIB} {kind} 0") == 0
            assert arbiter.card.proc("mem_used") == 0
        assert probe.ask(f"create 0 {GIB} 7 77") == 0
        assert arbiter.card.proc("mem_used") == GIB
        assert probe.ask("create 1 1 99 0") == s.OUT_OF_MEMORY
        assert probe.ask("release 0") == 0
        assert arbiter.card.proc("mem_used") == 0
    arbiter.stop()


@pytest.mark.parametrize("call", ["pool", "get_pool"])
def test_pool_is_where_its_place_is(tmp_path: Path, call: str) -> None:
    """A pool's place: its type, its bytes, pinned (1) or managed (2) -> what 64 MiB out of it do
    to the two cards.
    """
    arbiter = s.FakeArbiter(tmp_path, [GIB, GIB])
    with s.governed(tmp_path, [GIB, GIB]) as probe:
        assert probe.ask("devices 3") == 0
        s.started(probe)
        assert probe.ask("stream 0") == 0
        for place, used in {
            "1 1 1": (0, 64),
            "6 0x101 1": (0, 64),
            "6 0x100 2": (64, 0),
            "2 1 1": (0, 0),
            "3 0 1": (0, 0),
            "4 0 1": (0, 0),
            "0 0 2": (64, 0),  # managed: nowhere first
            "2 0 2": (64, 0),  # managed, in the host first
            "7 1 1": (64, 0),  # of a later driver
            "5 -2 1": (64, 0),
        }.items():
            assert probe.ask(f"{call} 1 {place}") == 0
            assert probe.ask(f"from_pool 0 {64 * s.MIB} 1") == 0
            assert (
                place,
                tuple(arbiter.tenants[s.UUID.format(n)].proc("mem_used") // s.MIB for n in (1, 2)),
            ) == (
                place,
                used,
            )
            too_much = s.OUT_OF_MEMORY if any(used) else 0
            assert probe.ask(f"from_pool 1 {GIB} 1") == too_much
            assert probe.ask("free_async 0 0") == 0
            assert probe.ask("pool_destroy 1") == 0
            assert [arbiter.tenants[s.UUID.format(n)].proc("mem_used") for n in (1, 2)] == [0, 0]
        for place in ("1 2 1", "6 0x102 1"):  # a card that was not granted
            assert probe.ask(f"{call} 1 {place}") == (s.OUT_OF_MEMORY if call == "pool" else 0)
            if call == "get_pool":
                assert probe.ask("from_pool 0 1 1") == s.OUT_OF_MEMORY
                assert probe.ask("pool_destroy 1") == 0
    arbiter.stop()
