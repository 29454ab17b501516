"""What a tenant is charged beside its live processes: contexts, and processes that died but lie
on the card still.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from arbiter_support import CARD, Arbiter, Tenant, arbiter, grant, settings, tenant_stats, wait_for
from test_arbiter_registration import child

from enforcer.fdwait import readable_within
from enforcer.wire.link import ArbiterGone, ArbiterLink, ProcessStats
from enforcer.wire.watch import DeathWatch

pytestmark = pytest.mark.native
MIB = 1 << 20
HERE = Path(__file__).resolve().parents[2] / "support/node"
# Nearly as many as there are slots; together more than one list of the dead holds.
FIRST, SECOND = 126, 10
BURST = """
import os, sys
sys.path.insert(0, {here!r})
from arbiter_support import Tenant, grant
from pathlib import Path
(held, hold), (go, start), (told, tell) = os.pipe(), os.pipe(), os.pipe()
for number in range({first} + {second}):
    if os.fork() == 0:
        os.close(hold), os.close(start)
        if number >= {first}:
            os.read(go, 1)
        Tenant(Path({run_dir!r}), grant(1), mem_used=1000)
        os.write(tell, b"x")
        os.read(held, 1)
        os._exit(0)
for _ in range({first}):
    os.read(told, 1)
os.close(hold)
for _ in range({first}):
    assert os.wait()[1] == 0
sys.stdin.readline()
os.close(start)
for _ in range({second}):
    assert os.wait()[1] == 0
"""
HELD = 123456  # what child() says it holds
# a loaded machine may notice a death late
UNHURRIED = ("--answer-ms", "600000")


def ended(watch: DeathWatch, seconds: float = 10) -> ProcessStats:
    """The next death that the watch reports."""
    assert readable_within(watch.fileno(), seconds), "the death was not reported"
    (death,) = watch.died()
    return death


def kill(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGKILL)
    process.wait()


def test_overhead_is_charged_and_replaced(tmp_path: Path) -> None:
    mine = grant(1)
    with arbiter(tmp_path) as one, one.link() as link:
        link.sync([settings()], [mine])
        tenant = Tenant(one.run_dir, mine, mem_used=5 * MIB)
        assert tenant.gate.mem_extra == 0
        link.overhead(1, CARD, 300 * MIB)
        assert tenant.gate.mem_extra == 300 * MIB
        stats = tenant_stats(link, 1)
        assert (stats.mem_used, stats.mem_extra, stats.mem_peak) == (5 * MIB, 300 * MIB, 305 * MIB)
        link.overhead(1, CARD, 200 * MIB)
        assert tenant.gate.mem_extra == 200 * MIB
        link.overhead(1, CARD, 2**64 - 1)
        assert tenant.gate.mem_extra == 1 << 48, "cut, so that a sum cannot wrap"
        link.overhead(1, CARD, 0)
        link.overhead(77, CARD, 1)
        link.overhead(1, "GPU-none", 1)
        assert tenant.gate.mem_extra == 0


def test_dead_process_stays_charged_while_the_driver_lists_it(tmp_path: Path) -> None:
    mine = grant(1 << 40)
    with arbiter(tmp_path, *UNHURRIED) as one, one.link() as link, DeathWatch(one.run_dir) as watch:
        link.sync([settings()], [mine])
        tenant = Tenant(one.run_dir, mine, mem_used=1000)
        process = child(one, 1 << 40, "offline", "tenant.slot.mem_pending = 44")
        assert watch.died() == []
        kill(process)
        death = ended(watch)
        assert (death.job_id, death.uuid, death.pid, death.uid) == (1 << 40, CARD, process.pid, 0)
        assert death.mem_used == HELD + 44, "an allocation under way may have succeeded"
        wait_for(lambda: tenant_stats(link, 1 << 40).procs == 1, "its slot is free")
        assert tenant.gate.mem_extra == HELD + 44
        assert tenant_stats(link, 1 << 40).mem_extra == HELD + 44
        link.gone(1 << 40, CARD, tenant.slot.pid)
        link.gone(1 << 40, "GPU-other", process.pid)
        link.gone(7, CARD, process.pid)
        assert tenant.gate.mem_extra == HELD + 44, (
            "only the process itself, on its card and of its job"
        )
        link.gone(1 << 40, CARD, process.pid)
        assert tenant.gate.mem_extra == 0
        link.gone(1 << 40, CARD, process.pid)
        assert tenant.gate.mem_extra == 0, "an answer that comes twice takes nothing twice"


def test_memory_is_free_at_once_without_a_watch(tmp_path: Path) -> None:
    """No answer will ever say that it is."""
    mine = grant(1)
    with arbiter(tmp_path, *UNHURRIED) as one, one.link() as link:
        link.sync([settings()], [mine])
        tenant = Tenant(one.run_dir, mine)
        kill(child(one, 1, "offline"))
        wait_for(lambda: tenant_stats(link, 1).procs == 1, "the slot is free")
        assert tenant.gate.mem_extra == 0


def test_while_the_watcher_is_away_memory_stays_charged(tmp_path: Path) -> None:
    mine = grant(1)
    with arbiter(tmp_path, *UNHURRIED) as one, one.link() as link:
        link.sync([settings()], [mine])
        tenant = Tenant(one.run_dir, mine)
        DeathWatch(one.run_dir).close()
        process = child(one, 1, "offline")
        kill(process)
        wait_for(lambda: tenant_stats(link, 1).procs == 1, "the slot is free")
        assert tenant.gate.mem_extra == HELD
        with DeathWatch(one.run_dir) as back:
            assert ended(back).pid == process.pid
        link.gone(1, CARD, process.pid)
        assert tenant.gate.mem_extra == 0


def test_as_long_as_the_card_lists_it_a_dead_process_stays_charged(tmp_path: Path) -> None:
    """Of two that died, one is named again and again for three times as long as the other is
    kept.
    """
    mine = grant(1)
    with (
        arbiter(tmp_path, "--answer-ms", "1000") as one,
        one.link() as link,
        DeathWatch(one.run_dir) as watch,
    ):
        link.sync([settings()], [mine])
        tenant = Tenant(one.run_dir, mine)
        named, other = child(one, 1, "offline"), child(one, 1, "offline")
        for process in (named, other):
            kill(process)
            ended(watch)
        until = time.monotonic() + 3
        while time.monotonic() < until:
            link.listed(1, CARD, named.pid)
            time.sleep(0.05)
        link.listed(1, CARD, other.pid)
        link.listed(7, CARD, named.pid)
        assert tenant.gate.mem_extra == HELD, "of the other nobody said anything"
        wait_for(lambda: tenant.gate.mem_extra == 0, "nobody names it any more")


def test_a_watcher_that_never_answers_and_one_that_comes_later(tmp_path: Path) -> None:
    mine = grant(1)
    with arbiter(tmp_path, "--answer-ms", "3000") as one, one.link() as link:
        link.sync([settings()], [mine])
        tenant = Tenant(one.run_dir, mine)
        with DeathWatch(one.run_dir) as watch:
            process = child(one, 1, "offline")
            kill(process)
            first = ended(watch)
        with DeathWatch(one.run_dir) as later:
            assert ended(later) == first, "what nobody answered is told again"
            assert tenant.gate.mem_extra == HELD
            wait_for(lambda: tenant.gate.mem_extra == 0, "let go without an answer")
        assert "qgpud did not say whether its memory is free" in one.log.read_text()


def test_dead_list_is_bounded_and_only_hurts_its_own_job(tmp_path: Path) -> None:
    """A process that lies about its size is charged its job's cap at most, and another job
    nothing.
    """
    mine, other = grant(1, cap=10 * MIB), grant(2)
    with arbiter(tmp_path, *UNHURRIED) as one, one.link() as link, DeathWatch(one.run_dir) as watch:
        link.sync([settings()], [mine, other])
        tenant, bystander = Tenant(one.run_dir, mine), Tenant(one.run_dir, other, mem_used=7)
        kill(child(one, 1, "offline", "tenant.slot.mem_used = 2**63"))
        ended(watch)
        assert tenant.gate.mem_extra == 10 * MIB
        kill(
            child(
                one, 1, "offline", "tenant.slot.mem_used = 1; tenant.slot.mem_pending = 2**64 - 1"
            )
        )
        ended(watch)
        assert tenant.gate.mem_extra == 20 * MIB
        assert bystander.gate.mem_extra == 0 and tenant_stats(link, 2).mem_used == 7
        link.revoke(1)
        link.gone(1, CARD, 1)
        assert tenant_stats(link, 2).mem_extra == 0


def test_a_process_without_memory_frees_nothing_of_the_overflow(tmp_path: Path) -> None:
    """It dies when the list is full and others are counted as one: an answer for it would be
    taken for another's.
    """
    mine = grant(1)
    with arbiter(tmp_path, *UNHURRIED) as one, one.link() as link, DeathWatch(one.run_dir) as watch:
        link.sync([settings()], [mine])
        tenant = Tenant(one.run_dir, mine)
        nothing = "tenant.slot.mem_used = 0"
        kill(child(one, 1, "offline", nothing))
        assert ended(watch).mem_used == 0, (
            "one that finds room in the list is told of, and takes a place in it"
        )
        told = many_deaths(one, watch)
        full = tenant.gate.mem_extra
        empty = [child(one, 1, "offline", nothing) for _ in range(FIRST + SECOND - 127)]
        for process in empty:
            kill(process)
        wait_for(lambda: tenant_stats(link, 1).procs == 1, "their slots are free")
        for death in watch.died():
            link.gone(1, CARD, death.pid)
        assert tenant.gate.mem_extra == full
        for death in told:
            link.gone(1, CARD, death.pid)
        assert tenant.gate.mem_extra == 0


def many_deaths(one: Arbiter, watch: DeathWatch) -> list[ProcessStats]:
    """What the watcher is told when more than one list holds died."""
    told: list[ProcessStats] = []
    code = BURST.format(here=str(HERE), run_dir=str(one.run_dir), first=FIRST, second=SECOND)
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, text=True) as crowd:
        wait_for(
            lambda: told.extend(watch.died()) or len(told) == FIRST, "each death is reported", 60
        )
        crowd.communicate("go\n", timeout=60)  # the others wait ready to register
    wait_for(lambda: told.extend(watch.died()) or len(told) == FIRST + SECOND, "and the others")
    assert crowd.returncode == 0
    return told


def test_many_deaths_at_once(tmp_path: Path) -> None:
    """More than one list holds, died in one moment: each is told and charged; 128 are told
    apart, the others end together, with the last of them.
    """
    mine = grant(1)
    with arbiter(tmp_path, *UNHURRIED) as one, one.link() as link, DeathWatch(one.run_dir) as watch:
        link.sync([settings()], [mine])
        tenant = Tenant(one.run_dir, mine)
        told = many_deaths(one, watch)
        assert tenant.gate.mem_extra == (FIRST + SECOND) * 1000
        for death in told[:-1]:
            link.gone(death.job_id, death.uuid, death.pid)
        assert tenant.gate.mem_extra == (FIRST + SECOND - 128) * 1000, (
            "one of the others is still on the card"
        )
        link.gone(1, CARD, told[-1].pid)
        assert tenant.gate.mem_extra == 0


def test_many_dead_without_an_answer_are_released(tmp_path: Path) -> None:
    mine = grant(1)
    with (
        arbiter(tmp_path, "--answer-ms", "1000") as one,
        one.link() as link,
        DeathWatch(one.run_dir) as watch,
    ):
        link.sync([settings()], [mine])
        tenant = Tenant(one.run_dir, mine)
        many_deaths(one, watch)
        wait_for(lambda: tenant.gate.mem_extra == 0, "all are let go of, told apart or not")


def test_processes_are_listed_for_the_audit(tmp_path: Path) -> None:
    mine, other = grant(1), grant(2, "online")
    with arbiter(tmp_path) as one, one.link() as link:
        link.sync([settings()], [mine, other])
        assert link.processes() == []
        tenant = Tenant(one.run_dir, mine, mem_used=11)
        tenant.slot.mem_pending = 5
        process = child(one, 2, "online")
        me = tenant.slot.pid
        expected = {
            ProcessStats(1, CARD, me, 0, 11, 5),
            ProcessStats(2, CARD, process.pid, 0, HELD, 0),
        }
        assert set(link.processes()) == expected
        tenant.slot.mem_used = 2**64 - 1
        assert next(p for p in link.processes() if p.pid == me).mem_used == 1 << 48
        kill(process)
        wait_for(lambda: [p.pid for p in link.processes()] == [me], "the dead are not listed")


def test_watch_ends_with_the_arbiter(tmp_path: Path) -> None:
    with arbiter(tmp_path) as one:
        watch = DeathWatch(one.run_dir)
        one.stop(signal.SIGKILL)
        assert readable_within(watch.fileno(), 10)
        with pytest.raises(ArbiterGone, match="closed the connection"):
            watch.died()
        watch.close()
        with pytest.raises(ArbiterGone, match="no arbiter at"):
            DeathWatch(one.run_dir)
        one.start()


def test_same_pid_registers_again_while_its_predecessor_is_charged(tmp_path: Path) -> None:
    """Numbers of processes come round: a new process is not let go of in the place of a dead
    one.
    """
    mine = grant(1)
    with arbiter(tmp_path) as one, one.link() as link, DeathWatch(one.run_dir) as watch:
        link.sync([settings()], [mine])
        tenant = Tenant(one.run_dir, mine, mem_used=50)
        process = child(one, 1, "offline")
        kill(process)
        ended(watch)
        again = _with_pid(one, link, watch, process.pid)
        if again is None:
            pytest.skip("this system does not give the same number twice in a row")
        wait_for(lambda: tenant_stats(link, 1).procs == 2, "the newcomer is registered")
        link.gone(1, CARD, process.pid)
        assert tenant.gate.mem_extra == 0
        stats = tenant_stats(link, 1)
        assert (stats.procs, stats.mem_used) == (2, 50 + HELD), "the living one counts on"
        kill(again)


def _with_pid(
    one: Arbiter, link: ArbiterLink, watch: DeathWatch, pid: int
) -> subprocess.Popen[str] | None:
    """child() under the wanted number, by the kernel's own knob."""
    knob = Path("/proc/sys/kernel/ns_last_pid")
    for _ in range(20):
        try:
            knob.write_text(str(pid - 1))
        except OSError:
            return None
        process = child(one, 1, "offline")
        if process.pid == pid:
            return process
        # another process of the machine took the number
        kill(process)
        ended(watch)
        link.gone(1, CARD, process.pid)
    return None
