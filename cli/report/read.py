"""What the report knows of jobs: Slurm's accounting, its steps, and the ledgers, put together."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from cli.jobs import extensions
from cli.output import user_name
from cli.report import cards as report_cards
from cli.report import groups as report_groups
from cli.report import ledgers
from cli.report.advice import advice
from cli.report.ledgers import Found, Place, Question
from cli.report.model import JobReport, build
from gres.config.site import Config
from gres.grant.store import RUN_BASE
from slurm_plugin.accounting import sacct
from slurm_plugin.accounting import source as accounting


@dataclass(frozen=True)
class Read:
    """Jobs with all that is known of them."""

    jobs: list[sacct.SacctJob]
    reports: list[JobReport]
    found: Found
    notes: list[str]

    def with_cards(self) -> Read:
        """Those that had a card, or wait for one."""
        kept = [report for report in self.reports if report.cards or report.grants]
        ids = {report.raw_id for report in kept}
        return replace(self, jobs=[j for j in self.jobs if j.raw_id in ids], reports=kept)

    @property
    def body(self) -> list[dict[str, object]]:
        """The jobs as JSON."""
        return [job.as_json() | {"advice": advice(job)} for job in self.reports]


@dataclass(frozen=True)
class Totals:
    """Groups of a window, and the cards' use."""

    groups: list[report_groups.Group]
    total: report_groups.Group
    cards: list[report_cards.CardUse]
    problems: list[str]


def run_id(text: str) -> int | None:
    """The number of a `qgpu run`, which Slurm does not know; None for anything else."""
    return int(text) if re.fullmatch(r"[0-9]{13,16}", text) and int(text) >= RUN_BASE else None


def missing_nodes(jobs: Sequence[JobReport], where: Sequence[Place]) -> list[str]:
    """A sentence for each node of the jobs whose ledger is not on this machine."""
    absent = {
        name: place.path
        for place in where
        for name in place.nodes
        if not Path(place.path).exists() and not place.answered
    }
    wanted = {
        node for job in jobs for node in job.nodes if not any(g.node == node for g in job.grants)
    }
    return [
        f"no ledger of {name} here ({absent[name]}): what its cards measured is not in this report"
        for name in sorted(wanted & set(absent))
    ]


def without_slurm(ids: Sequence[int], found: Found) -> list[sacct.SacctJob]:
    """`qgpu run` as jobs: the ledger is all there is."""
    jobs = []
    for job_id in ids:
        rows = [row.usage for row in found.rows if row.usage.job_id == job_id]
        if rows:
            ends = [row.ended_at for row in rows]
            running = any(end is None for end in ends)
            last = time.time_ns() if running else max(end for end in ends if end is not None)
            jobs.append(
                sacct.SacctJob(
                    job_id=str(job_id),
                    raw_id=job_id,
                    user=user_name(rows[0].uid),
                    state="RUNNING" if running else "COMPLETED",
                    elapsed_s=(last - min(row.granted_at for row in rows)) // 10**9,
                    nodes=tuple(dict.fromkeys(row.node for row in rows)),
                    qos="",
                    partition="",
                    tres={},
                    name="qgpu run",
                )
            )
    return jobs


def read_jobs(
    jobs: Sequence[sacct.SacctJob],
    window: sacct.Window | None,
    runs: Sequence[int],
    where: Sequence[Place],
    given: Path | None,
    config: Config | None = None,
    detailed: bool = False,
) -> Read:
    """What the ledgers and Slurm's steps know of these jobs, which are all of the window where
    there is one. `runs` are those of `qgpu run`.
    """
    ids = [job.raw_id for job in jobs]
    found = ledgers.read(where, Question(jobs=[*ids, *runs], series=detailed))
    known = [*jobs, *without_slurm(runs, found)]
    latencies = {row.usage.key: row.latency for row in found.rows}
    away = {row.usage.key: row.reclaims for row in found.rows}
    done, problems = extensions.known(given)
    usages = [row.usage for row in found.rows]
    steps = sacct.details(window or list(map(str, ids))) if ids else {}
    reports = build(known, usages, time.time_ns(), latencies, done, away, steps, config)
    return Read(known, reports, found, found.problems + problems + missing_nodes(reports, where))


def read_totals(by: str | None, window: sacct.Window, where: Sequence[Place]) -> Totals:
    """Groups and the cards' use; what reaches over an edge of the window counts with the part
    inside. Without `by` Slurm is not asked, and the cards' use is all.
    """
    jobs = accounting.choose().between(window) if by else []
    bounds = window.since * 10**9, window.until * 10**9
    found = ledgers.read(where, Question(since_ns=bounds[0], until_ns=bounds[1]))
    grouped, total = report_groups.groups(jobs, found.rows, by or "user", *bounds)
    cards = report_cards.card_uses(found.rows, *bounds)
    return Totals(grouped, total, cards, found.problems)
