"""Serves run_dir/qgpud.sock. Every user may connect, so connections are limited and nothing waits.

Users who may run programs are known; places.py has what that means.
"""

from __future__ import annotations

import array
import contextlib
import logging
import os
import selectors
import socket
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from enforcer.clock import Clock
from enforcer.daemon.log import emit
from enforcer.daemon.packets import hang_up, receive
from enforcer.daemon.requests.answers import Asks
from enforcer.daemon.requests.protocol import MAX_MESSAGE, SO_PEERPIDFD, AskError, decode, encode
from enforcer.daemon.requests.reply import Peer, Reply
from enforcer.places import TOO_MANY_OPEN, make_room
from enforcer.rate import Rate

PER_SECOND = 20  # answers per second to one user; root has no limit
UNKNOWN_PER_SECOND = 100  # answers per second to all uids that may not run programs
# a second of work costs as much as five seconds' answers: at most 1/5 of the loop's time per user
WORK = 5
SILENCE_NS = 10 * 10**9  # a client that sends nothing is dropped, since it holds a place
SO_PEERGROUPS = 59  # Linux 4.13; Python has no name for it


@dataclass
class _Client:
    sock: socket.socket
    peer: Peer
    since_ns: int
    known: bool  # root, or allowed to run programs

    @property
    def uid(self) -> int:
        """The peer's."""
        return self.peer.uid


def peer_of(sock: socket.socket) -> Peer:
    """The process that connected, by the kernel. Raises OSError."""
    pid, uid, gid = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return Peer(pid, uid, gid, _groups(sock), lambda: _pidfd(sock, pid))


def _groups(sock: socket.socket) -> frozenset[int]:
    """Supplementary groups at connection; the name service could take a long time."""
    try:
        raw = sock.getsockopt(socket.SOL_SOCKET, SO_PEERGROUPS, 4096)
    except OSError:
        return frozenset()
    return frozenset(array.array("I", raw[: len(raw) - len(raw) % 4]))


def _pidfd(sock: socket.socket, pid: int) -> int:
    """A descriptor of the process that connected, not of a later one with its pid."""
    try:
        raw = sock.getsockopt(socket.SOL_SOCKET, SO_PEERPIDFD, 4)
    except OSError:
        return os.pidfd_open(pid)  # before Linux 6.5; the caller compares the user
    fd = int(struct.unpack("i", raw)[0])
    os.set_inheritable(fd, False)
    return fd


def _say_no(sock: socket.socket, why: str) -> None:
    """Send a refusal; a peer that has not asked yet reads it in place of its answer."""
    with contextlib.suppress(OSError):
        sock.send(encode({"ok": False, "error": why}))


class AskServer:
    """Reads questions and writes answers within the daemon's loop."""

    def __init__(
        self,
        asks: Asks,
        clock: Clock,
        selector: selectors.BaseSelector,
        watch: Callable[[], object],
    ) -> None:
        self._asks, self._clock, self._selector, self._watch = asks, clock, selector, watch
        self._clients: dict[int, _Client] = {}
        self._rate = Rate(PER_SECOND, per_second_of_work=WORK * PER_SECOND)
        self._unknown_rate = Rate(UNKNOWN_PER_SECOND, per_second_of_work=WORK * UNKNOWN_PER_SECOND)

    def accept(self, server: socket.socket) -> None:
        """Accept a connection or refuse it."""
        try:
            sock, _ = server.accept()
            sock.setblocking(False)
            peer = peer_of(sock)
        except OSError:
            return
        known = self._asks.allows(peer)
        why, goes = make_room(peer.uid, known, self._is_root, self._clients.values())
        if why is not None:
            self._turn_away(sock, peer, why)
            return
        if goes is not None:
            self._drop(goes, TOO_MANY_OPEN)
        self._clients[sock.fileno()] = _Client(sock, peer, self._clock.monotonic_ns(), known)
        self._selector.register(sock, selectors.EVENT_READ, self._read)

    def _is_root(self, uid: int) -> bool:
        return uid in (0, self._asks.owner)

    def _turn_away(self, sock: socket.socket, peer: Peer, why: str) -> None:
        emit(logging.DEBUG, "ask-refused", uid=peer.uid, clients=len(self._clients))
        _say_no(sock, why)
        sock.close()

    def _read(self, sock: socket.socket) -> None:
        client = self._clients.get(sock.fileno())
        if client is None:
            return
        data = receive(sock, MAX_MESSAGE)
        if data is None:
            return
        try:
            if data:
                self._send(client, self._reply(client, data))
        finally:
            self._drop(client)
        self._watch()

    def _reply(self, client: _Client, data: bytes) -> Reply:
        if not self._is_root(client.uid) and not self._rate.allows(client.peer.uid):
            return Reply(
                {"ok": False, "error": f"more than {PER_SECOND} questions a second; ask less often"}
            )
        if not client.known and not self._unknown_rate.allows(0):
            error = (
                f"more than {UNKNOWN_PER_SECOND} questions a second of users who may not run"
                " programs; try again"
            )
            return Reply({"ok": False, "error": error})
        began = time.monotonic()
        try:
            question: dict[str, Any] = decode(data)
            return self._asks.answer(question, client.peer)
        except AskError as error:
            return Reply({"ok": False, "error": str(error)})
        finally:
            self._charge(client, time.monotonic() - began)

    def _charge(self, client: _Client, seconds: float) -> None:
        """Charge the time of an answer to the user, since Prologs and other users waited for it."""
        self._rate.worked(client.peer.uid, seconds)
        if not client.known:
            self._unknown_rate.worked(0, seconds)

    def _send(self, client: _Client, reply: Reply) -> None:
        message, fds = encode(reply.body), [] if reply.fd is None else [reply.fd]
        if len(message) > MAX_MESSAGE:  # the other side would read broken JSON
            error = f"the answer has {len(message)} bytes, more than the {MAX_MESSAGE} of a message"
            message = encode({"ok": False, "error": error})
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        try:
            client.sock.sendmsg([message], rights)
        except OSError as error:
            emit(logging.DEBUG, "ask-unanswered", uid=client.peer.uid, why=error)
        finally:
            for fd in fds:
                os.close(fd)

    def _drop(self, client: _Client, why: str | None = None) -> None:
        if why is not None:
            _say_no(client.sock, why)
        hang_up(client.sock, self._clients, self._selector)

    def sweep(self) -> None:
        """Drop silent clients."""
        now = self._clock.monotonic_ns()
        for client in list(self._clients.values()):
            if now - client.since_ns > SILENCE_NS:
                self._drop(client)

    def close(self) -> None:
        """Drop all clients."""
        for client in list(self._clients.values()):
            self._drop(client)
