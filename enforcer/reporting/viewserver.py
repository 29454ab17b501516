"""Serves run_dir/view.sock: any user may ask, and gets what its uid (SO_PEERCRED) may know.

One line of JSON each way (docs/specs/reporting/state.md). Only root reads the ledger, so `qgpu
report` and `qgpu top` of a user ask here. It has its own thread, so no Prolog waits for it.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import astuple
from pathlib import Path
from typing import Any

from enforcer.ledger.read import latency_of, reading, series_of, usage_between, usage_of_jobs
from enforcer.ledger.schema import LedgerError, Usage
from enforcer.rate import Rate
from enforcer.reporting.privacy import Privacy
from enforcer.reporting.state import NodeState

SOCK_NAME = "view.sock"
MAX_REQUEST = 64 * 1024  # bytes of one question
MAX_ROWS = 20_000  # rows of one answer, so that its size is bounded
MAX_SERIES = 50  # jobs with their series in one answer, so that its size is bounded
TIMEOUT_S = 0.5  # seconds for one question: there is one thread for all users
PER_SECOND = 10  # answers per second to one uid
PER_WORK = 40  # a second spent for a uid counts as 40 answers


class ViewError(RuntimeError):
    """The question cannot be answered; the text is a sentence."""


class View:
    """Answers questions; pure except for reading the ledger."""

    def __init__(
        self, ledger: Path, privacy: Privacy, state: Callable[[], NodeState | None]
    ) -> None:
        self._ledger = ledger
        self._privacy = privacy
        self._state = state

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
        body = {"usage": [usage for _, usage in found], "series": series, "latency": latency}
        return json.dumps(
            {"version": 1, **body, "cut": len(found) >= MAX_ROWS}, separators=(",", ":")
        )


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63


class ViewServer:
    """The socket and its thread."""

    def __init__(self, path: Path, view: View) -> None:
        """Raises OSError when the socket cannot be made."""
        self.path = path
        self._view = view
        self._rate = Rate(PER_SECOND, per_second_of_work=PER_WORK)
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        self._sock.bind(str(path))
        path.chmod(0o666)
        self._sock.listen(32)
        self._thread = threading.Thread(target=self._serve, name="view", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._sock.accept()
            except OSError:
                return
            with client, contextlib.suppress(OSError):
                self._talk(client)

    def _talk(self, client: socket.socket) -> None:
        size = struct.calcsize("3i")
        uid = struct.unpack("3i", client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))[1]
        client.settimeout(TIMEOUT_S)
        if uid not in (0, os.geteuid()) and not self._rate.allows(uid):  # no limit for root
            client.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                # unread data would reset the connection and lose the answer
                client.recv(MAX_REQUEST)
            client.sendall(_error(f"more than {PER_SECOND} questions a second; ask less often"))
            return
        began = time.monotonic()
        try:
            self._answer(client, uid)
        finally:
            self._rate.worked(uid, time.monotonic() - began)

    def _answer(self, client: socket.socket, uid: int) -> None:
        try:
            text = self._view.answer(uid, _line(client))
            data = text.encode() + b"\n"
        except (ViewError, LedgerError) as error:
            data = _error(str(error))
        except Exception as error:  # our own bug must not end the thread
            data = _error(f"qgpud failed: {type(error).__name__}")
        client.sendall(data)

    def close(self) -> None:
        """Stop answering and remove the socket."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()
        self._thread.join(2)
        with contextlib.suppress(OSError):
            self.path.unlink()


def _error(sentence: str) -> bytes:
    return json.dumps({"version": 1, "error": sentence}).encode() + b"\n"


def _line(client: socket.socket) -> bytes:
    """One line within TIMEOUT_S, in however many parts."""
    until = time.monotonic() + TIMEOUT_S
    data = b""
    while b"\n" not in data:
        left = until - time.monotonic()
        if left <= 0 or len(data) > MAX_REQUEST:
            raise ViewError("the question did not come in one line in time")
        client.settimeout(left)
        part = client.recv(65536)
        if not part:
            raise ViewError("the question ended early")
        data += part
    client.settimeout(TIMEOUT_S)
    return data.split(b"\n", 1)[0]


def ask(path: Path, question: dict[str, Any], timeout_s: float = 5.0) -> dict[str, Any]:
    """The answer of the qgpud at that socket. Raises ViewError."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as sock:
            sock.settimeout(timeout_s)
            sock.connect(str(path))
            sock.sendall(json.dumps(question).encode() + b"\n")
            data = b"".join(iter(lambda: sock.recv(1 << 16), b""))
    except OSError as error:
        raise ViewError(f"qgpud does not answer at {path}: {error.strerror or error}") from None
    try:
        answer = json.loads(data)
    except ValueError:
        raise ViewError(f"qgpud at {path} answered no JSON") from None
    if not isinstance(answer, dict) or "error" in answer:
        raise ViewError(
            f"qgpud at {path}: {answer.get('error') if isinstance(answer, dict) else 'no answer'}"
        )
    return answer


def owner_of(path: Path) -> int | None:
    """The uid that owns the socket, None without one: only root's counts."""
    try:
        return os.lstat(path).st_uid
    except OSError:
        return None
