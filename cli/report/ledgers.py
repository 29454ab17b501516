"""Where the report's rows come from: ledgers on this machine, what was collected, and qgpud for a
user.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from enforcer.ledger.read import (
    FOR_TOTALS,
    latency_of,
    reading,
    series_of,
    usage_between,
    usage_of_jobs,
)
from enforcer.ledger.reclaims import Reclaim, reclaims_of
from enforcer.ledger.schema import FILE_NAME, LedgerError, Point, Usage
from enforcer.reporting.viewclient import SOCK_NAME, ViewError, ask, owner_of
from gres.config.site import Config

# Jobs of one question to a qgpud, which takes 64 KiB, and sends the series of 50 grants at most.
JOBS_AT_ONCE, SERIES_AT_ONCE = 2000, 25


class Row(NamedTuple):
    """One row of a ledger; `points` and `latency` are None where they were not asked for."""

    usage: Usage
    points: tuple[Point, ...] | None = None
    latency: dict[int, int] | None = None
    reclaims: tuple[Reclaim, ...] = ()


@dataclass(frozen=True)
class Place:
    """One ledger, and the qgpud that answers if it is unreadable."""

    path: str
    nodes: tuple[str, ...] = ()
    view: str | None = None

    @property
    def readable(self) -> bool:
        """Whether the file is there for us."""
        return os.access(self.path, os.R_OK)

    @property
    def answered(self) -> bool:
        """Whether a qgpud of root answers instead."""
        return self.view is not None and owner_of(Path(self.view)) == 0


@dataclass
class Question:
    """Jobs by number, or a window in nanoseconds of CLOCK_REALTIME. `series`: with what they did
    over time.
    """

    jobs: Sequence[int] | None = None
    since_ns: int = 0
    until_ns: int = 0
    series: bool = False


@dataclass
class Found:
    """Rows of all places, each grant once, and sentences about what could not be read."""

    rows: list[Row] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def places(config: Config) -> list[Place]:
    """The configured ledgers, nodes that share one together; what was collected comes last."""
    by_path: dict[str, list[str]] = {}
    for name in config.node_names():
        by_path.setdefault(str(Path(config.node(name).state_dir) / FILE_NAME), []).append(name)
    found = [
        Place(path, tuple(names), str(Path(config.node(names[0]).run_dir) / SOCK_NAME))
        for path, names in by_path.items()
    ]
    if config.reports.collected is not None:
        found.append(Place(config.reports.collected))
    return found


def read(where: Iterable[Place], question: Question) -> Found:
    """Ask every place."""
    found = Found()
    best: dict[tuple[int, str, int], Row] = {}
    for place in where:
        try:
            for row in _rows(place, question):
                known = best.get(row.usage.key)
                if known is None or _newer(row.usage, known.usage):
                    best[row.usage.key] = row
        except (LedgerError, ViewError) as error:
            found.problems.append(str(error))
    found.rows = sorted(best.values(), key=lambda row: (row.usage.granted_at, row.usage.card_index))
    return found


def _newer(one: Usage, other: Usage) -> bool:
    """The newer of two copies of a grant."""
    return (one.ended_at is not None, one.sampled_at or 0) > (
        other.ended_at is not None,
        other.sampled_at or 0,
    )


def _rows(place: Place, question: Question) -> list[Row]:
    if place.readable:
        return _from_file(place.path, question)
    if place.answered and place.view is not None:
        return _from_view(Path(place.view), question)
    if Path(place.path).exists():
        raise LedgerError(
            f"the ledger {place.path} is for root alone, and no qgpud answers for it here"
        )
    return []


def _from_file(path: str, question: Question) -> list[Row]:
    with reading(path) as database:
        if question.jobs is not None:
            pairs = list(usage_of_jobs(database, question.jobs))
        else:
            only = None if question.series else FOR_TOTALS
            pairs = list(usage_between(database, question.since_ns, question.until_ns, only=only))
        rows = []
        for number, usage in pairs:
            away = tuple(reclaims_of(database, usage.key)) if question.jobs is not None else ()
            if question.series or (question.jobs is None and _cut(usage, question)):
                points = tuple(series_of(database, number))
                rows.append(Row(usage, points, latency_of(database, number), away))
            else:
                rows.append(Row(usage, reclaims=away))
        return rows


def _cut(usage: Usage, question: Question) -> bool:
    """Whether the grant reaches over an edge of the window, so that only a part of it counts."""
    ended = usage.ended_at is not None and usage.ended_at <= question.until_ns
    return usage.granted_at < question.since_ns or not ended


def _from_view(path: Path, question: Question) -> list[Row]:
    asked: dict[str, Any] = {"ask": "usage", "series": question.series}
    if question.jobs is None:
        return _ask(path, asked | {"since": question.since_ns, "until": question.until_ns})
    size, jobs = SERIES_AT_ONCE if question.series else JOBS_AT_ONCE, list(question.jobs)
    parts = [jobs[start : start + size] for start in range(0, len(jobs), size)]
    return [row for part in parts for row in _ask(path, asked | {"jobs": part})]


def _ask(path: Path, asked: dict[str, Any]) -> list[Row]:
    answer = ask(path, asked)
    if answer.get("cut"):
        raise ViewError(f"qgpud at {path} has too many rows for one answer: ask for a shorter time")
    try:
        series, latency, away = answer["series"], answer["latency"], answer.get("reclaims", {})
        return [
            Row(
                Usage(*values),
                tuple(Point(*point) for point in series[str(n)]) if str(n) in series else None,
                {int(k): v for k, v in latency[str(n)].items()} if latency.get(str(n)) else None,
                tuple(Reclaim(*row) for row in away.get(str(n), ())),
            )
            for n, values in enumerate(answer["usage"])
        ]
    except (KeyError, TypeError, AttributeError):
        raise ViewError(f"qgpud at {path} answered in a form of another release") from None
