"""The program that is put before Slurm's: what it says, and what the kernel makes of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from devices_support import (
    BATCH,
    FULL,
    NULL,
    PROGRAMS,
    STEP,
    TASK,
    ZERO,
    code,
    code_of,
    constrain,
    job,
    opened,
    slurms,
    usable,
)

from enforcer.daemon.devices import bpf
from enforcer.daemon.devices.places import tree
from enforcer.daemon.devices.port import Device, DevicesError, Rules
from enforcer.daemon.devices.program import MOST, compose, obstacle, split
from enforcer.daemon.devices.unified import NO_PROGRAM, Unified

BOOKED = slurms({NULL: 1, ZERO: 0, FULL: 0})  # of three cards the job has the first
MOVED = Rules.of([ZERO], [NULL, ZERO])  # to the second; of the third nothing is said
CALLS = code((0x85, 0, 0, 5), (0xB7, 0, 0, 1), (0x95, 0, 0, 0))  # bpf_ktime_get_ns


def test_a_program_comes_apart_again() -> None:
    base = slurms({NULL: 1})
    for rules in (MOVED, Rules.of([], []), Rules.of([NULL, ZERO], [FULL])):
        assert split(compose(rules, base)) == (rules, base)


def test_a_device_in_both_is_allowed() -> None:
    assert Rules.of([NULL], [NULL, ZERO]) == Rules(frozenset([NULL]), frozenset([ZERO]))


def test_another_program_is_left_whole() -> None:
    for base in (BOOKED, bpf.ALLOW, b"", compose(MOVED, b"")[:64], compose(MOVED, b"")[8:]):
        assert split(base) == (None, base)
    ours = bytearray(compose(MOVED, BOOKED))
    ours[2 * 8 + 1] = 0x13  # another register: not what `compose` writes
    assert split(bytes(ours)) == (None, bytes(ours))


def test_too_many_rules_are_refused() -> None:
    with pytest.raises(DevicesError, match=f"{MOST + 1} devices; the limit is"):
        compose(Rules.of((Device(195, n) for n in range(MOST + 1)), ()), bpf.ALLOW)


def test_what_cannot_be_carried_over_is_told() -> None:
    maps = code((0x18, 0x11, 0, 3), (0, 0, 0, 0), (0x95, 0, 0, 0))
    wide = code((0x18, 0x01, 0, 3), (0, 0, 0, 0), (0x95, 0, 0, 0))
    assert "uses maps" in obstacle(maps, 0) and "uses maps" in obstacle(BOOKED, 1)
    assert "calls functions" in obstacle(CALLS, 0)
    assert (obstacle(BOOKED, 0), obstacle(wide, 0)) == ("", "")
    assert "empty" in obstacle(b"", 0)


@pytest.fixture
def top() -> Iterator[Path]:
    """A job with programs where Slurm attaches them: the batch script's cgroups have none."""
    with job(usable(2)) as directory:
        for below, flags in PROGRAMS.items():
            constrain(directory / below, BOOKED, flags)
        yield directory


def test_processes_of_steps_and_of_the_batch_script_have_the_new_card_alone(top: Path) -> None:
    cgroups = [top / TASK, top / BATCH]
    assert [opened(one) for one in cgroups] == [{NULL}, {NULL}]
    keeper, there = Unified(), tree(str(top), {})
    assert keeper.apply(there, MOVED)
    assert [opened(one) for one in cgroups] == [{ZERO}, {ZERO}], "and what Slurm refuses stays so"
    assert keeper.apply(there, Rules.of([NULL], [ZERO, FULL]))
    assert [opened(one) for one in cgroups] == [{NULL}, {NULL}]


def test_the_same_again_changes_nothing(top: Path) -> None:
    keeper, there = Unified(), tree(str(top), {})
    keeper.apply(there, MOVED)
    before = [code_of(top / below) for below in PROGRAMS]
    assert not keeper.apply(there, MOVED)
    assert not Unified().apply(there, MOVED), "nor after a restart of qgpud"
    assert [code_of(top / below) for below in PROGRAMS] == before


def test_flags_stay_and_programs_do_not_grow(top: Path) -> None:
    keeper, there = Unified(), tree(str(top), {})
    for rules in (MOVED, Rules.of([FULL], [NULL, ZERO]), MOVED):
        keeper.apply(there, rules)
    found = {below: code_of(top / below) for below in PROGRAMS}
    assert found == {below: [(compose(MOVED, BOOKED), flags)] for below, flags in PROGRAMS.items()}
    assert code_of(top / BATCH) == [] == code_of(top / "step_0")


def test_a_program_that_slurm_attaches_later_is_corrected(top: Path) -> None:
    keeper, there = Unified(), tree(str(top), {})
    keeper.apply(there, MOVED)
    constrain(top, BOOKED, bpf.OVERRIDE)  # as a new step does at the job's directory
    assert opened(top / BATCH) == {NULL}
    assert keeper.apply(there, MOVED)
    assert opened(top / BATCH) == {ZERO}


def test_a_cgroup_that_ends_meanwhile_is_no_fault(top: Path) -> None:
    there = tree(str(top), {})
    (top / TASK).rmdir()
    assert Unified().apply(there, MOVED)
    assert opened(top / BATCH) == {ZERO}


def test_reasons_why_programs_cannot_be_replaced() -> None:
    with job(usable(2)) as directory:
        there = tree(str(directory), {})
        assert Unified().refusal(there) == NO_PROGRAM
        assert not Unified().apply(there, MOVED)
        constrain(directory / TASK, BOOKED)
        assert Unified().refusal(there) == ""
        assert code_of(directory / TASK) == [(BOOKED, 0)], "asking changes nothing"
        constrain(directory / "step_0/slurm", CALLS)
        assert "calls functions of the kernel" in Unified().refusal(there)
    with job(usable(2), "multi") as directory:
        constrain(directory / BATCH, BOOKED, bpf.MULTI)
        there = tree(str(directory), {})
        assert "BPF_F_ALLOW_MULTI" in Unified().refusal(there)
        with pytest.raises(DevicesError, match="BPF_F_ALLOW_MULTI"):
            Unified().apply(there, MOVED)
        assert opened(directory / BATCH) == {NULL}


def test_rules_name_a_step_alone_where_slurm_does(top: Path) -> None:
    """A step may have fewer cards than its job: ours decide there too, and the rest is Slurm's."""
    constrain(top / STEP, slurms({NULL: 0, ZERO: 0, FULL: 0}), bpf.OVERRIDE)
    constrain(top / TASK, slurms({NULL: 0, ZERO: 0, FULL: 0}))
    Unified().apply(tree(str(top), {}), MOVED)
    assert (opened(top / TASK), opened(top / BATCH)) == ({ZERO}, {ZERO})
