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
    assert not full(usage(own, {1: 50}), "idle") and full(usage(own, {1: 50}), "mixed")
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
        ("mixed", 5, 5, True),
        ("mixed", 5, 6, True),
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


def test_every_state_has_so_many_tenants_per_card() -> None:
    assert {len(cpu.parts(mode)) for mode in cpu.TARGETS} == {cpu.TENANTS}
    assert {part.job_class for part in cpu.parts("busy")} == {"offline"}
    assert "--idle" in cpu.parts("idle")[0].args and "--idle" not in cpu.parts("busy")[0].args
    mixed = [part.job_class for part in cpu.parts("mixed")]
    assert (mixed.count("online"), mixed.count("offline")) == (
        cpu.ONLINE,
        cpu.TENANTS - cpu.ONLINE,
    )
    assert all(sum(part.share for part in cpu.parts(mode)) <= 100 for mode in cpu.TARGETS)


def test_only_the_daemons_count() -> None:
    rounds = [
        cpu.Round(7, 1, 50, 40, 2000),
        cpu.Round(9, 1, 60, 45, 2500),
        cpu.Round(8, 1, 50, 41, 2100),
    ]
    busy = cpu.line("busy", rounds)
    assert (busy.value, busy.verdict, busy.runs) == (9.0, "ok", 3)
    assert busy.detail["simulator"] == 50 and "not counted" in busy.spread
    assert cpu.line("idle", rounds).verdict == "short"
    assert cpu.line("mixed", rounds).verdict == "reported"
    assert busy.value == pytest.approx(busy.detail["arbiter"] + busy.detail["qgpud"])
