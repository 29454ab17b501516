"""Serves run_dir/view.sock: any user may ask, and gets what its uid (SO_PEERCRED) may know.

One line of JSON each way (docs/specs/reporting/state.md). Only root reads the ledger, so `qgpu
report` and `qgpu top` of a user ask here. It has its own thread, so no Prolog waits for it. The
thread waits for no client, so no user waits for a slow one. viewclient.py asks.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import astuple, dataclass, field
from pathlib import Path
from typing import Any

from enforcer.daemon.packets import peer_uid
from enforcer.ledger.read import (
    latency_of,
    reading,
    series_of,
    usage_between,
    usage_of_jobs,
    users_of,
)
from enforcer.ledger.reclaims import reclaims_of
from enforcer.ledger.schema import LedgerError, Usage
from enforcer.places import TOO_MANY_OPEN, make_room
from enforcer.rate import Rate
from enforcer.reporting.privacy import Privacy
from enforcer.reporting.state import NodeState
from enforcer.reporting.viewclient import ViewError

MAX_REQUEST = 64 * 1024  # bytes of one question
MAX_ROWS = 20_000  # rows of one answer, so that its size is bounded
MAX_SERIES = 50  # jobs with their series in one answer, so that its size is bounded
MAX_RECLAIMS = 100  # intervals of one row in one answer, the last ones
SILENCE_S = 10.0  # a client that does not ask, or does not read, is dropped: it holds a place
PER_SECOND = 10  # answers per second to one uid
PER_WORK = 40  # a second spent for a uid counts as 40 answers
UNKNOWN_TIMES = 10  # all users without a job here get as much as ten users with one
UNSENT = 64 << 20  # bytes of answers that clients have not read yet; the oldest goes
KNOWN_S = 60.0  # seconds between two looks into the ledger for users who had a job here


class View:
    """Answers questions; pure except for reading the ledger."""

    def __init__(
        self, ledger: Path, privacy: Privacy, state: Callable[[], NodeState | None]
    ) -> None:
        self._ledger = ledger
        self._privacy = privacy
        self._state = state
        self._had_job: frozenset[int] = frozenset()
        self._looked = float("-inf")

    def knows(self, uid: int) -> bool:
        """Whether this user has a job here, or had one: other uids may be one user's sub-uids."""
        state = self._state()
        if state and any(t.uid == uid for card in state.cards for t in card.tenants):
            return True
        if time.monotonic() - self._looked >= KNOWN_S:
            self._looked = time.monotonic()
            with contextlib.suppress(LedgerError), reading(self._ledger) as database:
                self._had_job = users_of(database)
        return uid in self._had_job

    def answer(self, viewer: int, question: bytes) -> str:
        """One line of JSON. Raises ViewError, LedgerError."""
        try:
            asked = json.loads(question)
        except (ValueError, RecursionError):
            raise ViewError("the question is not JSON") from None
        if not isinstance(asked, dict):
            raise ViewError("the question is not a JSON object")
        if asked.get("ask") == "state":
            return self._live(viewer)
        if asked.get("ask") == "usage":
            return self._use(viewer, asked)
        raise ViewError("ask must be state or usage")

    def _live(self, viewer: int) -> str:
        state = self._state()
        if state is None:
            raise ViewError("this qgpud has not sampled its cards yet")
        return state.visible_to(viewer, self._privacy).to_json()

    def _use(self, viewer: int, asked: dict[str, Any]) -> str:
        jobs, since, until = asked.get("jobs"), asked.get("since"), asked.get("until")
        own = None if self._privacy.sees_use(viewer, -1) else viewer
        found: list[tuple[int, Usage]] = []
        with reading(self._ledger) as database:
            if isinstance(jobs, list) and all(_whole(job) for job in jobs):
                rows = usage_of_jobs(database, jobs)
            elif (
                isinstance(since, int)
                and isinstance(until, int)
                and _whole(since)
                and _whole(until)
            ):
                rows = usage_between(database, since, until, own)
            else:
                raise ViewError(
                    "usage needs jobs, a list of numbers, or since and until in nanoseconds"
                )
            for row, usage in rows:
                if self._privacy.sees_use(viewer, usage.uid):
                    found.append((row, usage))
                if len(found) >= MAX_ROWS:
                    break
            more = asked.get("series") is True and len(found) <= MAX_SERIES
            series = {
                n: [astuple(p) for p in series_of(database, row)]
                for n, (row, _) in enumerate(found)
                if more
            }
            latency = {n: latency_of(database, row) for n, (row, _) in enumerate(found) if more}
            away = {
                n: reclaims_of(database, usage.key)[-MAX_RECLAIMS:]
                for n, (_, usage) in enumerate(found)
                if isinstance(jobs, list) and len(found) <= MAX_SERIES and usage.reclaimed_ns
            }
        usages = [usage for _, usage in found]
        body = {"usage": usages, "series": series, "latency": latency, "reclaims": away}
        return json.dumps(
            {"version": 1, **body, "cut": len(found) >= MAX_ROWS}, separators=(",", ":")
        )


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63


@dataclass
class _Client:
    sock: socket.socket
    uid: int
    known: bool
    since: float
    data: bytes = b""  # of the question
    size: int = 0  # bytes of the answer; its rest:
    unsent: memoryview = field(default_factory=lambda: memoryview(b""))


class ViewServer:
    """The socket and its thread."""

    def __init__(self, path: Path, view: View) -> None:
        """Raises OSError when the socket cannot be made."""
        self.path = path
        self._view = view
        self._rate = Rate(PER_SECOND, per_second_of_work=PER_WORK)
        self._unknown_rate = Rate(
            UNKNOWN_TIMES * PER_SECOND, per_second_of_work=UNKNOWN_TIMES * PER_WORK
        )
        self._clients: dict[int, _Client] = {}
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        self._sock.setblocking(False)
        self._sock.bind(str(path))
        path.chmod(0o666)
        self._sock.listen(128)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._sock, selectors.EVENT_READ)
        self._end, self._waker = socket.socketpair()
        self._selector.register(self._end, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._serve, name="view", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            for key, events in self._selector.select(1.0 if self._clients else None):
                if key.fileobj is self._end:
                    return
                if key.fileobj is self._sock:
                    self._accept()
                elif client := self._clients.get(key.fd):
                    self._attend(client, events)
            self._sweep()

    def _accept(self) -> None:
        try:
            sock, _ = self._sock.accept()
        except OSError:
            return
        sock.setblocking(False)
        uid = peer_uid(sock)
        client = _Client(sock, uid, _is_root(uid) or self._view.knows(uid), time.monotonic())
        why, goes = make_room(uid, client.known, _is_root, self._clients.values())
        if goes is not None:
            self._drop(goes, _busy(TOO_MANY_OPEN))
        if why is not None:
            self._drop(client, _busy(why))
            return
        self._clients[sock.fileno()] = client
        self._selector.register(sock, selectors.EVENT_READ)

    def _attend(self, client: _Client, events: int) -> None:
        try:
            if events & selectors.EVENT_READ:
                self._read(client)
            else:
                self._send(client)
        except BlockingIOError:
            return
        except OSError:
            self._drop(client)

    def _read(self, client: _Client) -> None:
        part = client.sock.recv(MAX_REQUEST)
        client.data += part
        line, end, _ = client.data.partition(b"\n")
        if end:
            client.unsent = memoryview(self._reply(client, line))
            client.size, client.since = len(client.unsent), time.monotonic()
            self._selector.modify(client.sock, selectors.EVENT_WRITE)
            self._send(client)
        elif not part or len(client.data) > MAX_REQUEST:
            self._drop(client, _error("the question is not one line of at most 64 KiB"))

    def _send(self, client: _Client) -> None:
        client.unsent = client.unsent[client.sock.send(client.unsent) :]
        if not client.unsent:
            self._drop(client)

    def _reply(self, client: _Client, line: bytes) -> bytes:
        if not _is_root(client.uid) and not self._rate.allows(client.uid):
            return _busy(f"more than {PER_SECOND} questions a second; ask less often")
        if not client.known and not self._unknown_rate.allows(0):
            return _busy("too many questions of users without a job on this node; try again")
        began = time.monotonic()
        try:
            return self._view.answer(client.uid, line).encode() + b"\n"
        except (ViewError, LedgerError) as error:
            return _error(str(error))
        except Exception as error:  # our own bug must not end the thread
            return _error(f"qgpud failed: {type(error).__name__}")
        finally:
            self._charge(client, time.monotonic() - began)

    def _charge(self, client: _Client, seconds: float) -> None:
        self._rate.worked(client.uid, seconds)
        if not client.known:
            self._unknown_rate.worked(0, seconds)

    def _sweep(self) -> None:
        """Drop silent clients, and the oldest of those who do not read what fills the memory."""
        oldest = time.monotonic() - SILENCE_S
        for client in [each for each in self._clients.values() if each.since < oldest]:
            self._drop(client)
        readers = [each for each in self._clients.values() if each.unsent]
        while sum(each.size for each in readers) > UNSENT:
            self._drop(readers.pop(0))

    def _drop(self, client: _Client, last: bytes = b"") -> None:
        with contextlib.suppress(OSError):
            # unread data would reset the connection and lose the answer
            client.sock.recv(MAX_REQUEST)
        with contextlib.suppress(OSError):
            if last:
                client.sock.send(last)
        if self._clients.pop(client.sock.fileno(), None):
            self._selector.unregister(client.sock)
        client.sock.close()

    def close(self) -> None:
        """Stop answering and remove the socket."""
        self._waker.close()
        self._thread.join(2)
        for client in list(self._clients.values()):
            self._drop(client)
        self._selector.close()
        for sock in (self._sock, self._end):
            sock.close()
        with contextlib.suppress(OSError):
            self.path.unlink()


def _is_root(uid: int) -> bool:
    return uid in (0, os.geteuid())


def _error(sentence: str, **more: bool) -> bytes:
    return json.dumps({"version": 1, "error": sentence, **more}).encode() + b"\n"


def _busy(sentence: str) -> bytes:
    """An error that passes: the client asks again."""
    return _error(sentence, again=True)
