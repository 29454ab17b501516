"""The daemon's loop: hook.sock, signals, the arbiter's descriptor and timers, in one thread."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import random
import selectors
import signal
import socket
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
from enforcer.daemon.packets import hang_up, listen, peer_uid, receive
from enforcer.daemon.requests.answers import Asks
from enforcer.daemon.requests.protocol import SOCK_ASK
from enforcer.daemon.requests.server import AskServer
from enforcer.daemon.timer import Timer
from enforcer.wire.layout import SOCK_HOOK
from gres.units import Duration

MAX_CLIENTS = 256  # open connections of hooks: one per Prolog or Epilog at a time
CLIENT_SILENCE_NS = 10 * 10**9  # a client that sends nothing is dropped, since it holds a place
RETRY_NS = 200 * 10**6  # period of attempts to reach an absent arbiter
WATCHDOG_NS = 5 * 10**9  # period of watchdog messages: below a third of WatchdogSec
RUN_END_NS = 10**9  # period of ending `qgpu run` grants whose command has ended
OBSERVE_NS = 10**9  # period of live state and metrics
LOOK_NS = 15 * 10**9  # period of looks for grants without a slurmstepd
# period of looks at free memory while a job waits for it or is away
MOVE_NS = 100 * 10**6
DEAD_NS = 50 * 10**6  # period of polls for dead processes that the driver still lists
# period of scans for new cgroups of jobs, where the driver has limits for them
CGROUPS_NS = 250 * 10**6
T = TypeVar("T")
F = TypeVar("F")


@dataclass
class Client:
    """One connection of a hook.

    `job_id` is set while its Prolog waits for the arbiter, `request` while it waits for the driver
    or for memory.
    """

    sock: socket.socket
    since_ns: int
    job_id: int | None = None
    until_ns: int = 0
    request: Request | None = None


@dataclass
class Server:
    """Serves one node until SIGTERM or SIGINT (or `stop`). `owner` is
    the uid that may ask: root.
    """

    service: NodeService
    clock: Clock
    owner: int = 0
    observe: Callable[[], object] | None = None
    timers: list[Timer] = field(default_factory=list)
    chance: Callable[[], float] = random.SystemRandom().random  # 0 to 1, unpredictable for jobs
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
        self._asks = AskServer(
            Asks(self.service, self.owner), self.clock, self._selector, self._watch
        )
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
        self._every(settings.nvml_interval, self.service.sample_cards, self.chance)
        self._every(settings.ledger_interval, self.service.poll_arbiter)
        self._every(settings.ledger_interval, self.service.take_markers)
        if self.observe is not None:
            self.timers.append(Timer(OBSERVE_NS, self.observe))
        service = self.service
        self.timers.append(
            Timer(RETRY_NS, service.reach_arbiter, wanted=lambda: not service.connected)
        )
        waits = Timer(
            RETRY_NS, self._ask_again, wanted=lambda: any(c.request for c in self._clients.values())
        )
        self.timers.append(waits)
        dead = Timer(DEAD_NS, service.inspector.poll_dead, wanted=lambda: service.inspector.waiting)
        limits = Timer(
            CGROUPS_NS, service.limit_memory, wanted=lambda: service.memory.wanted(service.grants)
        )
        left = Timer(RUN_END_NS, service.end_left, wanted=lambda: bool(service.runs.left))
        moves = Timer(MOVE_NS, service.reclaimer.tick, wanted=service.reclaimer.wanted)
        lost = Timer(LOOK_NS, lambda: service.lost.look(list(service.grants)))
        told = Timer(RETRY_NS, service.end_lost, wanted=lambda: service.lost.asking)
        self.timers += [dead, limits, left, moves, lost, told]
        self.timers.append(Timer(WATCHDOG_NS, lambda: notify("WATCHDOG=1")))

    def _every(
        self,
        interval: Duration,
        action: Callable[[], object],
        chance: Callable[[], float] | None = None,
    ) -> None:
        self.timers.append(Timer(max(interval.ns, 10**7), action, chance=chance))

    def _step(self) -> None:
        for timer in self.timers:
            now = self.clock.monotonic_ns()
            if timer.due_ns <= now and timer.wanted():
                timer.next(now)
                guarded(timer.action, None)
        self._watch()
        wait = (
            min(timer.due_ns for timer in self.timers if timer.wanted()) - self.clock.monotonic_ns()
        )
        for key, _ in self._selector.select(max(wait, 0) / 10**9):
            guarded(functools.partial(key.data, key.fileobj), None)
        self._answer_waiting()

    # ---- hooks ----------------------------------------------------------------------------------

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
            self._drop(client)  # closed, or sent more before its answer
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
        client.until_ns = began + self._prolog_deadline_ns()
        answer = self._try(client, request)
        if answer is None:
            return
        took = (self.clock.monotonic_ns() - began) // 1000
        job = request.env.get("SLURM_JOB_ID")
        emit(logging.DEBUG, request.kind, job=job, status=answer.status, us=took)
        self._answer(client, answer)

    def _try(self, client: Client, request: Request) -> Answer | None:
        """The answer; None while the client waits for the driver, then for the arbiter."""
        fallback = Answer(
            1, f"qgpud failed in the {request.kind} of this job: its log has the reason"
        )
        answer = guarded(functools.partial(self._handle, request), fallback)
        client.request, now = None, self.clock.monotonic_ns()
        if isinstance(answer, Later) and answer.patient:
            client.until_ns = now + self._prolog_deadline_ns()  # for what follows the wait
        if isinstance(answer, Later) and now < client.until_ns:
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

    def _prolog_deadline_ns(self) -> int:
        """ns that a Prolog may wait here: nine tenths of the hook's deadline, so the answer arrives
        in time.
        """
        return self.service.config.hook.deadline.ns * 9 // 10

    def _answer(self, client: Client, answer: Answer) -> None:
        with contextlib.suppress(OSError):
            client.sock.send(format_answer(answer))
        self._drop(client)

    def _drop(self, client: Client) -> None:
        if client.request is not None:  # its hook was killed, or the daemon ends
            self.service.reclaimer.claims.withdraw(int(client.request.env["SLURM_JOB_ID"]))
        hang_up(client.sock, self._clients, self._selector)

    def _answer_waiting(self) -> None:
        """Answer Prologs that waited for the arbiter; drop silent clients."""
        now, claims = self.clock.monotonic_ns(), self.service.reclaimer.claims
        if claims.news:
            claims.news = False
            self._ask_again()
        if self._asks is not None:
            self._asks.sweep()
        for client in list(self._clients.values()):
            if client.job_id is None:
                if client.request is None and now - client.since_ns > CLIENT_SILENCE_NS:
                    self._drop(client)
            elif client.job_id not in self.service.grants:
                self._answer(
                    client, Answer(1, f"the grant of job {client.job_id} was ended while it waited")
                )
            elif self.service.connected:
                self._answer(client, self.service.arbiter_answer(client.job_id))
            elif now >= client.until_ns:
                self._answer(client, self.service.abandon(client.job_id))

    # ---- the arbiter ----------------------------------------------------------------------------

    def _watch(self) -> None:
        """Register the descriptors of the arbiter, of NVML's thread and of `qgpu run` programs.

        A descriptor closed and opened again may have the same number: the inode tells them apart.
        """
        if self.service.connected and self.service.ports.arbiter.ended:
            # An earlier call found the connection ended. The timer connects again: an arbiter that
            # ends each connection must not stall the loop.
            self._lose_arbiter()
        wanted = self._sources()
        for name in [name for name in self._watched if name not in wanted]:
            self._unwatch(name)
        for name, (fd, action) in wanted.items():
            key = (fd, os.fstat(fd).st_ino)
            if self._watched.get(name) == key:
                continue
            self._unwatch(name)
            with contextlib.suppress(KeyError):  # the number was closed and is in use again
                self._selector.unregister(fd)
            self._selector.register(fd, selectors.EVENT_READ, action)
            self._watched[name] = key

    def _sources(self) -> dict[str, tuple[int, Callable[[object], object]]]:
        service, found = self.service, dict[str, tuple[int, Callable[[object], object]]]()
        arbiter, nvml = service.ports.arbiter, service.nvml.fileno()
        if service.connected and (fd := arbiter.fileno()) is not None:
            found["arbiter"] = (fd, self._arbiter_readable)
        if service.connected and (fd := arbiter.watch_fileno()) is not None:
            found["deaths"] = (fd, lambda _: service.processes_died())
        if nvml is not None:
            found["nvml"] = (nvml, lambda _: service.nvml.collect())
        for one in service.reclaimer.moves.operations():
            if (fd := one.child.fileno()) is not None:
                found[f"move {one.number}"] = (fd, lambda _: service.reclaimer.tick())
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

    def _arbiter_readable(self, _: object) -> None:
        """The arbiter sends nothing unasked: readable means that it is gone or out of step."""
        self._lose_arbiter()
        self.service.reach_arbiter()

    def _lose_arbiter(self) -> None:
        self._unwatch("arbiter")
        self._unwatch("deaths")
        self.service.lose_arbiter("the connection ended")

    # ---- start and stop -------------------------------------------------------------------------

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
        """Poll the last counters; grants and gates stay as they are for the next start."""
        for server in servers:
            self._selector.unregister(server)
            Path(server.getsockname()).unlink(missing_ok=True)
            server.close()
        if self._asks is not None:
            self._asks.close()
        for client in list(self._clients.values()):
            self._drop(client)
        guarded(self.service.poll_arbiter, None)
        guarded(self.service.lost.close, None)
        guarded(self.service.reclaimer.moves.close, None)
        self.service.ports.arbiter.close()
        self._selector.close()
        emit(logging.INFO, "stopped", grants=len(self.service.grants))


def guarded(action: Callable[[], T], fallback: F) -> T | F:
    """Run `action`; an exception is logged as a bug and gives `fallback`, so the daemon goes on."""
    try:
        return action()
    except Exception as error:
        emit(logging.ERROR, "bug", why=f"{type(error).__name__}: {error}")
        logging.getLogger("qgpud").debug("trace", exc_info=True)
        return fallback
