"""Held jobs, and allocations that wait because the driver refused them: what the arbiter writes
into the gate page, and what it tells who watches.
"""

from __future__ import annotations

import errno
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from arbiter_support import (
    CARD,
    CARD2,
    GIB,
    Arbiter,
    Tenant,
    arbiter,
    grant,
    settings,
    tenant_stats,
    wait_for,
)

from enforcer.wire import abi
from enforcer.wire.link import ArbiterError, ArbiterLink, MemoryAction, Want
from enforcer.wire.messages import grant_messages, memory_message
from enforcer.wire.watch import DeathWatch
from gres.grant.store import Grant

pytestmark = pytest.mark.native
HELD = abi.GATE_CLOSED | abi.GATE_WHY_MEMORY
PROCESS = """
import sys
sys.path.insert(0, sys.argv[1])
from arbiter_support import *
tenant = Tenant(Path(sys.argv[2]), grant(int(sys.argv[3])))
print(os.getpid(), flush=True)
for line in sys.stdin:
    tenant.slot.mem_wanted = int(line)
    tenant.ring()
    print(flush=True)
"""

PROCESSES, LAST = 100, 1 << 20
CROWD = f"""
import sys, time
sys.path.insert(0, sys.argv[1])
from arbiter_support import *
held, hold = os.pipe()
for _ in range({PROCESSES}):
    if os.fork() == 0:
        os.close(hold)
        tenant = Tenant(Path(sys.argv[2]), grant(1))
        end = time.monotonic() + 3
        while time.monotonic() < end:
            tenant.slot.mem_wanted += 1
            tenant.ring()
            time.sleep(0.001)
        tenant.slot.mem_wanted = {LAST}
        tenant.ring()
        os.read(held, 1)
        os._exit(0)
print("all", flush=True)
time.sleep(600)
"""


@contextmanager
def node(tmp_path: Path, *grants: Grant) -> Iterator[tuple[Arbiter, ArbiterLink, DeathWatch]]:
    """An arbiter with these grants, a link to it and a watch."""
    with arbiter(tmp_path) as one, one.link() as link, DeathWatch(one.run_dir) as watch:
        link.sync([settings(), settings(CARD2)], grants)
        yield one, link, watch


def is_held(tenant: Tenant) -> bool:
    return tenant.flags & (abi.GATE_CLOSED | abi.GATE_WHY_MASK) == HELD


def told(watch: DeathWatch, *expected: int) -> list[Want]:
    """The next reports, which must name these bytes."""
    found: list[Want] = []
    wait_for(lambda: found.extend(watch.wants()) or len(found) >= len(expected), f"told {expected}")
    assert [want.wanted for want in found] == list(expected)
    return found


def words(tenant: Tenant) -> tuple[int, int, int, int]:
    gate = tenant.gate
    return gate.mem_wait, gate.mem_retry, gate.mem_final, gate.mem_changes


@contextmanager
def process(one: Arbiter, job_id: int) -> Iterator[subprocess.Popen[str]]:
    """Another process of the job; each line that it gets is what it wants."""
    support = Path(__file__).resolve().parents[2] / "support/node"
    command = [sys.executable, "-c", PROCESS, str(support), str(one.run_dir), str(job_id)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        assert int(child.stdout.readline()) == child.pid
        yield child
        child.kill()


def test_a_held_job_is_closed_on_all_its_cards_until_released(tmp_path: Path) -> None:
    both, other = grant(1, "offline", 50, GIB, CARD, CARD2), grant(2)
    with node(tmp_path, both, other) as (one, link, _):
        tenants = [Tenant(one.run_dir, both), Tenant(one.run_dir, both, CARD2)]
        neighbour = Tenant(one.run_dir, other)
        assert tenants[0].begin()
        link.grant(both, held=True)
        assert all(is_held(tenant) for tenant in tenants), "at once, with the answer"
        assert not tenants[0].begin(), "a thread waits there"
        tenants[0].finish()
        wait_for(neighbour.begin, "the card is its alone")
        before = tenant_stats(link, 1)
        time.sleep(0.05)
        after = tenant_stats(link, 1)
        assert before.closed_preempted_ns == after.closed_preempted_ns
        assert before.closed_share_ns == after.closed_share_ns, "it counts as neither"
        assert all(is_held(tenant) for tenant in tenants) and not neighbour.closed
        link.grant(both)
        assert not any(is_held(tenant) for tenant in tenants)
        neighbour.finish()
        wait_for(lambda: not tenants[0].closed, "its turn comes")


def test_a_process_that_comes_finds_its_job_held(tmp_path: Path) -> None:
    """Also after the first grant to a new arbiter, whatever it decides for others."""
    mine = grant(1)
    with node(tmp_path, mine) as (one, link, _):
        first = Tenant(one.run_dir, mine)
        link.grant(mine, held=True)
        first.close()
        assert is_held(Tenant(one.run_dir, mine))
    with arbiter(tmp_path) as one, one.link() as link:
        link.hello()
        link.card(settings())
        link.grant(mine, held=True)
        assert is_held(Tenant(one.run_dir, mine)), "before the list ends"
        link.grant(grant(2))
        link.synced()
        assert is_held(Tenant(one.run_dir, mine))
        assert not is_held(Tenant(one.run_dir, grant(2)))


def test_unknown_flags_of_a_grant_are_refused(tmp_path: Path) -> None:
    with node(tmp_path) as (_, link, _):
        (message,) = grant_messages(grant(1), held=True)
        message.flags |= 4
        with pytest.raises(ArbiterError, match="out of range"):
            link._command(message, "a grant")


def test_orders_reach_the_page_of_their_jobs(tmp_path: Path) -> None:
    one_job, other = grant(1), grant(2)
    with node(tmp_path, one_job, other) as (one, link, _):
        first, second = Tenant(one.run_dir, one_job), Tenant(one.run_dir, other)
        assert words(first) == (0, 0, 0, 0)
        for action in MemoryAction.WAIT, MemoryAction.RETRY, MemoryAction.RETRY, MemoryAction.FINAL:
            link.memory(1, CARD, action)
        assert words(first) == (1, 2, 1, 4) and words(second) == (0, 0, 0, 0)
        link.memory(1, CARD, MemoryAction.WAIT)
        assert words(first) == (1, 2, 1, 4), "it waits already: nothing changed"
        link.memory(0, CARD, MemoryAction.FINAL)
        assert words(first) == (1, 2, 2, 5) and words(second) == (0, 0, 1, 1)
        link.memory(1, CARD, MemoryAction.NOWAIT)
        assert words(first) == (0, 2, 2, 6)
        link.memory(7, CARD, MemoryAction.RETRY)  # an unknown job is no error


def test_orders_for_all_jobs_hold_for_later_ones(tmp_path: Path) -> None:
    mine = grant(1)
    with node(tmp_path, mine) as (one, link, _):
        tenant = Tenant(one.run_dir, mine)
        link.memory(0, CARD, MemoryAction.WAIT)
        assert words(tenant)[0] == 1
        link.grant(grant(2))
        late = Tenant(one.run_dir, grant(2))
        assert words(late)[0] == 1
        link.revoke(2)
        assert words(late)[0] == 0, "nobody would answer a job that has ended"
        link.grant(grant(2))
        assert words(late)[0] == 1
        link.memory(0, CARD, MemoryAction.NOWAIT)
        link.grant(grant(3))
        assert words(Tenant(one.run_dir, grant(3)))[0] == words(late)[0] == 0


@pytest.mark.parametrize("action", [0, 5, 1 << 31])
def test_a_strange_order_is_refused(tmp_path: Path, action: int) -> None:
    with node(tmp_path) as (_, link, _):
        message = memory_message(1, CARD, MemoryAction.WAIT)
        message.action = action
        with pytest.raises(ArbiterError, match="out of range"):
            link._command(message, "an order")
        with pytest.raises(ArbiterError) as refused:
            link.memory(0, "GPU-none", MemoryAction.WAIT)
        assert refused.value.errno == errno.ENODEV


def test_who_watches_hears_what_is_wanted_and_its_end(tmp_path: Path) -> None:
    mine = grant(1)
    with node(tmp_path, mine) as (one, _, watch):
        tenant = Tenant(one.run_dir, mine)
        tenant.slot.mem_wanted = 5000
        tenant.ring()
        (want,) = told(watch, 5000)
        assert (want.job_id, want.uuid) == (1, CARD)
        tenant.slot.mem_wanted = 1 << 60
        tenant.ring()
        assert told(watch, mine.cards[0].mem_cap), "more than its cap is a lie"
        tenant.slot.mem_wanted = 0
        tenant.ring()
        told(watch, 0)


def test_the_end_of_a_process_ends_what_it_wanted(tmp_path: Path) -> None:
    with node(tmp_path, grant(1)) as (one, _, watch), process(one, 1) as child:
        assert child.stdin is not None
        child.stdin.write("700\n")
        child.stdin.flush()
        (want,) = told(watch, 700)
        assert want.pid == child.pid
        child.kill()
        died: list[object] = []
        wait_for(lambda: died.extend(watch.died()) or died, "its death is told")
        assert [want.wanted for want in watch.wants()] == [0], "before its death"


def test_a_new_watch_hears_what_is_waited_for(tmp_path: Path) -> None:
    mine, other = grant(1), grant(2)
    with node(tmp_path, mine, other) as (one, link, _):
        first, second = Tenant(one.run_dir, mine), Tenant(one.run_dir, other)
        for tenant, wanted in (first, 100), (second, 200):
            tenant.slot.mem_wanted = wanted
            tenant.ring()
        second.slot.mem_wanted = 0
        second.ring()
        wait_for(lambda: not link.stats()[0].busy, "idle")
        with DeathWatch(one.run_dir) as late:
            found: dict[int, int] = {}
            wait_for(
                lambda: found.update({w.job_id: w.wanted for w in late.wants()}) or 1 in found,
                "told what is still waited for",
            )
            assert found[1] == 100 and found.get(2, 0) in (0, 200)


def test_a_process_that_changes_its_mind_all_the_time_is_told_seldom(tmp_path: Path) -> None:
    """The last word is told, and far less than each."""
    mine = grant(1)
    with node(tmp_path, mine) as (one, _, watch):
        tenant = Tenant(one.run_dir, mine)
        begun, changes = time.monotonic(), 0
        while time.monotonic() < begun + 1:
            changes += 1
            tenant.slot.mem_wanted = changes
            tenant.ring()
        found: list[int] = []
        wait_for(
            lambda: found.extend(w.wanted for w in watch.wants()) or changes in found,
            "the last word is told",
        )
        passed = time.monotonic() - begun
        assert found == sorted(found) and len(found) <= 20 * passed + 2
        assert changes > 4 * len(found)


def test_each_of_many_jobs_is_heard(tmp_path: Path) -> None:
    jobs = [grant(job) for job in range(1, 17)]  # one process has no more slots
    with node(tmp_path, *jobs) as (one, _, watch):
        tenants = [Tenant(one.run_dir, job) for job in jobs]
        heard: set[tuple[int, int]] = set()
        for wanted in (1, 2, 3):
            for tenant in tenants:
                tenant.slot.mem_wanted = wanted
                tenant.ring()
            all_of_them = {(job.job_id, wanted) for job in jobs}
            wait_for(
                lambda expected=all_of_them: (
                    heard.update((w.job_id, w.wanted) for w in watch.wants()) or heard >= expected
                ),
                "each job is heard",
            )


def test_many_processes_of_a_job_share_a_limit(tmp_path: Path) -> None:
    """A hundred that change their minds all the time: far less is told than 20 times a second of
    each, and in the end the last word of each.
    """
    with node(tmp_path, grant(1)) as (one, _, watch):
        support = Path(__file__).resolve().parents[2] / "support/node"
        command = [sys.executable, "-c", CROWD, str(support), str(one.run_dir)]
        begun, found, last = time.monotonic(), 0, dict[int, int]()
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as crowd:
            assert crowd.stdout is not None

            def heard() -> bool:
                nonlocal found
                for want in watch.wants():
                    found += 1
                    last[want.pid] = want.wanted
                return list(last.values()) == [LAST] * PROCESSES

            wait_for(heard, "the last word of each is told", 60)
            passed = time.monotonic() - begun
            crowd.kill()
        assert found <= 256 + 100 * (passed + 1)


def test_a_watch_whose_socket_is_full_hears_the_last_word(tmp_path: Path) -> None:
    mine = grant(1)
    with node(tmp_path, mine) as (one, link, watch):
        tenant = Tenant(one.run_dir, mine)
        watch._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
        last = 0
        for last in range(1, 200):
            tenant.slot.mem_wanted = last
            tenant.ring()
            time.sleep(0.005)
        found: list[int] = []
        wait_for(
            lambda: found.extend(w.wanted for w in watch.wants()) or last in found, "the last word"
        )
        assert link.stats()
