"""Prometheus metrics of one node, from its live state (docs/specs/reporting/metrics.md).

A collector: it keeps nothing between scrapes, so an ended job leaves no stale series. Without
`job_labels` tenants are summed per card and class, which bounds the number of series.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from enforcer.reporting.reclaim_metrics import reclaims
from enforcer.reporting.state import CardState, NodeState, TenantState, write
from enforcer.wire.message_layout import CLOSE_BUCKETS

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
MAX_SCRAPES = 16  # at a time: each takes a thread
SCRAPE_S = 2  # seconds for one scrape, so that a slow client does not keep its place
PLACE_S = 0.2  # seconds that a scrape waits for a free thread
FRESH_S = 0.5  # seconds in which scrapes get the same text, since any process may scrape
CARD_LABELS = ("node", "uuid", "card")
# A tenant's counter -> (metric, unit, help).
COUNTERS: dict[str, tuple[str, float, str]] = {
    "busy_ns": (
        "qgpu_busy_seconds",
        1e-9,
        "Time on the card; tenants divide it, so sums never exceed the wall time.",
    ),
    "launches": ("qgpu_launches", 1, "Kernel launches."),
    "denied": ("qgpu_denied_allocations", 1, "Allocations refused at the memory cap."),
    "preemptions": ("qgpu_preemptions", 1, "Times an online job took the card."),
    "closed_preempted_ns": (
        "qgpu_preempted_seconds",
        1e-9,
        "Time it was runnable while online jobs had the card.",
    ),
    "closed_idle_ns": ("qgpu_preempted_idle_seconds", 1e-9, "The part without work on the card."),
    "closed_share_ns": (
        "qgpu_throttled_seconds",
        1e-9,
        "Time it was runnable while its gate was closed to keep shares.",
    ),
}
# The same of hardware preemption; only where it is used.
HARDWARE: dict[str, tuple[str, float, str]] = {
    "hw_stops": (
        "qgpu_hardware_stops",
        1,
        "Times the groups of a tenant were stopped in the middle of their work.",
    ),
    "hw_failures": ("qgpu_hardware_failures", 1, "Times that failed; gating alone remained."),
    "hw_stopped_ns": ("qgpu_hardware_stopped_seconds", 1e-9, "Time that groups were stopped."),
}
BUCKETS = tuple(f"hw_le_{bucket}" for bucket in range(CLOSE_BUCKETS))
SUMMED = frozenset((*COUNTERS, *HARDWARE, *BUCKETS))


class NodeCollector(Collector):
    """Answers a scrape from the last live state; `user_of` gives user names for job labels."""

    def __init__(
        self,
        state: Callable[[], NodeState | None],
        job_labels: bool,
        now: Callable[[], float],
        user_of: Callable[[int], str] = str,
    ) -> None:
        self._state = state
        self._job_labels = job_labels
        self._now = now
        self._user_of = user_of
        self._sums: dict[tuple[str, str, str], dict[str, int]] = {}
        self._last: dict[tuple[str, int], dict[str, int]] | None = None
        self._taken: object = None

    def collect(self) -> Iterator[Metric]:
        """All metrics now."""
        state = self._state()
        up = GaugeMetricFamily("qgpu_arbiter_up", "Whether the arbiter answers.", labels=["node"])
        age = GaugeMetricFamily(
            "qgpu_state_age_seconds", "How old these figures are; alerts watch it.", labels=["node"]
        )
        if state is not None:
            up.add_metric([state.node], float(state.arbiter))
            age.add_metric([state.node], max(0.0, self._now() - state.at))
        yield from (up, age)
        if state is not None:
            yield from self._cards(state)
            yield from self._gauges(state)
            yield from self._counters(state)
            yield from reclaims(state)

    # ---- cards ----------------------------------------------------------------------------------

    def _cards(self, state: NodeState) -> Iterator[Metric]:
        def family(name: str, text: str, value: Callable[[CardState], float | None]) -> Metric:
            metric = GaugeMetricFamily(name, text, labels=CARD_LABELS)
            for card in state.cards:
                found = value(card)
                if found is not None:  # no sample if not measured, rather than zero
                    metric.add_metric(_card(state, card), found)
            return metric

        yield family("qgpu_card_memory_total_bytes", "Memory of the card.", lambda c: c.mem_total)
        yield family("qgpu_card_memory_used_bytes", "Memory in use, by NVML.", lambda c: c.mem_used)
        yield family(
            "qgpu_card_utilization_ratio",
            "By NVML.",
            lambda c: None if c.util is None else c.util / 100,
        )
        yield family(
            "qgpu_card_use_ratio",
            "Part of the time since the last sample in which tenants were on the card.",
            lambda c: _over(c.use, 100),
        )
        yield family("qgpu_card_tenants", "Grants on the card.", lambda c: len(c.tenants))
        yield family(
            "qgpu_card_whole",
            "1: an exclusive job holds it, monitored and not governed.",
            lambda c: float(any(t.state == "whole" for t in c.tenants)),
        )

    # ---- tenants --------------------------------------------------------------------------------

    @property
    def _labels(self) -> tuple[str, ...]:
        return (*CARD_LABELS, "class", *(("job", "user") if self._job_labels else ()))

    def _key(self, state: NodeState, card: CardState, tenant: TenantState) -> list[str]:
        who = [str(tenant.job_id), self._user_of(tenant.uid)] if self._job_labels else []
        return [*_card(state, card), tenant.job_class or "whole", *who]

    def _gauges(self, state: NodeState) -> Iterator[Metric]:
        labels = self._labels
        granted = GaugeMetricFamily(
            "qgpu_granted_ratio", "Share of the card that was granted.", labels=labels
        )
        now = GaugeMetricFamily(
            "qgpu_used_ratio", "Share of the card used since the last sample.", labels=labels
        )
        cap = GaugeMetricFamily("qgpu_memory_cap_bytes", "Memory granted.", labels=labels)
        used = GaugeMetricFamily("qgpu_memory_used_bytes", "Memory held by jobs.", labels=labels)
        count = GaugeMetricFamily(
            "qgpu_tenants", "Tenants by what they mostly did.", labels=[*labels, "state"]
        )
        sums: dict[tuple[str, ...], list[float | None]] = {}
        states: dict[tuple[str, ...], int] = {}
        for card, tenant in _tenants(state):
            key = tuple(self._key(state, card, tenant))
            values = (
                tenant.share / 100,
                _over(tenant.share_now, 100),
                tenant.mem_cap,
                tenant.mem_used,
            )
            sums[key] = [
                _plus(a, b) for a, b in zip(sums.get(key, [None] * 4), values, strict=True)
            ]
            at = (*key, tenant.state)
            states[at] = states.get(at, 0) + 1
        for key, found in sums.items():
            for metric, value in zip((granted, now, cap, used), found, strict=True):
                if value is not None:
                    metric.add_metric(list(key), value)
        for key, number in states.items():
            count.add_metric(list(key), number)
        yield from (granted, now, cap, used, count)

    def _counters(self, state: NodeState) -> Iterator[Metric]:
        """Per job as the arbiter counts; per class as sums that outlive jobs."""
        if self._job_labels:
            rows = [
                (self._key(state, card, tenant), tenant.counters)
                for card, tenant in _tenants(state)
                if tenant.counters is not None
            ]
        else:
            rows = [([state.node, *key], counters) for key, counters in self._sums.items()]
        for name, (metric, unit, text) in COUNTERS.items():
            family = CounterMetricFamily(metric, text, labels=self._labels)
            for labels, counters in rows:
                family.add_metric(labels, counters.get(name, 0) * unit)
            yield family
        yield from _hardware(
            self._labels, [(key, found) for key, found in rows if "hw_stops" in found]
        )

    def take(self, state: NodeState) -> None:
        """Add the gains since the last state to the sums per card and class.

        The first state is the base: what precedes a restart was counted before it.
        """
        if state.cards is self._taken:
            return  # unchanged
        self._taken = state.cards
        sums = {key: dict(counters) for key, counters in self._sums.items()}
        known, last = self._last or {}, dict[tuple[str, int], dict[str, int]]()
        for card, tenant in _tenants(state):
            key, counters = (card.uuid, tenant.job_id), tenant.counters
            if counters is None:
                # Without the arbiter a tenant has no counters; its earlier ones must not count
                # twice.
                if key in known:
                    last[key] = known[key]
                continue
            into = sums.setdefault((card.uuid, _index(card), tenant.job_class or "whole"), {})
            before = counters if self._last is None else known.get(key, {})
            # without hardware preemption no series, rather than zeros
            for name, new in counters.items():
                if name in SUMMED:
                    old = before.get(name, 0)
                    into[name] = into.get(name, 0) + (new - old if new >= old else new)
            last[key] = counters
        self._last = last
        self._sums = sums  # one assignment, since a scrape runs in another thread


def _hardware(
    labels: tuple[str, ...], rows: list[tuple[list[str], dict[str, int]]]
) -> Iterator[Metric]:
    """Stops by hardware and how long they took, of the tenants that have it."""
    if not rows:
        return
    for name, (metric, unit, text) in HARDWARE.items():
        family = CounterMetricFamily(metric, text, labels=labels)
        for key, counters in rows:
            family.add_metric(key, counters.get(name, 0) * unit)
        yield family
    took = HistogramMetricFamily(
        "qgpu_hardware_stop_seconds",
        "From the closing of the gate to the driver's last answer.",
        labels=labels,
    )
    for key, counters in rows:
        took.add_metric(key, _cumulated(counters), sum_value=None)
    yield took


def _cumulated(counters: dict[str, int]) -> list[tuple[str, float]]:
    """Cumulated histogram; bucket k holds times below 2^k us, the last one the rest."""
    found: list[tuple[str, float]] = []
    total = 0
    for power, name in enumerate(BUCKETS):
        total += counters.get(name, 0)
        bound = "+Inf" if power == len(BUCKETS) - 1 else _number(2**power / 1e6)
        found.append((bound, float(total)))
    return found


def _tenants(state: NodeState) -> Iterable[tuple[CardState, TenantState]]:
    return ((card, tenant) for card in state.cards for tenant in card.tenants)


def _index(card: CardState) -> str:
    return "" if card.index is None else str(card.index)


def _card(state: NodeState, card: CardState) -> list[str]:
    return [state.node, card.uuid, _index(card)]


def _over(value: float | None, by: float) -> float | None:
    return None if value is None else value / by


def _plus(a: float | None, b: float | None) -> float | None:
    """The sum of the measured ones."""
    return b if a is None else a if b is None else a + b


def text_of(families: Iterable[Metric]) -> bytes:
    """The text format 0.0.4 as prometheus-client writes it (a test compares), but far faster."""
    lines: list[str] = []
    known: dict[tuple[tuple[str, str], ...], str] = {}
    for family in families:
        name = f"{family.name}_total" if family.type == "counter" else family.name
        lines.append(f"# HELP {name} {_escape(family.documentation, quotes=False)}")
        lines.append(f"# TYPE {name} {family.type}")
        for sample in family.samples:
            key = tuple(sample.labels.items())
            labels = known.get(key)
            if labels is None:
                labels = known[key] = ",".join(f'{k}="{_escape(v)}"' for k, v in sorted(key))
            braces = f"{{{labels}}}" if labels else ""
            lines.append(f"{sample.name}{braces} {_number(sample.value)}")
    return ("\n".join(lines) + "\n").encode(errors="backslashreplace")


_number: Callable[[float], str] = floatToGoString


def _escape(text: str, quotes: bool = True) -> str:
    text = text.replace("\\", "\\\\").replace("\n", "\\n")
    return text.replace('"', '\\"') if quotes else text


class _NoLogHandler(WSGIRequestHandler):
    timeout = SCRAPE_S

    def log_message(self, *_: Any) -> None:
        """No log line per scrape."""


class _Server(ThreadingMixIn, WSGIServer):
    """A thread per scrape, a few at a time: a slow one holds a place, not the port."""

    request_queue_size = 32
    daemon_threads = True
    block_on_close = False

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._places = threading.BoundedSemaphore(MAX_SCRAPES)
        self._began: dict[Any, float] = {}

    def service_actions(self) -> None:
        """End scrapes that take too long: the handler's own limit is for each byte."""
        oldest = time.monotonic() - SCRAPE_S
        for request in [each for each, began in list(self._began.items()) if began < oldest]:
            with contextlib.suppress(OSError):
                request.shutdown(socket.SHUT_RDWR)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer, or refuse if no place gets free in time."""
        if self._places.acquire(timeout=PLACE_S):
            self._began[request] = time.monotonic()
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """One scrape."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._began.pop(request, None)
            self._places.release()


class Publisher:
    """The node's metrics at a loopback port, in a textfile, or both. `update` once per sample."""

    def __init__(
        self, collector: NodeCollector, port: int = 0, textfile: Path | None = None
    ) -> None:
        """Raises OSError when the port is taken."""
        self.collector = collector
        self._textfile = textfile
        self._server: WSGIServer | None = None
        self._lock, self._text, self._made = threading.Lock(), b"", float("-inf")
        if port:
            self._server = make_server("127.0.0.1", port, self._answer, _Server, _NoLogHandler)
            threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True).start()

    def text(self) -> bytes:
        """The text of a scrape."""
        return text_of(self.collector.collect())

    def _body(self) -> bytes:
        """One text per half second: the port is open to each process of the machine."""
        with self._lock:
            if time.monotonic() - self._made >= FRESH_S:
                self._text, self._made = self.text(), time.monotonic()
            return self._text

    def _answer(self, _: dict[str, Any], start: Callable[..., object]) -> list[bytes]:
        body = self._body()
        start("200 OK", [("Content-Type", CONTENT_TYPE), ("Content-Length", str(len(body)))])
        return [body]

    def update(self, state: NodeState) -> None:
        """Publish a new state."""
        self.collector.take(state)
        if self._textfile is not None:
            write(self._textfile, self.text().decode(), 0o644)

    def close(self) -> None:
        """Stop answering."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
