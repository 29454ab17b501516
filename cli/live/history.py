"""The last samples of `qgpu top`, kept by its process: what cards did, and who held whom. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field

from enforcer.reporting.state import CardState, NodeState, TenantState

KEPT = 60  # samples, which are a minute if top asks each second
HELD_S = 10.0  # seconds that HELD% covers: a job is held and let go several times a second
NAMED = 2  # online jobs that are named; more are counted
LEVELS = "▁▂▃▄▅▆▇█"
UNKNOWN = "·"


@dataclass(frozen=True)
class _Sample:
    at: float
    used: float | None  # percent of the card
    held: float | None = None  # percent of the time


@dataclass
class History:
    """Samples per card and per job on a card."""

    _samples: dict[Hashable, deque[_Sample]] = field(default_factory=dict)

    def note(self, states: Iterable[NodeState]) -> None:
        """Remember what is new in these states, and forget jobs and cards that are gone."""
        kept: dict[Hashable, deque[_Sample]] = {}
        for state in states:
            for card in state.cards:
                kept[card.uuid] = self._added(card.uuid, _Sample(state.at, card.use))
                for tenant in card.tenants:
                    sample = _Sample(state.at, tenant.share_now, tenant.held_now)
                    key = (card.uuid, tenant.job_id)
                    kept[key] = self._added(key, sample)
        self._samples = kept

    def _added(self, key: Hashable, sample: _Sample) -> deque[_Sample]:
        samples = self._samples.get(key) or deque(maxlen=KEPT)
        if not samples or samples[-1].at != sample.at:
            samples.append(sample)
        return samples

    def line(self, card: CardState, width: int) -> str:
        """The use of a card in the last samples, the newest on the right."""
        values = [sample.used for sample in self._samples.get(card.uuid, ())][-width:]
        return "".join(map(_level, values)).rjust(width)

    def held(self, card: CardState, tenant: TenantState) -> float | None:
        """Percent of the last HELD_S seconds in which an offline job was held for online jobs."""
        if tenant.job_class != "offline":
            return None
        values = [s.held for s in self._recent(card, tenant) if s.held is not None]
        return sum(values) / len(values) if values else None

    def holders(self, card: CardState, tenant: TenantState) -> str:
        """The online jobs that used the card in that time, as far as the caller sees them; empty if
        nothing was held.
        """
        if not round(self.held(card, tenant) or 0):
            return ""
        jobs = [
            str(other.job_id)
            for other in card.tenants
            if other.job_class == "online" and any(s.used for s in self._recent(card, other))
        ]
        more = f"+{len(jobs) - NAMED}" if len(jobs) > NAMED else ""
        return ",".join(jobs[:NAMED]) + more or "online"

    def _recent(self, card: CardState, tenant: TenantState) -> list[_Sample]:
        samples = self._samples.get((card.uuid, tenant.job_id)) or deque()
        return [sample for sample in samples if sample.at > samples[-1].at - HELD_S]


def _level(percent: float | None) -> str:
    if percent is None:
        return UNKNOWN
    return LEVELS[min(len(LEVELS) - 1, int(max(0.0, percent) / 100 * len(LEVELS)))]
