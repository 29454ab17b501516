"""run_dir/qgpud.sock: anybody may connect, so connections per user are limited and nothing here ever waits."""

from __future__ import annotations

import array
import logging
import os
import selectors
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from enforcer.clock import Clock
from enforcer.daemon.askproto import MAX_MESSAGE, SO_PEERPIDFD, AskError, decode, encode
from enforcer.daemon.asks import Asks, Peer, Reply
from enforcer.daemon.log import emit
from enforcer.daemon.packets import hang_up, receive
from enforcer.rate import Rate

MAX_CLIENTS = 128
MAX_PER_USER = 16
PER_SECOND = 20  # answers to one user; root has no limit
SILENCE_NS = 10 * 10**9
SO_PEERGROUPS = 59


@dataclass
class _Client:
    sock: socket.socket
    peer: Peer
    since_ns: int


def peer_of(sock: socket.socket) -> Peer:
    """Who connected, as the kernel says. Raises OSError."""
    pid, uid, gid = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return Peer(pid, uid, gid, _groups(sock), lambda: _pidfd(sock, pid))


def _groups(sock: socket.socket) -> frozenset[int]:
    """His supplementary groups when he connected; asking the name service could take a long time."""
    try:
        raw = sock.getsockopt(socket.SOL_SOCKET, SO_PEERGROUPS, 4096)
    except OSError:
        return frozenset()
    return frozenset(array.array("I", raw[: len(raw) - len(raw) % 4]))


def _pidfd(sock: socket.socket, pid: int) -> int:
    """Of the process that connected, not of one that got its number later."""
    try:
        raw = sock.getsockopt(socket.SOL_SOCKET, SO_PEERPIDFD, 4)
    except OSError:
        return os.pidfd_open(pid)  # before Linux 6.5; the caller compares the user
    fd = int(struct.unpack("i", raw)[0])
    os.set_inheritable(fd, False)
    return fd


class AskServer:
    """Reads questions and writes answers within the daemon's loop."""

    def __init__(
        self, asks: Asks, clock: Clock, selector: selectors.BaseSelector, watch: Callable[[], object]
    ) -> None:
        self._asks, self._clock, self._selector, self._watch = asks, clock, selector, watch
        self._clients: dict[int, _Client] = {}
        self._rate = Rate(PER_SECOND)

    def accept(self, server: socket.socket) -> None:
        """Take a connection, or turn it away."""
        try:
            sock, _ = server.accept()
            sock.setblocking(False)
            peer = peer_of(sock)
        except OSError:
            return
        same = sum(client.peer.uid == peer.uid for client in self._clients.values())
        # The last places are root's: whatever users do, an administrator can ask.
        places = MAX_CLIENTS if peer.uid in (0, self._asks.owner) else MAX_CLIENTS - MAX_PER_USER
        if len(self._clients) >= places or same >= MAX_PER_USER:
            emit(logging.DEBUG, "ask-refused", uid=peer.uid, clients=len(self._clients))
            sock.close()
            return
        self._clients[sock.fileno()] = _Client(sock, peer, self._clock.monotonic_ns())
        self._selector.register(sock, selectors.EVENT_READ, self._read)

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
        if client.peer.uid not in (0, self._asks.owner) and not self._rate.allows(client.peer.uid):
            return Reply({"ok": False, "error": f"more than {PER_SECOND} questions a second; ask less often"})
        try:
            question: dict[str, Any] = decode(data)
        except AskError as error:
            return Reply({"ok": False, "error": str(error)})
        return self._asks.answer(question, client.peer)

    def _send(self, client: _Client, reply: Reply) -> None:
        message, fds = encode(reply.body), [] if reply.fd is None else [reply.fd]
        if len(message) > MAX_MESSAGE:  # what the other side would read is no JSON
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

    def _drop(self, client: _Client) -> None:
        hang_up(client.sock, self._clients, self._selector)

    def sweep(self) -> None:
        """Drop those who say nothing."""
        now = self._clock.monotonic_ns()
        for client in list(self._clients.values()):
            if now - client.since_ns > SILENCE_NS:
                self._drop(client)

    def close(self) -> None:
        """Drop everybody."""
        for client in list(self._clients.values()):
            self._drop(client)
