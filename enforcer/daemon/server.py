"""The daemon's one loop: hook.sock, signals, the arbiter's descriptor and the timers, in one thread."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import random
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
from enforcer.daemon.granting.hookproto import (
    MAX_MESSAGE,
    Answer,
    Later,
    ProtocolError,
    Request,
    format_answer,
    parse_request,
)
from enforcer.daemon.log import emit
from enforcer.daemon.node import NodeService
from enforcer.daemon.notify import notify
from enforcer.daemon.packets import hang_up, receive
from enforcer.daemon.requests.answers import Asks
from enforcer.daemon.requests.protocol import SOCK_ASK
from enforcer.daemon.requests.server import AskServer
from enforcer.wire.layout import SOCK_HOOK
from gres.units import Duration

MAX_CLIENTS = 256
CLIENT_SILENCE_NS = 10 * 10**9  # a client that connected and says nothing
RETRY_NS = 200 * 10**6  # to the arbiter, while it is away
WATCHDOG_NS = 5 * 10**9
LEFT_NS = 10**9  # what the deaths that the arbiter tells of did not end, of what commands left on a card
OBSERVE_NS = 10**9  # live state and metrics
DEAD_NS = 50 * 10**6  # how often the driver is asked about processes that died (only while there are any)
CGROUPS_NS = 250 * 10**6  # how often cgroups of jobs are looked for, where the driver has limits for them
T = TypeVar("T")
F = TypeVar("F")


class ServerError(RuntimeError):
    """The daemon cannot serve; the text is a sentence."""


@dataclass
class Timer:
    """Calls `action` each `every_ns` while it is `wanted`, late rather than twice. An unwanted one wakes nobody.

    `early` (0 to 1) is drawn for each call and takes up to half an interval away, so that nobody knows the next. It is
    never later: NVML's figures are of about a second. Without it a timer is due at whole multiples, so that all of the
    same pace wake once.
    """

    every_ns: int
    action: Callable[[], object]
    due_ns: int = 0
    wanted: Callable[[], bool] = lambda: True
    early: Callable[[], float] | None = None

    def next(self, now_ns: int) -> None:
        """It is called now: when it is due again."""
        if self.early is not None:
            self.due_ns = now_ns + self.every_ns - int(self.every_ns * self.early() / 2)
        else:
            self.due_ns = (now_ns // self.every_ns + 1) * self.every_ns


@dataclass
class Client:
    """One connection of a hook; `job_id` is set while its Prolog waits for the arbiter, `request` while it waits for
    the driver."""

    sock: socket.socket
    since_ns: int
    job_id: int | None = None
    until_ns: int = 0
    request: Request | None = None


def listen(path: Path, umask: int = 0o177) -> socket.socket:
    """A listening socket, for root alone unless `umask` says otherwise. Raises ServerError when something else
    is in its place.
    """
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise ServerError(f"{path} exists and is not a socket: remove it")
        path.unlink()
    server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    before = os.umask(umask)
    try:
        server.bind(str(path))
    except OSError as error:
        server.close()
        raise ServerError(f"{path} cannot be made: {error.strerror}") from None
    finally:
        os.umask(before)
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
    observe: Callable[[], object] | None = None
    timers: list[Timer] = field(default_factory=list)
    chance: Callable[[], float] = random.SystemRandom().random  # 0 to 1, which nobody can foretell
    _selector: selectors.BaseSelector = field(default_factory=selectors.DefaultSelector)
    _clients: dict[int, Client] = field(default_factory=dict)
    _watched: dict[str, tuple[int, int]] = field(default_factory=dict)
    _asks: AskServer | None = None
    _stopping: bool = False

    @property
    def path(self) -> Path:
        """Where hook.sock is."""
        return Path(self.service.node.run_dir) / SOCK_HOOK

    def run(self, ready: Callable[[], object] = lambda: None) -> None:
        """Serve until stopped. `ready` is called when hooks can ask."""
        server = listen(self.path)
        self._selector.register(server, selectors.EVENT_READ, self._accept)
        asks = listen(self.path.with_name(SOCK_ASK), 0o111)
        self._asks = AskServer(Asks(self.service, self.owner), self.clock, self._selector, self._watch)
        self._selector.register(asks, selectors.EVENT_READ, self._asks.accept)
        self._add_timers()
        with self._signals():
            notify(f"READY=1\nSTATUS=serving {self.service.node.name}")
            ready()
            while not self._stopping:
                self._step()
        notify("STOPPING=1")
        self._shut(server, asks)

    def stop(self) -> None:
        """Leave the loop after the current step."""
        self._stopping = True

    def _add_timers(self) -> None:
        settings = self.service.config.enforcer
        self._every(settings.nvml_interval, self.service.look_at_cards, self.chance)
        self._every(settings.ledger_interval, self.service.poll_arbiter)
        self._every(settings.ledger_interval, self.service.take_markers)
        if self.observe is not None:
            self.timers.append(Timer(OBSERVE_NS, self.observe))
        service = self.service
        self.timers.append(Timer(RETRY_NS, service.reach_arbiter, wanted=lambda: not service.connected))
        waits = Timer(
            RETRY_NS, self._ask_again, wanted=lambda: any(c.request for c in self._clients.values())
        )
        self.timers.append(waits)
        dead = Timer(DEAD_NS, service.inspector.look_for_dead, wanted=lambda: service.inspector.waiting)
        limits = Timer(CGROUPS_NS, service.limit_memory, wanted=lambda: service.memory.wanted(service.grants))
        left = Timer(LEFT_NS, service.end_left, wanted=lambda: bool(service.runs.left))
        self.timers += [dead, limits, left]
        self.timers.append(Timer(WATCHDOG_NS, lambda: notify("WATCHDOG=1")))

    def _every(
        self, interval: Duration, action: Callable[[], object], early: Callable[[], float] | None = None
    ) -> None:
        self.timers.append(Timer(max(interval.ns, 10**7), action, early=early))

    def _step(self) -> None:
        for timer in self.timers:
            now = self.clock.monotonic_ns()
            if timer.due_ns <= now and timer.wanted():
                timer.next(now)
                guarded(timer.action, None)
        self._watch()
        wait = min(timer.due_ns for timer in self.timers if timer.wanted()) - self.clock.monotonic_ns()
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
        data = receive(sock, MAX_MESSAGE)
        if data is None:
            return
        if not data or client.job_id is not None or client.request is not None:
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
        client.until_ns = began + self._patience_ns()
        answer = self._try(client, request)
        if answer is None:
            return
        took = (self.clock.monotonic_ns() - began) // 1000
        job = request.env.get("SLURM_JOB_ID")
        emit(logging.DEBUG, request.kind, job=job, status=answer.status, us=took)
        self._answer(client, answer)

    def _try(self, client: Client, request: Request) -> Answer | None:
        """The answer, or None while the client has to wait: for the driver, then maybe for the arbiter."""
        fallback = Answer(1, f"qgpud failed in the {request.kind} of this job: its log has the reason")
        answer = guarded(functools.partial(self._handle, request), fallback)
        client.request = None
        if isinstance(answer, Later) and self.clock.monotonic_ns() < client.until_ns:
            client.request = request
            return None
        if isinstance(answer, Later):
            return self.service.broken(request.env, answer.why)
        if answer is None:
            client.job_id = int(request.env["SLURM_JOB_ID"])
        return answer

    def _ask_again(self) -> None:
        for client in list(self._clients.values()):
            answer = self._try(client, client.request) if client.request is not None else None
            if answer is not None:
                self._answer(client, answer)

    def _handle(self, request: Request) -> Answer | Later | None:
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
        hang_up(client.sock, self._clients, self._selector)

    def _settle(self) -> None:
        """Answer the Prologs that waited for the arbiter; drop clients that say nothing."""
        now = self.clock.monotonic_ns()
        if self._asks is not None:
            self._asks.sweep()
        for client in list(self._clients.values()):
            if client.job_id is None:
                if client.request is None and now - client.since_ns > CLIENT_SILENCE_NS:
                    self._drop(client)
            elif client.job_id not in self.service.grants:
                self._answer(client, Answer(1, f"the grant of job {client.job_id} was ended while it waited"))
            elif self.service.connected:
                self._answer(client, self.service.settled(client.job_id))
            elif now >= client.until_ns:
                self._answer(client, self.service.abandon(client.job_id))

    # ---- the arbiter -----------------------------------------------------------------------------

    def _watch(self) -> None:
        """Have the selector tell when the arbiter, NVML's thread or a program of `qgpu run` has something.

        A descriptor that was closed and opened again may have the same number: the inode tells them apart.
        """
        if self.service.connected and self.service.ports.arbiter.ended:
            # A call found it, whose caller had no use for that. The timer connects again: what ends each connection at
            # once must not keep the loop from everything else.
            self._lose_arbiter()
        wanted = self._sources()
        for name in [name for name in self._watched if name not in wanted]:
            self._unwatch(name)
        for name, (fd, action) in wanted.items():
            key = (fd, os.fstat(fd).st_ino)
            if self._watched.get(name) == key:
                continue
            self._unwatch(name)
            with contextlib.suppress(KeyError):  # a number that was closed and is ours again
                self._selector.unregister(fd)
            self._selector.register(fd, selectors.EVENT_READ, action)
            self._watched[name] = key

    def _sources(self) -> dict[str, tuple[int, Callable[[object], object]]]:
        service, found = self.service, dict[str, tuple[int, Callable[[object], object]]]()
        arbiter, nvml = service.ports.arbiter, service.nvml.fileno()
        if service.connected and (fd := arbiter.fileno()) is not None:
            found["arbiter"] = (fd, self._arbiter_spoke)
        if service.connected and (fd := arbiter.watch_fileno()) is not None:
            found["deaths"] = (fd, lambda _: service.processes_died())
        if nvml is not None:
            found["nvml"] = (nvml, lambda _: service.nvml.collect())
        for job_id, pidfd in service.runs.pidfds.items():
            found[f"run {job_id}"] = (pidfd, functools.partial(self._program_ended, job_id))
        return found

    def _unwatch(self, name: str) -> None:
        fd, _ = self._watched.pop(name, (-1, 0))
        with contextlib.suppress(KeyError, ValueError, OSError):
            self._selector.unregister(fd)

    def _program_ended(self, job_id: int, _: object) -> None:
        self._unwatch(f"run {job_id}")
        self.service.program_ended(job_id)

    def _arbiter_spoke(self, _: object) -> None:
        """Between questions it says nothing: readable means gone, or out of step."""
        self._lose_arbiter()
        self.service.reach_arbiter()

    def _lose_arbiter(self) -> None:
        self._unwatch("arbiter")
        self._unwatch("deaths")
        self.service.lose_arbiter("the connection ended")

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

    def _shut(self, *servers: socket.socket) -> None:
        """Last counters into the ledger; grants and gates stay as they are for the next start."""
        for server in servers:
            self._selector.unregister(server)
            Path(server.getsockname()).unlink(missing_ok=True)
            server.close()
        if self._asks is not None:
            self._asks.close()
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
