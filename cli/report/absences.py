"""When and why the memory of a job was away from its cards, as sentences. Pure.

The ledger has a row for each interval and card. A move to another card ends the interval on the
one and begins another on the other, while the memory is away all the time: here they are one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime

from cli.report.model import GIB, JobReport, ReclaimReport

SHOWN = 10  # absences that are listed, the last ones; --json has all
MOVED = "moved from "  # of the rows that go on where a move ended another one


@dataclass(frozen=True)
class Absence:
    """One, with the cards that the memory was to leave. `row`: the times of the whole, the bytes of
    all cards; `back`: the card where it is now, or was to return.
    """

    node: str
    cards: tuple[int, ...]
    back: tuple[int, ...]
    row: ReclaimReport

    @property
    def left(self) -> bool:
        """Whether anything was moved."""
        return self.row.leave_s is not None or self.row.result == "returned"

    @property
    def seconds(self) -> float | None:
        """How long it was away; None: it still is."""
        return None if self.row.back_at is None else self.row.back_at - self.row.left_at


def absences(job: JobReport) -> list[Absence]:
    """Oldest first."""
    rows = [(one, grant) for grant in job.grants for one in grant.reclaims]
    found: list[Absence] = []
    for row, grant in sorted(rows, key=lambda pair: (pair[0].left_at, pair[1].card)):
        before = next(
            (one for one in reversed(found) if one.node == grant.node and _goes_on(one.row, row)),
            None,
        )
        if before is None:
            found.append(Absence(grant.node, (grant.card,), (grant.card,), row))
        else:
            found[found.index(before)] = _joined(before, row, grant.card)
    return found


def _goes_on(before: ReclaimReport, row: ReclaimReport) -> bool:
    """Whether it is the same absence: of another card of the job, or after a move."""
    if row.why.startswith(MOVED):
        return before.result == "moved" and before.back_at == row.left_at
    return before.left_at == row.left_at


def _joined(before: Absence, row: ReclaimReport, card: int) -> Absence:
    if not row.why.startswith(MOVED):
        mem = (before.row.mem or 0) + (row.mem or 0)
        cards = (*before.cards, card)
        return Absence(before.node, cards, cards, replace(before.row, mem=mem))
    whole = replace(before.row, back_at=row.back_at, return_s=row.return_s, result=row.result)
    return replace(before, back=(card,), row=whole)


def away_sentences(job: JobReport) -> list[str]:
    """How often and how long, and the last ones one by one."""
    found = absences(job)
    if not found:
        return []
    over = [one.seconds for one in found if one.left and one.seconds is not None]
    lines = []
    if over:
        lines = [f"its memory was away from its card {len(over)} time(s), {sum(over):.0f} s in all"]
    return [f"job {job.job_id}: {line}." for line in [*lines, *map(_sentence, found[-SHOWN:])]]


def _named(node: str, cards: tuple[int, ...]) -> str:
    return f"card{'s' if len(cards) > 1 else ''} {', '.join(map(str, cards))} of {node}"


def _sentence(one: Absence) -> str:
    row = one.row
    when = datetime.fromtimestamp(row.left_at).strftime("%Y-%m-%dT%H:%M:%S")
    moved = "as root moved it" if row.why == "moved by root" else "as it moved to another card"
    why = f"for {row.why}" if row.why.startswith("job ") else moved
    where, mem = _named(one.node, one.cards), f"{(row.mem or 0) / GIB:.1f} GiB"
    if not one.left:
        return f"{mem} were to leave {where} at {when}, {why}: {_stayed(row)}"
    took = [
        f"{name} {seconds:.1f} s"
        for name, seconds in (("leaving", row.leave_s), ("returning", row.return_s))
        if seconds is not None
    ]
    more = f" ({', '.join(took)})" if took else ""
    return f"{mem} left {where} at {when}, {why}: {_outcome(one)}{more}"


def _stayed(row: ReclaimReport) -> str:
    """What became of memory that did not leave."""
    if row.back_at is None:
        return "it is on its way"
    if row.result == "ended":
        return "its processes ended before that"
    return "it stayed" if row.result == "undone" else f"it stayed ({row.result})"


def _outcome(one: Absence) -> str:
    """What became of memory that left."""
    if one.seconds is None:
        return "it is away"
    after, result = f"after {one.seconds:.1f} s", one.row.result
    if result == "ended":
        return f"its processes ended {after}"
    if result == "returned":
        return f"it was back{f' on {_named(one.node, one.back)}' * (one.back != one.cards)} {after}"
    if result == "moved":
        return f"it was to return to another card {after}"
    return f"it did not return ({result})"
