"""Totals per user, account, QOS or class: what Slurm booked, what the ledgers measured. Pure.

Jobs, elapsed time and shares come from sacct alone, so they equal sacct and sreport to the second.
None means not measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TypeVar

from cli.columns import Column
from cli.report.ledgers import Row
from cli.report.model import booked_class, granted_cards, whole_cards
from enforcer.ledger.schema import Point, Usage
from slurm_plugin.accounting.sacct import SacctJob

KEYS: dict[str, Callable[[SacctJob], str]] = {
    "user": lambda job: job.user,
    "account": lambda job: job.account,
    "qos": lambda job: job.qos,
    "class": lambda job: booked_class(job.tres) or ("whole" if whole_cards(job.tres) else "none"),
}
COLUMNS = (
    Column("GROUP", left=True),
    Column("JOBS", 1),
    Column("MEASURED", 6),
    Column("GRANTED_H", 1),
    Column("USED_H", 1),
    Column("EFF%", 2),
    Column("HELD_H", 8),
    Column("HARVEST_H", 4),
    Column("SUSPENDED_H", 3),
    Column("IDLE_H", 7),
    Column("DENIED", 5),
    Column("PREEMPTED", 9),
)

SUMS = ("used_s", "held_s", "harvest_s", "suspended_s", "idle_s", "denied", "preempted")
Number = TypeVar("Number", int, float)


@dataclass
class Group:
    """One group. Hours are GPU-hours: 50 % of a card for two hours is one.

    `granted` is of all jobs, `granted_measured` of those with a ledger's row; efficiency compares
    with these.
    """

    name: str
    jobs: int = 0
    measured: int = 0
    granted_s: float = 0.0
    granted_measured_s: float = 0.0
    used_s: float | None = None
    held_s: float | None = None
    harvest_s: float | None = None
    suspended_s: float | None = None
    idle_s: float | None = None  # of suspended_s, without work on the card
    denied: int | None = None
    preempted: int | None = None

    @property
    def efficiency(self) -> float | None:
        """Use as percent of what was granted; above 100 where a job also
        got idle time of others.
        """
        if self.used_s is None or self.granted_measured_s <= 0:
            return None
        return 100 * self.used_s / self.granted_measured_s

    def as_json(self) -> dict[str, object]:
        """Plain values for JSON."""
        return asdict(self) | {"efficiency": self.efficiency}


def part_of(usage: Usage, points: Sequence[Point] | None, since_ns: int, until_ns: int) -> float:
    """How much of a row's work lies in the window: by its series where
    there is one, else by time.
    """
    begin, end = (
        max(usage.granted_at, since_ns),
        until_ns if usage.ended_at is None else min(usage.ended_at, until_ns),
    )
    last = usage.ended_at or max(usage.sampled_at or 0, usage.granted_at)
    if begin <= usage.granted_at and end >= last:
        return 1.0
    busy = sum(point.busy_ns for point in points or ())
    if busy > 0 and points:
        inside = sum(p.busy_ns * _overlap(p, since_ns, until_ns) for p in points)
        return inside / busy
    wall = last - usage.granted_at
    return min(1.0, max(0.0, (min(end, last) - begin) / wall)) if wall > 0 else 0.0


def _overlap(point: Point, since_ns: int, until_ns: int) -> float:
    begin, end = point.at * 10**9, (point.at + point.step) * 10**9
    return max(0, min(end, until_ns) - max(begin, since_ns)) / (end - begin)


def groups(
    jobs: Iterable[SacctJob], rows: Iterable[Row], by: str, since_ns: int, until_ns: int
) -> tuple[list[Group], Group]:
    """Groups by use, and their total. Jobs that never held a card are left out."""
    of_job: dict[int, list[Row]] = {}
    for row in rows:
        of_job.setdefault(row.usage.job_id, []).append(row)
    found: dict[str, Group] = {}
    for job in jobs:
        cards, mine = granted_cards(job.tres), of_job.get(job.raw_id, [])
        if cards == 0 and not mine:
            continue
        granted = (job.elapsed_s or 0) * cards  # GPU-seconds that Slurm booked
        name = KEYS[by](job)
        _count(found.setdefault(name, Group(name)), granted, mine, since_ns, until_ns)
    total = Group("TOTAL")
    for group in found.values():
        _merge(total, group)
    return sorted(found.values(), key=lambda g: (-(g.used_s or 0), g.name)), total


def _count(group: Group, granted: float, rows: Sequence[Row], since: int, until: int) -> None:
    """Add one job to a group."""
    group.jobs += 1
    group.granted_s += granted
    measured = [row for row in rows if row.usage.busy_ns is not None]
    if not measured:
        return
    group.measured += 1
    group.granted_measured_s += granted
    for row in measured:
        usage = row.usage
        part = part_of(usage, row.points, since, until)
        group.used_s = _plus(group.used_s, _part(usage.busy_ns, part))
        if usage.job_class == "online":
            group.held_s = _plus(group.held_s, _part(usage.held_ns, part))
        group.harvest_s = _plus(group.harvest_s, _part(usage.harvest_ns, part))
        group.suspended_s = _plus(group.suspended_s, _part(usage.closed_preempted_ns, part))
        group.idle_s = _plus(group.idle_s, _part(usage.closed_idle_ns, part))
        group.denied = _plus(group.denied, usage.denied)
        group.preempted = _plus(group.preempted, usage.preemptions)


def _merge(total: Group, group: Group) -> None:
    for name in ("jobs", "measured", "granted_s", "granted_measured_s", *SUMS):
        setattr(total, name, _plus(getattr(total, name), getattr(group, name)))


def _part(nanoseconds: int | None, part: float) -> float | None:
    return None if nanoseconds is None else nanoseconds * part / 1e9


def _plus(a: Number | None, b: Number | None) -> Number | None:
    """Sum of what was measured."""
    return b if a is None else a if b is None else a + b


def lines(found: Sequence[Group], total: Group) -> list[list[str]]:
    """Header, groups, and the total last."""
    return [[column.name for column in COLUMNS], *map(_line, (*found, total))]


def _line(group: Group) -> list[str]:
    def hours(seconds: float | None) -> str:
        return "-" if seconds is None else f"{seconds / 3600:.2f}"

    def count(value: int | None) -> str:
        return "-" if value is None else str(value)

    efficiency = "-" if group.efficiency is None else f"{group.efficiency:.1f}"
    return [
        group.name or "-",
        str(group.jobs),
        str(group.measured),
        hours(group.granted_s),
        hours(group.used_s),
        efficiency,
        hours(group.held_s),
        hours(group.harvest_s),
        hours(group.suspended_s),
        hours(group.idle_s),
        count(group.denied),
        count(group.preempted),
    ]


def body(
    found: Sequence[Group], total: Group, by: str, window: Mapping[str, int]
) -> dict[str, object]:
    """The groups as JSON."""
    return {"by": by, **window, "groups": [g.as_json() for g in found], "total": total.as_json()}
