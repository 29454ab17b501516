"""Which grants are from before the machine's boot, whatever the clock did since."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from daemon_support import hook_env as env

from enforcer.daemon import boot
from enforcer.daemon.audit.procs import boot_id, on_tmpfs
from enforcer.ledger.store import read_usage
from simulator.fakes import FakeNode

FIRST, SECOND = (f"{number}2345678-1234-1234-1234-123456789abc" for number in (1, 2))
HOUR = 3600 * 10**9


def restarted(node: FakeNode) -> set[int]:
    again = node.service()
    again.start()
    return set(again.grants)


@pytest.fixture
def booted(node: FakeNode) -> FakeNode:
    """A node on which job 9 runs since this boot."""
    node.boot_id = FIRST
    service = node.service()
    service.start()
    service.prolog(env())
    return node


def test_clock_that_stepped_forward_ends_no_grant(booted):
    booted.booted_ns = booted.clock.realtime_ns() + HOUR  # btime moves with the clock
    assert restarted(booted) == {9}


def test_another_boot_ends_all_grants_whatever_the_clock_says(booted):
    booted.booted_ns, booted.boot_id = booted.clock.realtime_ns() - HOUR, SECOND
    assert restarted(booted) == set()
    (row,) = read_usage(booted.directory / "state/ledger.sqlite", [9])
    assert row.end_reason == "boot"
    again = booted.service()
    again.start()
    again.prolog(env())
    assert restarted(booted) == {9}, "the number of this boot is known now"


def test_without_a_number_the_clock_decides_unless_no_boot_leaves_anything_there(booted):
    (booted.directory / "run/boot_id").unlink()  # as the daemon before this one left it
    booted.booted_ns, booted.tmpfs = booted.clock.realtime_ns() + HOUR, True
    assert restarted(booted) == {9}, "an upgrade on /run"
    booted.tmpfs = False
    assert restarted(booted) == {9}, "and its number was noted then"
    (booted.directory / "run/boot_id").unlink()
    assert restarted(booted) == set()


@pytest.mark.parametrize("damage", ["", "nonsense", FIRST[:-1]])
def test_number_that_is_none_is_not_another_boots(booted, damage):
    (booted.directory / "run/boot_id").write_text(damage)
    booted.booted_ns = booted.clock.realtime_ns() - HOUR
    assert restarted(booted) == {9}


def test_number_of_an_earlier_boot_is_not_left_where_the_new_one_cannot_be_written(
    booted, monkeypatch, lines
):
    put = boot.GrantStore._put

    def full(self, directory, name, *rest):
        if name == boot.FILE_NAME:
            raise OSError(28, "No space left on device")
        put(self, directory, name, *rest)

    monkeypatch.setattr(boot.GrantStore, "_put", full)
    booted.boot_id = SECOND
    again = booted.service()
    again.start()
    again.prolog(env())
    assert len(lines("boot-not-kept")) == 1
    assert restarted(booted) == {9}


def test_what_the_kernel_tells(tmp_path):
    assert boot_id() == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert boot_id(tmp_path) is None
    device = tmp_path.stat().st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    (tmp_path / "self").mkdir()
    for kind, memory in (("tmpfs", True), ("ext4", False)):
        told = (
            f"20 1 0:1 / /elsewhere rw - tmpfs x rw\n21 1 {number} / / rw shared:1 - {kind} x rw\n"
        )
        (tmp_path / "self/mountinfo").write_text(told)
        assert on_tmpfs(tmp_path, tmp_path) is memory
    assert not on_tmpfs(tmp_path / "none", tmp_path)
