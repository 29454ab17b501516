"""What the cost of the daemons is measured with, and what is counted."""

from __future__ import annotations

import pytest

from bench.costs import daemons_cpu as cpu
from enforcer.nvml.port import CardUsage, GpuProcess

MIB = 1 << 20


def usage(pids: set[int], busy: dict[int, int], mem_mib: int = 556) -> CardUsage:
    return CardUsage(tuple(GpuProcess(pid, mem_mib * MIB) for pid in pids), None, busy)


def full(found: CardUsage, mode: str) -> bool:
    return cpu.full(found, {1, 2}, mode)


def test_a_card_is_full_when_nvml_lists_each_tenant_with_memory_and_its_use() -> None:
    own = {1, 2}
    assert full(usage(own, {1: 99, 2: 0}), "busy"), "less than one percent is told as none"
    assert not full(usage({1}, {1: 50, 2: 50}), "busy"), "one has no context"
    assert not full(usage(own, {1: 50}), "busy"), "of one no use is told"
    assert full(usage(own, {}), "idle") and full(usage(own, {1: 0, 2: 0}), "idle")
    assert not full(usage(own, {}, mem_mib=200), "idle"), "a context alone is no program"
    assert not full(usage(own, {1: 50}), "idle")
    assert not full(usage({1, 2, 3}, {}), "idle")


@pytest.mark.parametrize(
    ("mode", "before", "after", "right"),
    [
        ("busy", 5, 6, True),
        ("busy", 5, 5, False),
        ("busy", 0, 6, False),
        ("idle", 5, 5, True),
        ("idle", 5, 6, False),
        ("idle", 0, 0, False),
    ],
)
def test_tenants_do_what_they_are_measured_for(
    mode: str, before: int, after: int, right: bool
) -> None:
    if right:
        cpu.check_work({7: before}, {7: after}, mode)
        return
    with pytest.raises(RuntimeError, match="7"):
        cpu.check_work({7: before}, {7: after}, mode)


def test_tenants_of_either_state_work_and_those_of_one_stop() -> None:
    assert set(cpu.LOADS) == set(cpu.TARGETS) == set(cpu.ROUNDS)
    assert "--idle" in cpu.LOADS["idle"] and "--idle" not in cpu.LOADS["busy"]
    assert cpu.TENANTS * cpu.SHARE <= 100


def test_only_the_daemons_count_and_in_wake_ups_of_the_machine() -> None:
    """8, 10 and 9 % of a core, where a wake-up takes 10 us: 8000, 10 000 and 9000 of a second."""
    rounds = [
        cpu.Round(7, 1, 50, 40, 2000, 10_000),
        cpu.Round(9, 1, 60, 45, 2500, 10_000),
        cpu.Round(8, 1, 50, 41, 2100, 10_000),
    ]
    busy = cpu.line("busy", rounds)
    assert busy.value == pytest.approx(9000) and (busy.verdict, busy.runs) == ("ok", 3)
    assert busy.detail["simulator"] == 50 and "not counted" in busy.spread
    assert busy.detail["here_%"] == pytest.approx(9)
    assert cpu.line("idle", rounds).verdict == "short"


def test_a_machine_that_is_twice_as_slow_comes_to_the_same_verdict() -> None:
    fast = cpu.line("busy", [cpu.Round(7, 1, 50, 40, 2000, 10_000)])
    slow = cpu.line("busy", [cpu.Round(14, 2, 100, 80, 2000, 20_000)])
    assert slow.value == pytest.approx(fast.value) and slow.target == fast.target
    assert slow.detail["reference_%"] == pytest.approx(8)
    assert slow.detail["here_%"] == pytest.approx(16)
