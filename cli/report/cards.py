"""Card use in a window, by the ledgers of all jobs, and what idle_release cost. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

from cli.report.advice import idle_percent, use_auto
from cli.report.groups import part_of
from cli.report.ledgers import Row

HEADER = ("CARD", "GRANTED_H", "USE%", "ONLINE%", "OFFLINE%", "WAITED_H", "IDLE%")


@dataclass
class CardUse:
    """One card. Use is percent of the time in which a grant stood on it.

    `waited_s`: how long offline jobs waited for online ones, each for itself; `idle_s` of it the
    card did nothing. None: not measured.
    """

    node: str
    card: int
    uuid: str
    granted_s: float = 0.0
    online_s: float = 0.0
    offline_s: float = 0.0
    waited_s: float = 0.0
    idle_s: float | None = None

    def percent(self, seconds: float) -> float:
        """Of the time with a grant."""
        return min(100.0, 100 * seconds / self.granted_s) if self.granted_s else 0.0

    def as_json(self) -> dict[str, object]:
        """Plain values for JSON."""
        return asdict(self) | {"use": self.percent(self.online_s + self.offline_s)}


def card_uses(rows: Iterable[Row], since_ns: int, until_ns: int) -> list[CardUse]:
    """All cards with a measured grant in the window, by name."""
    of_card: dict[tuple[str, int, str], list[Row]] = {}
    for row in rows:
        usage = row.usage
        if usage.busy_ns is not None:
            of_card.setdefault((usage.node, usage.card_index, usage.uuid), []).append(row)
    return [_use(CardUse(*key), of_card[key], since_ns, until_ns) for key in sorted(of_card)]


def _use(card: CardUse, rows: Sequence[Row], since_ns: int, until_ns: int) -> CardUse:
    for usage, points in ((row.usage, row.points) for row in rows):
        part = part_of(usage, points, since_ns, until_ns) / 1e9
        busy = (usage.busy_ns or 0) * part
        if usage.job_class == "online":
            card.online_s += busy
            continue
        card.offline_s += busy
        card.waited_s += (usage.closed_preempted_ns or 0) * part
        if usage.closed_idle_ns is not None:
            card.idle_s = (card.idle_s or 0.0) + usage.closed_idle_ns * part
    card.granted_s = _granted_ns(rows, since_ns, until_ns) / 1e9
    return card


def _granted_ns(rows: Sequence[Row], since_ns: int, until_ns: int) -> int:
    """Time in the window with at least one grant."""
    total, covered = 0, since_ns
    for usage in sorted((row.usage for row in rows), key=lambda usage: usage.granted_at):
        end = until_ns if usage.ended_at is None else min(usage.ended_at, until_ns)
        total += max(0, end - max(usage.granted_at, covered))
        covered = max(covered, end)
    return total


def lines(cards: Sequence[CardUse]) -> list[list[str]]:
    """Header and rows."""
    return [list(HEADER), *map(_line, cards)]


def _line(card: CardUse) -> list[str]:
    idle = None if card.idle_s is None or not card.waited_s else card.idle_s / card.waited_s
    return [
        f"{card.node}:{card.card}",
        f"{card.granted_s / 3600:.2f}",
        f"{card.percent(card.online_s + card.offline_s):.1f}",
        f"{card.percent(card.online_s):.1f}",
        f"{card.percent(card.offline_s):.1f}",
        f"{card.waited_s / 3600:.2f}",
        "-" if idle is None else f"{100 * idle:.1f}",
    ]


def advice(cards: Iterable[CardUse]) -> list[str]:
    """A sentence for each card that idled while offline jobs waited."""
    found = ((card, idle_percent(card.idle_s, card.waited_s, card.granted_s)) for card in cards)
    return [
        f"card {card.card} of {card.node} was idle {idle:.0f} % of the time that offline jobs"
        f" waited: idle_release. {use_auto(card.card, card.node)}"
        for card, idle in found
        if idle is not None
    ]
