"""Publishes the node once a second: live state, metrics, mapping files, card series, housekeeping.

It never stops a job: an error is logged once and the action tried again.
"""

from __future__ import annotations

import logging
import pwd
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from enforcer.clock import Clock
from enforcer.daemon.log import emit
from enforcer.ledger.prune import Limits, prune
from enforcer.ledger.store import CardSample, Ledger
from enforcer.reporting import state as live
from enforcer.reporting.hpcmap import JobMapping, jobs_by_card
from enforcer.reporting.metrics import NodeCollector, Publisher
from enforcer.reporting.privacy import Privacy
from enforcer.reporting.state import Card, Encoder, NodeState, Seen, Watcher
from enforcer.reporting.viewclient import SOCK_NAME
from enforcer.reporting.viewserver import View, ViewServer
from gres.config.site import Config, Node
from gres.grant.store import Grant

PRUNE_NS = 30 * 10**9  # period of housekeeping: little work, and no haste
# period of writing an unchanged state: below the age that `qgpu top` calls old
UNCHANGED_NS = 4 * 10**9
STEADY = 2  # samples in a row without a change; the first one still shows rates that fall to zero
WATCHED_NS = 10 * 10**9  # time after a question in which the state is sampled each second


def privacy_of(config: Config) -> Privacy:
    """The configured privacy with the admins' uids; unknown names are logged."""
    admins = []
    for name in config.reports.admins:
        try:
            admins.append(pwd.getpwnam(name).pw_uid)
        except KeyError:
            emit(logging.WARNING, "unknown-admin", name=name)
    return Privacy.of(config.reports.private_data, admins)


@dataclass
class Observer:
    """One per daemon. `start` opens socket and port; call `sample` about once a second."""

    config: Config
    node: Node
    ledger: Ledger
    clock: Clock
    state: NodeState | None = None
    _watcher: Watcher = field(default_factory=Watcher)
    _encoder: Encoder = field(default_factory=Encoder)
    _basis: object = None
    _same: int = 0
    _written_ns: int = 0
    _failed: dict[str, str] = field(default_factory=dict)
    _pruned_ns: int = 0
    _asked_ns: int = 0
    _privacy: Privacy = field(default_factory=Privacy)
    _view: ViewServer | None = None
    _publisher: Publisher | None = None
    _mapping: JobMapping | None = None

    def start(self) -> None:
        """Open the socket and the port."""
        settings = self.config.reports
        self._privacy = privacy_of(self.config)
        run_dir = Path(self.node.run_dir)
        view = View(self.ledger.path, self._privacy, self._asked)
        self._try("view", self._open_view, run_dir / SOCK_NAME, view)
        self._try("metrics", self._open_metrics)
        if settings.metrics.hpc_mapping is not None:
            self._mapping = JobMapping(
                Path(settings.metrics.hpc_mapping.replace("%n", self.node.name))
            )

    def _asked(self) -> NodeState | None:
        """A question for the live state, in the socket's thread."""
        self._asked_ns = self.clock.monotonic_ns()
        return self.state

    def watched(self) -> bool:
        """Whether the state was asked for lately."""
        return self._asked_ns > 0 and self.clock.monotonic_ns() - self._asked_ns < WATCHED_NS

    def _open_view(self, path: Path, view: View) -> None:
        self._view = ViewServer(path, view)

    def _open_metrics(self) -> None:
        settings = self.config.reports.metrics
        if not settings.port and settings.textfile is None:
            return
        textfile = (
            None
            if settings.textfile is None
            else Path(settings.textfile.replace("%n", self.node.name))
        )
        now = lambda: self.clock.realtime_ns() / 1e9  # noqa: E731
        collector = NodeCollector(lambda: self.state, settings.job_labels, now)
        self._publisher = Publisher(collector, settings.port, textfile)

    def sample(
        self,
        grants: Iterable[Grant],
        tenants: Sequence[Seen] | None,
        cards: Sequence[Card],
        reclaims: dict[str, int] | None = None,
    ) -> None:
        """Show this state. `tenants` is None without an arbiter."""
        now = self.clock.realtime_ns()
        seen = self._seen(list(grants), tenants, cards, now)
        self.state = seen = replace(seen, reclaims=reclaims)
        self._write(seen)
        if self._publisher is not None:
            self._try("metrics", self._publisher.update, seen)
        if self._mapping is not None:
            self._try("hpc-mapping", self._mapping.update, jobs_by_card(seen))
        samples = [CardSample(c.uuid, c.index, c.util, c.mem_used) for c in cards]
        self._try("ledger", self.ledger.record_cards, self.node.name, samples, now)
        self._keep_house(now)

    def _seen(
        self, grants: list[Grant], tenants: Sequence[Seen] | None, cards: Sequence[Card], now: int
    ) -> NodeState:
        """The state; after three equal samples, the former state with a new date."""
        basis, monotonic = (grants, tenants, cards), self.clock.monotonic_ns()
        self._same = self._same + 1 if basis == self._basis else 0
        self._basis = basis
        if self.state is not None and self._same >= STEADY:
            self._watcher.same(monotonic)
            return replace(self.state, at=now / 1e9)
        return self._watcher.sample(self.node.name, grants, tenants, cards, monotonic, now)

    def _write(self, seen: NodeState) -> None:
        """Write the state file, the fallback of view.sock; an idle node's
        is not written each time.
        """
        monotonic = self.clock.monotonic_ns()
        if (
            self._same > STEADY
            and not self.watched()
            and monotonic - self._written_ns < UNCHANGED_NS
        ):
            return
        self._written_ns = monotonic
        mode = 0o600 if "jobs" in self._privacy.private else 0o644
        path = Path(self.node.run_dir) / live.FILE_NAME
        self._try("state", live.write, path, self._encoder.text(seen), mode)

    def _keep_house(self, now: int) -> None:
        """Prune a little every 30 s, or each second while more is left."""
        monotonic = self.clock.monotonic_ns()
        if monotonic - self._pruned_ns < PRUNE_NS:
            return
        settings = self.config.ledger
        limits = Limits(settings.retention.seconds, settings.max_size << 20)
        more = self._try("ledger", prune, self.ledger, limits, now)
        self._pruned_ns = monotonic if not more else 0

    def _try(self, what: str, action: Callable[..., object], *arguments: object) -> object:
        try:
            result = action(*arguments)
        except (OSError, sqlite3.Error, ValueError) as error:
            if self._failed.get(what) != str(error):
                emit(logging.ERROR, "report-failed", what=what, why=error)
            self._failed[what] = str(error)
            return None
        self._failed.pop(what, None)
        return result

    def close(self) -> None:
        """Stop answering; the last state stays, with its age."""
        if self._view is not None:
            self._view.close()
        if self._publisher is not None:
            self._publisher.close()
