"""A launch on two cards at once, whose gates open and close at different times."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import arbiter_support as a
import pytest
from shim_submit_support import OFFLINE, ONLINE, launches

from bench.harness.node import BUILD, Rig, wait_for
from enforcer.wire import abi

pytestmark = [
    pytest.mark.native,
    pytest.mark.skipif(os.getuid() != 0, reason="needs root: sealed grants"),
]


def slot(watch: a.Tenant, pid: int) -> abi.ProcSlot:
    return next(slot for slot in watch.job.procs if slot.pid == pid)


def test_launch_on_two_cards_waits_until_both_are_open(tmp_path: Path) -> None:
    """The first gate closes again while the launch stands at the second (cards that are not
    suspended together).
    """
    with Rig(tmp_path, cards=2, settings={"idle_release_ms": 1, "together": False}) as rig:
        offline = rig.grant(OFFLINE, "offline", mem_mib=1024, card=(0, 1))
        online = rig.grant(ONLINE, "online", mem_mib=1024, card=(0, 1))
        watch = [a.Tenant(rig.run_dir, offline, uuid) for uuid in rig.uuids]
        busy = [a.Tenant(rig.run_dir, online, uuid) for uuid in rig.uuids]

        def close(card: int) -> None:
            assert busy[card].begin()
            wait_for("the gate closes", lambda: watch[card].closed)

        def open_(card: int) -> None:
            busy[card].finish()
            wait_for("the gate opens", lambda: not watch[card].closed)

        program = rig.spawn(
            [BUILD / "test/shim-task", "multi"], offline, stdin=subprocess.PIPE, bufsize=1
        )
        assert program.stdout and program.stdin
        assert program.stdout.readline().strip() == "ready"
        first, second = (slot(one, program.pid) for one in watch)
        close(0)
        close(1)
        program.stdin.write("\n")
        program.stdin.flush()
        wait_for("it stands at the first gate", lambda: first.waiting == 1)
        open_(0)
        wait_for("it stands at the second gate", lambda: second.waiting == 1)
        close(0)
        open_(1)
        wait_for("it stands at the first gate again", lambda: first.waiting == 1)
        assert (launches(first), launches(second)) == (0, 0), "not counted before it goes"
        open_(0)
        assert program.stdout.readline().strip() == "launched"
        assert program.wait(60) == 0
        for one in (*watch, *busy):
            one.close()


def test_graph_with_memory_on_two_cards_is_charged_to_both(tmp_path: Path) -> None:
    """Each cap refuses for itself, whichever node comes last; a refusal leaves nothing reserved
    on the other card.
    """
    with Rig(tmp_path, cards=2) as rig:
        offline = rig.grant(OFFLINE, "offline", mem_mib=256, card=(0, 1))
        watch = [a.Tenant(rig.run_dir, offline, uuid) for uuid in rig.uuids]
        rounds = [(20, 40), (40, 20), (20, 260), (260, 20), (200, 200)]
        words = [str(mib) for both in rounds for mib in both]
        program = rig.spawn(
            [BUILD / "test/shim-task", "graphs", *words], offline, stdin=subprocess.PIPE, bufsize=1
        )
        assert program.stdout and program.stdin
        for first, second in rounds:
            refused = max(first, second) > 256
            assert program.stdout.readline().strip() == ("refused" if refused else "launched"), (
                first,
                second,
            )
            held = [slot(one, program.pid).mem_used >> 20 for one in watch]
            assert held == ([0, 0] if refused else [first, second])
            assert [slot(one, program.pid).mem_pending for one in watch] == [0, 0]
            program.stdin.write("\n")
            program.stdin.flush()
        assert program.stdout.readline().strip() == "end"
        assert [slot(one, program.pid).mem_used for one in watch] == [0, 0]
        program.stdin.write("\n")
        program.stdin.flush()
        assert program.wait(60) == 0
        for one in watch:
            one.close()
