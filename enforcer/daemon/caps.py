"""Memory caps as they hold now: where isolation is none for a job's class, the cap is lifted while that lasts.

The grant keeps the cap that was promised, so that it holds again when isolation is set back. The arbiter tells the shim
(docs/specs/abi.md, `terms`); here are the driver's own limits and the audit told.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Mapping
from dataclasses import dataclass, field, replace

from gres.cardplan import CardPlan
from gres.grants import Grant, GrantCard

SETTLED = (
    2  # audits that must see a job within its cap again; the first may have begun before the cap came back
)
Key = tuple[int, str]


@dataclass
class Caps:
    """`plan` says what holds for a card, by Slurm's index and UUID; `keep` writes down who is excused, for the next
    start of the daemon."""

    plan: Callable[[int, str], CardPlan]
    keep: Callable[[Collection[Key]], object] = lambda keys: None
    _excused: dict[Key, int] = field(default_factory=dict)
    _kinds: tuple[tuple[Grant, ...], list[tuple[Grant, GrantCard]]] = ((), [])

    def now(self, grants: Mapping[int, Grant]) -> dict[int, Grant]:
        """The grants with the caps that hold at this moment."""
        if not any(self._free(grant, card) for grant, card in self._of_each_kind(tuple(grants.values()))):
            return dict(grants)
        return {job_id: self._with(grant, self._free) for job_id, grant in grants.items()}

    def _of_each_kind(self, grants: tuple[Grant, ...]) -> list[tuple[Grant, GrantCard]]:
        """One grant of each class on each card: looks come every second, on nodes with a hundred grants."""
        if grants != self._kinds[0]:
            kinds = {(card.index, card.uuid, g.job_class): (g, card) for g in grants for card in g.cards}
            self._kinds = grants, list(kinds.values())
        return self._kinds[1]

    def resume(self, keys: Iterable[Key]) -> None:
        """Who was excused when the daemon before this one ended."""
        self._excused = dict.fromkeys(keys, 0)

    def note(self, grants: Mapping[int, Grant]) -> dict[int, Grant]:
        """Write down who has no cap now; the grants with the caps that hold. To be called before and after each change
        of that, and before the arbiter hears of it: what a job takes then it may keep, also if we crash."""
        current = self.now(grants)
        for job_id, grant in grants.items():
            if current[job_id] is grant:
                continue
            for card, held in zip(grant.cards, current[job_id].cards, strict=True):
                if card is not held:
                    self._excused[job_id, card.uuid] = 0
        self.keep(self._excused)
        return current

    def judged(self, grants: Mapping[int, Grant]) -> dict[int, Grant]:
        """The same for the audit. What a job took while it had no cap it may keep: it is refused more, not punished."""
        current = self.note(grants)
        if not self._excused:
            return current
        return {job_id: self._with(grant, self._excuses) for job_id, grant in grants.items()}

    def ended(self, job_id: int) -> None:
        """The job's grant ended: the next one with this number took nothing yet."""
        self._excused = {key: looks for key, looks in self._excused.items() if key[0] != job_id}
        self.keep(self._excused)

    def seen(self, memory: Mapping[Key, int], grants: Mapping[int, Grant], looked: Container[str]) -> None:
        """An audit saw this much on the cards that it `looked` at: who is within the cap again, and has one, needs no
        excuse any more."""
        for (job_id, uuid), looks in list(self._excused.items()):
            grant = grants.get(job_id)
            card = next((c for c in grant.cards if c.uuid == uuid), None) if grant is not None else None
            if grant is None or card is None:
                del self._excused[job_id, uuid]
            elif uuid not in looked:
                continue  # nobody knows what it holds there
            elif self._free(grant, card) or memory.get((job_id, uuid), 0) > card.mem_cap:
                self._excused[job_id, uuid] = 0
            elif looks + 1 >= SETTLED:
                del self._excused[job_id, uuid]
            else:
                self._excused[job_id, uuid] = looks + 1
        self.keep(self._excused)

    def _free(self, grant: Grant, card: GrantCard) -> bool:
        return not self.plan(card.index, card.uuid).governed(grant.job_class)

    def _excuses(self, grant: Grant, card: GrantCard) -> bool:
        return (grant.job_id, card.uuid) in self._excused

    @staticmethod
    def _with(grant: Grant, lifted: Callable[[Grant, GrantCard], bool]) -> Grant:
        """The grant itself where nothing is lifted."""
        capped = [card for card in grant.cards if card.mem_cap < card.mem_total and lifted(grant, card)]
        if grant.state != "active" or not capped:
            return grant
        cards = (replace(card, mem_cap=card.mem_total) if card in capped else card for card in grant.cards)
        return replace(grant, cards=tuple(cards))
