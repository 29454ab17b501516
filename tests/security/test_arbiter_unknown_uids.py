"""Who may fill the arbiter's socket: uids without a grant share a small pool, users with one
share the rest fairly.
"""

from __future__ import annotations

import array
import contextlib
import errno
import json
import mmap
import os
import select
import signal
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from arbiter_support import (
    CARD,
    Arbiter,
    arbiter,
    close_all,
    connect,
    exchange,
    grant,
    let_others_in,
    register_message,
    sealed,
    settings,
    wait_for,
)

from enforcer.wire import abi
from gres.grant.store import Grant

pytestmark = [
    pytest.mark.native,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs other users to play"),
]

HONEST = 300_000
STRANGERS = range(310_000, 310_020)
FORGOTTEN_S = 5.0  # a connection that is not registered ends after this
REFUSED = 99  # a job that has no grant
CARDS = [f"GPU-00000000-0000-0000-0000-{n:012d}" for n in range(16)]

Say = Callable[[object], None]


class Forked:
    """A process of another user that runs a function, until that ends or it is killed."""

    def __init__(self, uid: int, action: Callable[[Say], object]) -> None:
        self.patience = 20.0  # seconds for what it says next
        read, self._write = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.setpgid(0, 0)
                os.setgroups([])
                os.setgid(uid)
                os.setuid(uid)
                action(self._say)
            except BaseException as error:  # else nobody would see it
                self._say(f"failed: {error!r}")
            finally:
                os._exit(0)
        os.close(self._write)
        self._said = os.fdopen(read, "rb", 0)

    def _say(self, what: object) -> None:
        os.write(self._write, json.dumps(what).encode() + b"\n")

    def said(self) -> Any:
        """The next that it says; fails if that is a complaint."""
        ready, _, _ = select.select([self._said], [], [], self.patience)
        assert ready, "it says nothing"
        line = self._said.readline()
        assert line and not line.startswith(b'"failed'), line
        return json.loads(line)

    def end(self) -> None:
        """And its children."""
        for kill in (os.killpg, os.kill):  # it may not have its group yet
            with contextlib.suppress(ProcessLookupError):
                kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        self._said.close()


@contextlib.contextmanager
def all_ended(*made: Forked) -> Iterator[None]:
    """None of them outlives the block."""
    try:
        yield
    finally:
        for each in made:
            each.end()


def of_user(job_id: int, uid: int = HONEST, *cards: str) -> Grant:
    return replace(grant(job_id, "offline", 5, 1 << 30, *cards), uid=uid, gid=uid)


def hung_up(sock: socket.socket) -> bool:
    """Takes what was answered; whether the arbiter ended it."""
    with contextlib.suppress(BlockingIOError):
        try:
            while sock.recv(1000):
                pass
        except (ConnectionError, TimeoutError):
            pass
        return True
    return False


def flood(run_dir: Path, most: int = 256) -> Callable[[Say], object]:
    """Holds what it gets, and asks each second over all of it; says something when it had time
    to take its places.
    """

    def run(say: Say) -> None:
        held: list[socket.socket] = []
        asked = 0.0
        for rounds in range(10**6):
            while len(held) < most:
                sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
                held.append(sock)
                if sock.connect_ex(str(run_dir / abi.SOCK_REGISTER)):
                    held.pop().close()
                    break
            if time.monotonic() - asked >= 1:
                asked = time.monotonic()
                for sock in held:
                    with contextlib.suppress(OSError):
                        sock.send(register_message(REFUSED))
            for sock in [each for each in held if hung_up(each)]:
                held.remove(sock)
                sock.close()
            if rounds == 5:
                say("pressing")
            time.sleep(0.1)

    return run


@contextlib.contextmanager
def flooded(run_dir: Path) -> Iterator[None]:
    floods = [Forked(uid, flood(run_dir)) for uid in STRANGERS]
    with all_ended(*floods):
        assert [each.said() for each in floods] == ["pressing"] * len(floods)
        yield


def connected(run_dir: Path) -> socket.socket:
    """As the shim connects: again 100 ms later where too many wait to be accepted."""
    while True:
        try:
            return connect(run_dir)
        except BlockingIOError:
            time.sleep(0.1)


def starting(run_dir: Path, job_id: int, proof: int, seconds: float) -> Callable[[Say], object]:
    """One program after the other registers; says how long the slowest took, and how many they
    were.
    """

    def run(say: Say) -> None:
        took = []
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            began = time.monotonic()
            with connected(run_dir) as sock:
                answer, fds = exchange(sock, register_message(job_id), (proof,))
                assert answer.status == 0, answer.message
                with mmap.mmap(fds[0], abi.PAGE, mmap.MAP_SHARED, mmap.PROT_READ) as page:
                    assert abi.GatePage.from_buffer_copy(page[:]).magic == abi.MAGIC
                close_all(fds)
            took.append(time.monotonic() - began)
            time.sleep(0.1)
        say([max(took), len(took)])

    return run


def refused(run_dir: Path) -> Callable[[Say], object]:
    """Asks as a program without a grant does, until it hears a sentence."""

    def run(say: Say) -> None:
        for tries in range(1, 21):
            with contextlib.suppress(OSError, abi.AbiError), connect(run_dir) as sock:
                answer, _ = exchange(sock, register_message(REFUSED))
                say([tries, answer.status, answer.message.decode()])
                return
            time.sleep(0.1)

    return run


def descriptors(one: Arbiter) -> int:
    return len(list(Path(f"/proc/{one.process.pid}/fd").iterdir()))


def test_uids_without_a_grant_that_ask_for_ever_keep_no_granted_program_out(tmp_path: Path) -> None:
    of = of_user(2)
    proof = sealed(abi.pack_grant(of))
    with arbiter(tmp_path, "--log-level", "error") as one, one.link() as link:
        let_others_in(tmp_path)
        link.sync([settings()], [of])
        with flooded(one.run_dir):
            programs = Forked(HONEST, starting(one.run_dir, 2, proof, FORGOTTEN_S + 1.5))
            another = Forked(STRANGERS.stop, refused(one.run_dir))
            with all_ended(programs, another):
                _, status, sentence = another.said()
                assert status and "grant on" in sentence, "who has none hears it"
                slowest, count = programs.said()
                assert slowest < 4 and count > 3, "each program registers at once, all the time"
            assert descriptors(one) < 2 * 256 + 200, (
                "what strangers hold does not grow with their number"
            )
    os.close(proof)


def waiting(run_dir: Path, proof: int) -> Callable[[Say], object]:
    """As the shim does: asks each 100 ms over one connection until the answer is clear, and anew
    where that ends.

    Says first when it is told to ask again, then how often its connection ended after that, and the
    status.
    """

    def run(say: Say) -> None:
        heard, ends = False, 0
        while True:
            with contextlib.suppress(OSError, abi.AbiError), connect(run_dir) as sock:
                while (
                    answer := exchange(sock, register_message(2), (proof,))[0]
                ).status == errno.EAGAIN:
                    if not heard:
                        say("told to ask again")
                    heard = True
                    time.sleep(0.1)
                say([ends, answer.status])
                return
            ends += heard
            time.sleep(0.1)

    return run


def test_before_the_first_list_a_grant_of_root_identifies_a_grantee(tmp_path: Path) -> None:
    of = of_user(2)
    proof = sealed(abi.pack_grant(of))
    with arbiter(tmp_path, "--log-level", "error") as one, one.link() as link:
        let_others_in(tmp_path)
        with flooded(one.run_dir):
            begun = time.monotonic()
            program = Forked(HONEST, waiting(one.run_dir, proof))
            with all_ended(program):
                assert program.said() == "told to ask again"
                assert time.monotonic() - begun < 3, "in spite of those who came before"
                time.sleep(FORGOTTEN_S + 1)
                link.sync([settings()], [of])
                assert program.said() == [0, 0], "it kept its connection, and registered over it"
    os.close(proof)


def test_a_whole_node_of_programs_waits_for_the_list_without_losing_a_connection(
    tmp_path: Path,
) -> None:
    """Also those that show no grant: nobody can tell them from strangers yet, and there are
    none.
    """
    of = of_user(2)
    with arbiter(tmp_path, "--log-level", "error") as one, one.link() as link:
        let_others_in(tmp_path)
        users = [Forked(uid, flood(one.run_dir, 50)) for uid in STRANGERS]
        with all_ended(*users):
            for each in users:
                each.said()
            wait_for(lambda: descriptors(one) > 2 * 50 * len(users), "all are connected")
            for _ in range(int(FORGOTTEN_S) + 1):
                time.sleep(1)
                assert descriptors(one) > 2 * 50 * len(users), (
                    "those who were told to ask again keep their places"
                )
            link.sync([settings()], [of])
            wait_for(
                lambda: descriptors(one) < 2 * 256 + 200,
                "then those without a grant are told apart",
            )


def test_a_connection_does_not_outlive_the_process_that_registered_over_it(tmp_path: Path) -> None:
    """A child may hold it: then one slot after the other would be given up, and each leave a
    connection behind.
    """
    mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    proof = sealed(abi.pack_grant(of_user(2)))

    def run(say: Say) -> None:
        sock = connect(one.run_dir)
        assert exchange(sock, register_message(2), (proof,))[0].status == 0
        theirs.sendmsg(
            [b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [sock.fileno()]))]
        )

    with arbiter(tmp_path) as one, one.link() as link, mine, theirs:
        let_others_in(tmp_path)
        link.sync([settings()], [of_user(2)])
        with all_ended(Forked(HONEST, run)):
            _, fds, _, _ = socket.recv_fds(mine, 1, 1)
            with socket.socket(fileno=fds[0]) as kept:
                kept.settimeout(FORGOTTEN_S + 5)
                assert kept.recv(1) == b"", "its process is dead, so it is nobody's"
    os.close(proof)


def hogs(run_dir: Path, job_id: int, proof: int) -> Callable[[Say], object]:
    """64 processes of one user, each registered on 16 cards over as many connections: 1024 if he
    got all.
    """

    def run(say: Say) -> None:
        for _ in range(64):
            if os.fork():
                continue
            held = []
            for card in CARDS:
                with contextlib.suppress(OSError, abi.AbiError):
                    held.append(connect(run_dir))
                    _, fds = exchange(held[-1], register_message(job_id, card), (proof,))
                    close_all(fds)
            say("done")
            signal.pause()
        signal.pause()

    return run


def test_users_with_grants_cannot_fill_the_table_either(tmp_path: Path) -> None:
    grants = [of_user(job, HONEST + job, *CARDS) for job in range(2, 7)]
    proofs = [sealed(abi.pack_grant(each)) for each in grants]
    with arbiter(tmp_path, "--log-level", "error") as one, one.link() as link:
        let_others_in(tmp_path)
        link.sync([settings(card) for card in CARDS], grants)
        greedy = [
            Forked(each.uid, hogs(one.run_dir, each.job_id, proof))
            for each, proof in zip(grants[:4], proofs, strict=False)
        ]
        with all_ended(*greedy):
            assert [each.said() for each in greedy for _ in range(64)] == ["done"] * 256
            assert descriptors(one) > 2 * 2500, "they took what they could"
            program = Forked(grants[4].uid, starting(one.run_dir, 6, proofs[4], 0.5))
            with all_ended(program):
                slowest, _ = program.said()
                assert slowest < 2
    close_all(proofs)


def test_unknown_uids_share_one_budget_of_questions(tmp_path: Path) -> None:
    def run(say: Say) -> None:
        socks = [connect(one.run_dir) for _ in range(32)]
        sentences = {
            exchange(sock, register_message(REFUSED))[0].message
            for sock in socks
            for _ in range(45)
        }
        say(sorted(each.decode() for each in sentences))

    with arbiter(tmp_path, "--log-level", "error") as one, one.link() as link:
        let_others_in(tmp_path)
        link.sync([settings()], [of_user(2)])
        askers = [Forked(uid, run) for uid in STRANGERS[:4]]
        with all_ended(*askers):
            said = {sentence for each in askers for sentence in each.said()}
    assert said == {
        f"job {REFUSED} has no grant on card {CARD}",
        "too many registrations of users without a grant on this node; ask again",
    }
