"""Managed memory: in full at its allocation, or what of it is resident (enforcer.managed)."""

from __future__ import annotations

from pathlib import Path

import pytest
from shim_memory_support import MIB, node

from enforcer.wire import abi

pytestmark = pytest.mark.native


def test_managed_memory_is_charged_in_full_by_default(tmp_path: Path) -> None:
    with node(tmp_path) as running:
        program = running.run("mem_managed", "full")
        program.pass_by("begin", 0)
        program.pass_by("refused", 0)
        assert "allocation of 300.0 MiB refused" in program.end()


def test_managed_memory_that_is_resident_comes_in_by_nvml(tmp_path: Path) -> None:
    """More than the cap is allocated. What NVML tells of it counts for other allocations."""
    with node(tmp_path) as running:
        running.card_flags = abi.GRANT_CARD_MANAGED_RESIDENT
        program = running.run("mem_managed", "resident")
        program.pass_by("begin", 0)
        assert program.at("managed") == 300 * MIB  # by the simulated card, where all is resident
        assert program.used() == 0
        program.on()
        assert program.at("beside") == 364 * MIB
        assert program.used() == 64 * MIB
        running.arbiter.card.gate_page.mem_extra = 192 * MIB  # as qgpud finds it
        program.on()
        program.at("full")
        assert program.used() == 64 * MIB
        program.on()
        program.pass_by("freed", 0)
        assert "job 4711 holds 256.0 of 256.0 MiB" in program.end()
