"""The daemon's one loop: hook.sock, signals, the arbiter's descriptor and the timers, in one thread."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import selectors
import signal
import socket
import stat
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from enforcer.clock import Clock
from enforcer.daemon.hookproto import (
    MAX_MESSAGE,
    Answer,
    ProtocolError,
    Request,
    format_answer,
    parse_request,
)
from enforcer.daemon.log import emit
from enforcer.daemon.node import NodeService
from enforcer.daemon.notify import notify
from enforcer.layout import SOCK_HOOK
from gres.units import Duration

MAX_CLIENTS = 256
CLIENT_SILENCE_NS = 10 * 10**9  # a client that connected and says nothing
RETRY_NS = 200 * 10**6  # to the arbiter, while it is away
WATCHDOG_NS = 5 * 10**9
T = TypeVar("T")
F = TypeVar("F")


class ServerError(RuntimeError):
    """The daemon cannot serve; the text is a sentence."""


@dataclass
class Timer:
    """Calls `action` each `every_ns`, late rather than twice."""

    every_ns: int
    action: Callable[[], object]
    due_ns: int = 0


@dataclass
class Client:
    """One connection of a hook; `job_id` is set while its Prolog waits for the arbiter."""

    sock: socket.socket
    since_ns: int
    job_id: int | None = None
    until_ns: int = 0


def listen(path: Path) -> socket.socket:
    """hook.sock, listening, for root alone. Raises ServerError when something else is in its place."""
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise ServerError(f"{path} exists and is not a socket: remove it")
        path.unlink()
    server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    umask = os.umask(0o177)
    try:
        server.bind(str(path))
    except OSError as error:
        server.close()
        raise ServerError(f"{path} cannot be made: {error.strerror}") from None
    finally:
        os.umask(umask)
    server.listen(128)
    return server


def peer_uid(sock: socket.socket) -> int:
    """Who is at the other end of a Unix socket."""
    size = struct.calcsize("3i")
    return int(struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))[1])


@dataclass
class Server:
    """Serves one node until SIGTERM or SIGINT (or `stop`). `owner` is the uid that may ask: root."""

    service: NodeService
    clock: Clock
    owner: int = 0
    timers: list[Timer] = field(default_factory=list)
    _selector: selectors.BaseSelector = field(default_factory=selectors.DefaultSelector)
    _clients: dict[int, Client] = field(default_factory=dict)
    _arbiter_fd: int | None = None
    _stopping: bool = False

    @property
    def path(self) -> Path:
        """Where hook.sock is."""
        return Path(self.service.node.run_dir) / SOCK_HOOK

    def run(self, ready: Callable[[], object] = lambda: None) -> None:
        """Serve until stopped. `ready` is called when hooks can ask."""
        server = listen(self.path)
        self._selector.register(server, selectors.EVENT_READ, self._accept)
        self._add_timers()
        with self._signals():
            notify(f"READY=1\nSTATUS=serving {self.service.node.name}")
            ready()
            while not self._stopping:
                self._step()
        notify("STOPPING=1")
        self._shut(server)

    def stop(self) -> None:
        """Leave the loop after the current step."""
        self._stopping = True

    def _add_timers(self) -> None:
        settings = self.service.config.enforcer
        self._every(settings.nvml_interval, self.service.look_at_cards)
        self._every(settings.ledger_interval, self.service.poll_arbiter)
        self._every(settings.ledger_interval, self.service.take_markers)
        self.timers.append(Timer(RETRY_NS, self._keep_arbiter))
        self.timers.append(Timer(WATCHDOG_NS, lambda: notify("WATCHDOG=1")))

    def _every(self, interval: Duration, action: Callable[[], object]) -> None:
        self.timers.append(Timer(max(interval.ns, 10**7), action))

    def _step(self) -> None:
        for timer in self.timers:
            now = self.clock.monotonic_ns()
            if timer.due_ns <= now:
                timer.due_ns = now + timer.every_ns
                guarded(timer.action, None)
        self._watch_arbiter()
        wait = min(timer.due_ns for timer in self.timers) - self.clock.monotonic_ns()
        for key, _ in self._selector.select(max(wait, 0) / 10**9):
            guarded(functools.partial(key.data, key.fileobj), None)
        self._settle()

    # ---- hooks -----------------------------------------------------------------------------------

    def _accept(self, server: socket.socket) -> None:
        try:
            sock, _ = server.accept()
        except OSError:
            return
        sock.setblocking(False)
        if peer_uid(sock) not in (0, self.owner) or len(self._clients) >= MAX_CLIENTS:
            emit(logging.WARNING, "hook-refused", uid=peer_uid(sock), clients=len(self._clients))
            sock.close()
            return
        self._clients[sock.fileno()] = Client(sock, self.clock.monotonic_ns())
        self._selector.register(sock, selectors.EVENT_READ, self._read)

    def _read(self, sock: socket.socket) -> None:
        client = self._clients.get(sock.fileno())
        if client is None:
            return
        try:
            data = sock.recv(MAX_MESSAGE + 1)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data or client.job_id is not None:
            self._drop(client)  # gone, or talking while its question is still open
            return
        self._question(client, data)

    def _question(self, client: Client, data: bytes) -> None:
        try:
            request = parse_request(data)
        except ProtocolError as error:
            emit(logging.ERROR, "hook-protocol", why=error)
            self._answer(client, Answer(1, str(error)))
            return
        began = self.clock.monotonic_ns()
        fallback = Answer(1, f"qgpud failed in the {request.kind} of this job: its log has the reason")
        answer = guarded(functools.partial(self._handle, request), fallback)
        if answer is None:
            client.job_id = int(request.env["SLURM_JOB_ID"])
            client.until_ns = began + self._patience_ns()
            return
        took = (self.clock.monotonic_ns() - began) // 1000
        job = request.env.get("SLURM_JOB_ID")
        emit(logging.DEBUG, request.kind, job=job, status=answer.status, us=took)
        self._answer(client, answer)

    def _handle(self, request: Request) -> Answer | None:
        if request.kind == "epilog":
            return self.service.epilog(request.env)
        return self.service.prolog(request.env)

    def _patience_ns(self) -> int:
        """How long a Prolog may wait here: the hook's deadline less a tenth, for the way back."""
        return self.service.config.hook.deadline.ns * 9 // 10

    def _answer(self, client: Client, answer: Answer) -> None:
        with contextlib.suppress(OSError):
            client.sock.send(format_answer(answer))
        self._drop(client)

    def _drop(self, client: Client) -> None:
        self._clients.pop(client.sock.fileno(), None)
        with contextlib.suppress(KeyError):
            self._selector.unregister(client.sock)
        client.sock.close()

    def _settle(self) -> None:
        """Answer the Prologs that waited for the arbiter; drop clients that say nothing."""
        now = self.clock.monotonic_ns()
        for client in list(self._clients.values()):
            if client.job_id is None:
                if now - client.since_ns > CLIENT_SILENCE_NS:
                    self._drop(client)
            elif client.job_id not in self.service.grants:
                self._answer(client, Answer(1, f"the grant of job {client.job_id} was ended while it waited"))
            elif self.service.connected:
                self._answer(client, self.service.settled(client.job_id))
            elif now >= client.until_ns:
                self._answer(client, self.service.abandon(client.job_id))

    # ---- the arbiter -----------------------------------------------------------------------------

    def _keep_arbiter(self) -> None:
        if not self.service.connected:
            self.service.reach_arbiter()

    def _watch_arbiter(self) -> None:
        """Have the selector tell when the arbiter's connection ends."""
        now = self.service.ports.arbiter.fileno() if self.service.connected else None
        if now == self._arbiter_fd:
            return
        if self._arbiter_fd is not None:
            with contextlib.suppress(KeyError, ValueError, OSError):
                self._selector.unregister(self._arbiter_fd)
        if now is not None:
            self._selector.register(now, selectors.EVENT_READ, self._arbiter_spoke)
        self._arbiter_fd = now

    def _arbiter_spoke(self, _: object) -> None:
        """Between questions it says nothing: readable means gone, or out of step."""
        self._selector.unregister(self._arbiter_fd or 0)
        self._arbiter_fd = None
        self.service.lose_arbiter("the connection ended")
        self.service.reach_arbiter()

    # ---- start and stop --------------------------------------------------------------------------

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """SIGTERM and SIGINT wake the loop and end it."""
        reader, writer = socket.socketpair()
        reader.setblocking(False)
        writer.setblocking(False)
        self._selector.register(reader, selectors.EVENT_READ, lambda _: reader.recv(64))
        old_fd = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        old = {
            number: signal.signal(number, lambda *_: self.stop())
            for number in (signal.SIGTERM, signal.SIGINT)
        }
        try:
            yield
        finally:
            signal.set_wakeup_fd(old_fd)
            for number, handler in old.items():
                signal.signal(number, handler)
            self._selector.unregister(reader)
            reader.close()
            writer.close()

    def _shut(self, server: socket.socket) -> None:
        """Last counters into the ledger; grants and gates stay as they are for the next start."""
        self._selector.unregister(server)
        server.close()
        self.path.unlink(missing_ok=True)
        for client in list(self._clients.values()):
            self._drop(client)
        guarded(self.service.poll_arbiter, None)
        self.service.ports.arbiter.close()
        self._selector.close()
        emit(logging.INFO, "stopped", grants=len(self.service.grants))


def guarded(action: Callable[[], T], fallback: F) -> T | F:
    """Our own bug in one event must not end the daemon: it is logged with its trace, `fallback` is the
    result.
    """
    try:
        return action()
    except Exception as error:
        emit(logging.ERROR, "bug", why=f"{type(error).__name__}: {error}")
        logging.getLogger("qgpud").debug("trace", exc_info=True)
        return fallback
