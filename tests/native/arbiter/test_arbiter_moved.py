"""A job moves to another card: its processes name the card where they began, and find a shut gate
until they are at the new one.
"""

from __future__ import annotations

import errno
import itertools
import os
from dataclasses import replace
from pathlib import Path

import pytest
from arbiter_support import (
    CARD,
    CARD2,
    Tenant,
    arbiter,
    connect,
    exchange,
    grant,
    register_message,
    sealed,
    settings,
    tenant_stats,
    wait_for,
)

from enforcer.wire import abi
from enforcer.wire.link import ArbiterError, ArbiterLink, MemoryAction, Want
from enforcer.wire.watch import DeathWatch
from gres.grant.store import Grant

pytestmark = pytest.mark.native
CARD3 = "GPU-00000000-0000-0000-0000-000000000003"
CARDS = (CARD, CARD2, CARD3)
SHUT = abi.GATE_CLOSED | abi.GATE_WHY_MEMORY
JOB = 7
HOME = grant(JOB)


def at(card: str, home: str = CARD, job: int = JOB) -> Grant:
    """The grant of a job with one card: it is at `card` now and began at `home`."""
    here = replace(HOME.cards[0], uuid=card, home=home, home_minor=0)
    return replace(HOME, job_id=job, cards=(here if card != home else HOME.cards[0],))


def is_held(tenant: Tenant) -> bool:
    return tenant.flags & SHUT == SHUT


def move(link: ArbiterLink, old: Grant, new: Grant) -> None:
    """What qgpud sends while all processes are checkpointed."""
    link.grant(old, held=True)
    link.grant(new, held=True)
    link.revoke(old.job_id, old.cards[0].uuid)


def tenants(link: ArbiterLink) -> list[tuple[int, str, int, int]]:
    return sorted((t.job_id, t.uuid, t.procs, t.mem_used) for t in link.stats())


def asked(run_dir: Path, uuid: str, job: int = JOB) -> int:
    """The status of a registration by this name."""
    with connect(run_dir) as sock:
        proof = sealed(abi.pack_grant(replace(HOME, job_id=job)))
        answer, fds = exchange(sock, register_message(job, uuid), (proof,))
    for fd in (*fds, proof):
        os.close(fd)
    return answer.status


def test_processes_register_by_the_name_that_they_know(tmp_path: Path) -> None:
    with arbiter(tmp_path) as one, one.link() as link:
        link.sync([settings(uuid) for uuid in CARDS], [HOME])
        old = Tenant(one.run_dir, HOME, mem_used=5000)
        move(link, HOME, at(CARD2))
        assert old.sock.recv(1) == b"", "its connection ended at once"
        assert is_held(old) and old.gate.heartbeat_ns == abi.BEAT_LEFT, "for good"
        assert (old.slot.pid, old.slot.mem_used) == (os.getpid(), 5000), "siblings count it here"
        assert tenants(link) == [(JOB, CARD2, 0, 0)]
        new = Tenant(one.run_dir, HOME, mem_used=5000)
        assert is_held(new) and tenants(link) == [(JOB, CARD2, 1, 5000)]
        assert [p.uuid for p in link.processes()] == [CARD2], "lists name the card itself"
        link.grant(at(CARD2))
        wait_for(lambda: not new.closed, "the job goes on")
        assert is_held(old)
        new.slot.launches += 3
        new.ring()
        wait_for(lambda: tenant_stats(link, JOB, CARD2).launches == 3, "it counts there")
        new.close()
        later = Tenant(one.run_dir, HOME, CARD2)
        assert not is_held(later), "the card's own name is understood, too"
        assert asked(one.run_dir, CARD3) == errno.EPERM


def test_a_job_moves_on_and_comes_back(tmp_path: Path) -> None:
    """Whenever a process began, it names the card that was booked."""
    with arbiter(tmp_path) as one, one.link() as link:
        link.sync([settings(uuid) for uuid in CARDS], [HOME])
        places = [HOME, at(CARD2), at(CARD3), HOME, at(CARD2)]
        process = Tenant(one.run_dir, HOME)
        for old, new in itertools.pairwise(places):
            move(link, old, new)
            assert process.sock.recv(1) == b""
            process = Tenant(one.run_dir, HOME, mem_used=77)
            assert is_held(process)
            assert tenants(link) == [(JOB, new.cards[0].uuid, 1, 77)]
            link.grant(new)
            wait_for(lambda it=process: not it.closed, "it goes on")


def test_only_the_tenant_of_that_card_goes(tmp_path: Path) -> None:
    both, other = grant(JOB, "offline", 50, 1 << 30, CARD, CARD2), grant(8)
    with arbiter(tmp_path) as one, one.link() as link:
        link.sync([settings(uuid) for uuid in CARDS], [both, other])
        kept = Tenant(one.run_dir, both, CARD2), Tenant(one.run_dir, other)
        gone = Tenant(one.run_dir, both)
        for job, uuid in ((JOB, CARD3), (9, CARD), (JOB, "GPU-none")):
            link.revoke(job, uuid)  # no such tenant, which is no error
        assert len(tenants(link)) == 3
        link.revoke(JOB, CARD)
        assert gone.sock.recv(1) == b"" and is_held(gone)
        assert tenants(link) == [(JOB, CARD2, 1, 0), (8, CARD, 1, 0)]
        for tenant in kept:
            assert not is_held(tenant)
        assert asked(one.run_dir, CARD) == errno.EPERM, "it went nowhere"
        link.revoke(JOB, CARD2)
        link.revoke(8)
        assert tenants(link) == [(8, CARD, 1, 0)], "the end of a job keeps the page of a process"


def test_a_name_that_could_mean_two_cards_is_refused(tmp_path: Path) -> None:
    def refused(of: Grant, held: bool = False) -> None:
        with pytest.raises(ArbiterError) as error:
            link.grant(of, held=held)
        assert error.value.errno == errno.EINVAL

    with arbiter(tmp_path) as one, one.link() as link:
        link.sync([settings(uuid) for uuid in CARDS], [HOME])
        refused(at(CARD2))  # while the job may be on two cards both are held
        refused(at(CARD, home=CARD3), held=True)  # a tenant keeps its name
        link.grant(HOME, held=True)
        link.grant(at(CARD2), held=True)
        refused(at(CARD2))
        refused(HOME)
        link.revoke(JOB, CARD2)
        link.grant(HOME)  # the move was given up
        move(link, HOME, at(CARD2))
        refused(replace(HOME, cards=(replace(HOME.cards[0], uuid=CARD2),)), held=True)
        refused(HOME)
        link.grant(at(CARD2))
        link.grant(at(CARD2, job=8))  # another job's names are its own
        assert tenants(link) == [(JOB, CARD2, 0, 0), (8, CARD2, 0, 0)]


def test_a_home_equal_to_the_card_is_refused(tmp_path: Path) -> None:
    with arbiter(tmp_path) as one, one.link() as link:
        link.sync([settings()], [])
        card = HOME.cards[0]
        object.__setattr__(card := replace(card), "home", CARD)
        with pytest.raises(ArbiterError) as error:
            link.grant(replace_unchecked(HOME, card))
        assert error.value.errno == errno.EINVAL


def replace_unchecked(of: Grant, card: object) -> Grant:
    """A grant that the checks of Python would refuse."""
    object.__setattr__(made := replace(of), "cards", (card,))
    return made


def test_a_list_that_has_the_new_card_alone_ends_the_move(tmp_path: Path) -> None:
    """qgpud was started again in the midst: the old tenant's processes would wait for ever."""
    with arbiter(tmp_path) as one, one.link() as link:
        cards = [settings(uuid) for uuid in CARDS]
        link.sync(cards, [HOME])
        process = Tenant(one.run_dir, HOME)
        link.grant(HOME, held=True)
        link.grant(at(CARD2), held=True)
        link.sync(cards, [at(CARD2)])
        assert process.sock.recv(1) == b"" and is_held(process)
        process = Tenant(one.run_dir, HOME)
        assert tenants(link) == [(JOB, CARD2, 1, 0)]
        link.grant(at(CARD2), held=True)
        link.grant(at(CARD3), held=True)
        link.sync(cards, [at(CARD2)])
        assert tenants(link) == [(JOB, CARD2, 1, 0)], "what it was not told of ended"
        assert not is_held(process)


def test_while_both_stand_the_later_one_takes_who_comes(tmp_path: Path) -> None:
    with arbiter(tmp_path) as one, one.link() as link:
        link.sync([settings(uuid) for uuid in CARDS], [HOME])
        first = Tenant(one.run_dir, HOME)
        link.grant(HOME, held=True)
        link.grant(at(CARD2), held=True)
        first.close()
        second = Tenant(one.run_dir, HOME)
        assert tenants(link) == [(JOB, CARD, 1, 0), (JOB, CARD2, 1, 0)]
        link.revoke(JOB, CARD)
        assert tenants(link) == [(JOB, CARD2, 1, 0)]
        second.slot.mem_used = 99
        assert tenants(link) == [(JOB, CARD2, 1, 99)], "it stayed registered"


def test_what_it_waits_for_is_taken_back_and_its_call_waits_on(tmp_path: Path) -> None:
    """The allocation is made again on the new card. It must not hear a refusal in between."""
    with arbiter(tmp_path) as one, one.link() as link, DeathWatch(one.run_dir) as watch:
        link.sync([settings(uuid) for uuid in CARDS], [HOME])
        link.memory(0, CARD, MemoryAction.WAIT)
        process = Tenant(one.run_dir, HOME)
        process.slot.mem_wanted = 4096
        process.ring()
        wants: list[Want] = []
        wait_for(lambda: wants.extend(watch.wants()) or wants, "it waits")
        move(link, HOME, at(CARD2))
        wait_for(lambda: wants.extend(watch.wants()) or len(wants) > 1, "and no more")
        assert [(w.job_id, w.uuid, w.wanted) for w in wants] == [(JOB, CARD, 4096), (JOB, CARD, 0)]
        assert process.gate.mem_wait == 1 and is_held(process)


def test_a_new_arbiter_is_told_where_the_job_is(tmp_path: Path) -> None:
    with arbiter(tmp_path) as one, one.link() as link:
        cards = [settings(uuid) for uuid in CARDS]
        link.sync(cards, [HOME])
        move(link, HOME, at(CARD2))
        one.stop(9)
        link.close()
        one.start()
        assert asked(one.run_dir, CARD) == errno.EAGAIN
        link.sync(cards, [at(CARD2)])
        assert not is_held(Tenant(one.run_dir, HOME))
        assert tenants(link) == [(JOB, CARD2, 1, 0)]


def test_an_ended_job_leaves_no_name(tmp_path: Path) -> None:
    """Processes of it live on. Its number comes again, with a grant of the card itself."""
    again = replace(HOME, cards=(replace(HOME.cards[0], uuid=CARD2),))
    with arbiter(tmp_path) as one, one.link() as link:
        link.sync([settings(uuid) for uuid in CARDS], [HOME])
        move(link, HOME, at(CARD2))
        process = Tenant(one.run_dir, HOME)
        link.revoke(JOB)
        assert asked(one.run_dir, CARD) == asked(one.run_dir, CARD2) == errno.EPERM
        link.grant(again)
        assert process.sock.recv(1) == b"" and process.closed
        assert asked(one.run_dir, CARD) == errno.EPERM and asked(one.run_dir, CARD2) == 0
