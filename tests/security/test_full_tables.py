"""One user fills each table of the arbiter that all share; another registers and works meanwhile.

docs/specs/limits.md lists the tables. Connections are in test_arbiter_unknown_uids.py.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from arbiter_support import (
    ARBITER_ASAN,
    ARBITER_FEW,
    CARD,
    Tenant,
    arbiter,
    close_all,
    connect,
    exchange,
    grant,
    let_others_in,
    register_message,
    sealed,
    settings,
    tenant_stats,
    wait_for,
)
from test_arbiter_unknown_uids import CARDS, Forked, Say, all_ended, connected, of_user

from enforcer.wire import abi
from enforcer.wire.link import ArbiterError
from gres.grant.store import Grant
from simulator.policy_layout import MAX_TENANTS

pytestmark = [
    pytest.mark.native,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs other users to play"),
]

GREEDY, HONEST = 300_100, 300_200


def registered(run_dir: Path, grants: list[Grant], proofs: list[int]) -> Callable[[Say], object]:
    """One process that joins all of these jobs, outlives them, and says how many took it."""

    def run(say: Say) -> None:
        sock, taken = connected(run_dir), 0
        for of, proof in zip(grants, proofs, strict=True):
            answer, fds = exchange(sock, register_message(of.job_id), (proof,))
            taken += answer.status == 0
            close_all(fds)
        say(taken)
        signal.pause()

    return run


def works(run_dir: Path, of: Grant) -> None:
    """The job registers, and its gate opens for it."""
    tenant = Tenant(run_dir, of)
    wait_for(tenant.begin, "its gate opens")
    tenant.finish()
    tenant.close()


def test_processes_that_outlive_their_jobs_keep_no_new_job_from_a_card(tmp_path: Path) -> None:
    """16 processes joined 256 jobs and live on. The next Prolog failed, and drained the node."""
    grants = [of_user(job, GREEDY) for job in range(1, MAX_TENANTS + 1)]
    proofs = [sealed(abi.pack_grant(of)) for of in grants]
    with arbiter(tmp_path, binary=ARBITER_ASAN) as one, one.link() as link:
        let_others_in(tmp_path)
        link.sync([settings()], grants)
        step = MAX_TENANTS // 16
        made = [
            Forked(GREEDY, registered(one.run_dir, grants[at : at + step], proofs[at : at + step]))
            for at in range(0, MAX_TENANTS, step)
        ]
        with all_ended(*made):
            assert sum(each.said() for each in made) == MAX_TENANTS
            for of in grants:
                link.revoke(of.job_id)
            assert len(link.stats()) == MAX_TENANTS, "their processes live"
            for job in range(1000, 1050):
                link.grant(grant(job, "online"))
            works(one.run_dir, grant(1000, "online"))
            stats = link.stats()
            assert len(stats) == MAX_TENANTS
            assert {of.job_id for of in stats if of.uid == 0} == set(range(1000, 1050))
            assert {of.job_id for of in stats if of.uid} == set(range(51, MAX_TENANTS + 1)), (
                "the oldest made room"
            )
        wait_for(lambda: len(link.stats()) == 50, "the rest ends with its processes")
    close_all(proofs)


def test_a_process_that_made_room_hears_that_its_job_has_no_grant(tmp_path: Path) -> None:
    """Its gate stays closed in the page that it keeps, and it is told when it asks again."""
    with arbiter(tmp_path, binary=ARBITER_ASAN) as one, one.link() as link:
        link.sync([settings()], [grant(1)])
        left = Tenant(one.run_dir, grant(1))
        link.revoke(1)
        assert left.closed
        for job in range(2, MAX_TENANTS + 2):
            link.grant(grant(job))
        assert tenant_stats(link, 1) is None and left.closed
        assert left.sock.recv(1) == b"", "its connection ends, so it asks again"
        with connect(one.run_dir) as sock:
            answer, _ = exchange(sock, register_message(1))
        assert (answer.status, answer.message.decode()) == (
            errno.EPERM,
            f"job 1 has no grant on card {CARD}",
        )
        left.close()
        with pytest.raises(ArbiterError, match="there is no room for more") as full:
            link.grant(grant(999))
        assert full.value.errno == errno.ENOSPC, "a grant that stands never makes room"
        assert len(link.stats()) == MAX_TENANTS


def test_the_user_with_most_ended_jobs_makes_room(tmp_path: Path) -> None:
    """Not the one whose job ended first."""
    few, many = of_user(1, HONEST), [of_user(job, GREEDY) for job in range(2, 5)]
    proofs = [sealed(abi.pack_grant(of)) for of in (few, *many)]
    with arbiter(tmp_path, binary=ARBITER_ASAN) as one, one.link() as link:
        let_others_in(tmp_path)
        link.sync([settings()], [few, *many])
        lone = Forked(HONEST, registered(one.run_dir, [few], proofs[:1]))
        crowd = Forked(GREEDY, registered(one.run_dir, many, proofs[1:]))
        with all_ended(lone, crowd):
            assert (lone.said(), crowd.said()) == (1, 3)
            for of in (few, *many):
                link.revoke(of.job_id)
            for job in range(1000, 1000 + MAX_TENANTS - 3):
                link.grant(grant(job))
            assert {of.job_id for of in link.stats() if of.job_id < 1000} == {1, 3, 4}
    close_all(proofs)


def test_a_number_that_slurm_gives_again_is_not_held_by_the_user_who_had_it(tmp_path: Path) -> None:
    before = of_user(7, GREEDY)
    proof = sealed(abi.pack_grant(before))
    with arbiter(tmp_path, binary=ARBITER_ASAN) as one, one.link() as link:
        let_others_in(tmp_path)
        link.sync([settings()], [before])
        left = Forked(GREEDY, registered(one.run_dir, [before], [proof]))
        with all_ended(left):
            assert left.said() == 1
            with pytest.raises(ArbiterError, match="known with another user"):
                link.grant(grant(7))
            link.revoke(7)
            link.grant(grant(7, "online"))
            works(one.run_dir, grant(7, "online"))
    os.close(proof)


MAX_PROCS, PER_JOB = 512, 128  # of ARBITER_FEW


def crowd(run_dir: Path, jobs: list[int], proofs: list[int]) -> Callable[[Say], object]:
    """Registers processes without end until one is refused; says how many got in, and why not."""

    def run(say: Say) -> None:
        mine = 0
        for job, proof in zip(jobs, proofs, strict=True):
            for _ in range(PER_JOB):
                read, write = os.pipe()
                if not os.fork():
                    signal.signal(signal.SIGTERM, signal.SIG_DFL)
                    os.write(write, json.dumps(join(run_dir, job, proof)).encode())
                    signal.pause()
                answer = json.loads(os.read(read, 4096))
                close_all([read, write])
                if answer[0]:
                    say([mine, *answer])
                    signal.pause()
                mine += 1
        say([mine, 0, ""])
        signal.pause()

    return run


def join(run_dir: Path, job: int, proof: int) -> tuple[int, str]:
    """Joins as a process that then gives its connection up, which frees nothing."""
    while True:
        with contextlib.suppress(OSError, abi.AbiError), connected(run_dir) as sock:
            answer, fds = exchange(sock, register_message(job), (proof,))
            close_all(fds)
            if answer.status != errno.EAGAIN:
                return answer.status, answer.message.decode()


def test_no_user_may_have_more_processes_than_are_free(tmp_path: Path) -> None:
    """He may have half of the places. Others then register, and he reads why he may not."""
    jobs = list(range(1, MAX_PROCS // 2 // PER_JOB + 2))
    grants = [of_user(job, GREEDY) for job in jobs]
    proofs = [sealed(abi.pack_grant(of)) for of in grants]
    few = ("--log-level", "error")
    with arbiter(tmp_path, *few, binary=ARBITER_FEW) as one, one.link() as link:
        let_others_in(tmp_path)
        link.sync([settings()], [*grants, grant(1000, "online")])
        greedy = Forked(GREEDY, crowd(one.run_dir, jobs, proofs))
        greedy.patience = 60
        with all_ended(greedy):
            assert greedy.said() == [
                MAX_PROCS // 2,
                errno.ENOSPC,
                "your user has as many processes on this node's cards as there are places left;"
                " wait until one ends",
            ]
            works(one.run_dir, grant(1000, "online"))
    close_all(proofs)


def test_one_process_is_told_when_it_has_no_place_left_itself(tmp_path: Path) -> None:
    grants = [grant(job) for job in range(1, abi.MAX_CARDS + 2)]
    with arbiter(tmp_path, "--log-level", "error") as one, one.link() as link:
        link.sync([settings()], grants)
        joined = [Tenant(one.run_dir, of) for of in grants[:-1]]
        proof = sealed(abi.pack_grant(grants[-1]))
        with connect(one.run_dir) as sock:
            answer, _ = exchange(sock, register_message(grants[-1].job_id), (proof,))
        said = b"the process is registered for as many cards as one process may be"
        assert (answer.status, answer.message) == (errno.ENOSPC, said)
        for each in joined:
            each.close()
        os.close(proof)


def test_the_log_has_no_byte_that_a_user_chose_and_each_user_has_its_own_lines(
    tmp_path: Path,
) -> None:
    """A UUID with a newline made lines of its own; one user's refusals hid the others'."""
    forged = "GPU-\nqgpu-arbiter: error: \x1b[31mforged\x07\xff".encode("latin-1")

    def flood(say: Say) -> None:
        for _ in range(20):
            with contextlib.suppress(OSError, abi.AbiError), connected(one.run_dir) as sock:
                for _ in range(50):
                    message = bytearray(register_message(9))
                    message[24 : 24 + len(forged)] = forged
                    exchange(sock, bytes(message))
        say("done")

    def once(say: Say) -> None:
        with connected(one.run_dir) as sock:
            say(exchange(sock, register_message(77))[0].status)

    with arbiter(tmp_path) as one, one.link() as link:
        let_others_in(tmp_path)
        link.sync([settings()], [of_user(1, GREEDY), of_user(2, HONEST)])
        greedy = Forked(GREEDY, flood)
        with all_ended(greedy):
            assert greedy.said() == "done"
            honest = Forked(HONEST, once)
            with all_ended(honest):
                assert honest.said() == errno.EPERM
        log = one.log.read_bytes()
    assert all(byte == 10 or 32 <= byte < 127 for byte in log)
    lines = log.decode().splitlines()
    assert all(line.startswith("qgpu-arbiter: ") for line in lines)
    assert not any("error: " in line and "not registered" not in line for line in lines)
    assert f"(uid {HONEST}) not registered: job 77 has no grant on card {CARD}" in log.decode()
    of_greedy = [line for line in lines if f"(uid {GREEDY})" in line]
    assert 20 <= len(of_greedy) <= 60, "20 at once, then one a second"


def test_users_with_a_grant_on_every_card_leave_a_place_on_each(tmp_path: Path) -> None:
    """The same on all cards at once: each has its own places."""
    with arbiter(tmp_path, "--log-level", "error") as one, one.link() as link:
        link.sync([settings(card) for card in CARDS[:4]], [])
        left = [grant(job, "offline", 1, 1 << 28, *CARDS[:4]) for job in range(1, 17)]
        for of in left:
            link.grant(of)
        joined = [Tenant(one.run_dir, left[0], card) for card in CARDS[:4]]
        link.revoke(1)
        for job in range(100, 100 + MAX_TENANTS - 15):
            link.grant(grant(job, "offline", 1, 1 << 28, *CARDS[:4]))
        assert not any(tenant_stats(link, 1, card) for card in CARDS[:4])
        for each in joined:
            each.close()
