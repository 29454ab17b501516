"""A node that is sampled by hand, and its metrics."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from enforcer.ledger.schema import Sample
from enforcer.reporting.metrics import NodeCollector, Publisher
from enforcer.reporting.state import Card, NodeState, Seen, Watcher
from gres.grant.store import Grant, GrantCard

SECOND = 10**9
UUID = "GPU-00000000-0000-0000-0000-000000000001"


def grant(job: int, job_class: str | None = "online") -> Grant:
    card = GrantCard(UUID, 0, 0, 30, 10, 80)
    kind = "active" if job_class else "whole"
    return Grant(job, 1000 + job, 100, "n1", kind, job_class, 5, "", (card,), "/r", "/d", "/s")  # type: ignore[arg-type]


class Node:
    """Successive samples, as qgpud takes them."""

    def __init__(self, job_labels: bool = False, **more: object) -> None:
        self.state: NodeState | None = None
        self.watcher = Watcher()
        self.second = 0
        self.publisher = Publisher(
            NodeCollector(lambda: self.state, job_labels, lambda: self.second + 0.5),
            **more,  # type: ignore[arg-type]
        )

    def sample(
        self, *tenants: Seen | None, grants: tuple[Grant, ...], util: int | None = 40
    ) -> None:
        self.second += 1
        at = self.second * SECOND
        seen = None if tenants == (None,) else [t for t in tenants if t]
        cards = (Card(UUID, 0, "h200", 80, 20, util),)
        self.state = self.watcher.sample("n1", grants, seen, cards, at, at)
        self.publisher.update(self.state)

    def read(self) -> dict[str, dict[tuple[str, ...], float]]:
        found: dict[str, dict[tuple[str, ...], float]] = {}
        for family in text_string_to_metric_families(self.publisher.text().decode()):
            for sample in family.samples:
                labels = tuple(
                    v for k, v in sample.labels.items() if k not in ("node", "uuid", "card")
                )
                found.setdefault(sample.name, {})[labels] = sample.value
        return found


def seen(job: int, **sample: int) -> Seen:
    return Seen(Sample(job, UUID, 1, 5, mem_used=7)._replace(**sample), 1)
