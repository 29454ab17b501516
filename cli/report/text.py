"""The report as text: tables for people and lines for scripts. Not measured is `-`, measured zero
is 0.

A row is a job with the grants that it speaks of: one for each card, or all in the list of jobs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from cli.columns import Column, table
from cli.report.model import GIB, GrantReport, JobReport

Grants = Sequence[GrantReport]
Cell = Callable[[JobReport, Grants], str]


def duration(seconds: float | None) -> str:
    """[D-]HH:MM:SS as Slurm writes it, or a dash."""
    if seconds is None:
        return "-"
    whole = int(seconds)
    clock = f"{whole // 3600 % 24:02d}:{whole // 60 % 60:02d}:{whole % 60:02d}"
    return f"{whole // 86400}-{clock}" if whole >= 86400 else clock


def number(value: float | None, digits: int = 0) -> str:
    """A number with `digits` decimals, or a dash."""
    return "-" if value is None else f"{value:.{digits}f}"


def gib(value: int | None, digits: int = 1) -> str:
    """GiB, or a dash."""
    return number(None if value is None else value / GIB, digits)


def _sum(grants: Grants, name: str) -> float | None:
    """Sum of what was measured."""
    values = [value for grant in grants if (value := getattr(grant, name)) is not None]
    return float(sum(values)) if values else None


def _reached(grants: Grants) -> float | None:
    """Busy time as percent of the time granted."""
    measured = [grant for grant in grants if grant.reached is not None]
    granted = sum(grant.granted_s for grant in measured)
    return 100 * (_sum(measured, "busy_s") or 0) / granted if granted else None


def _peak(grants: Grants) -> int | None:
    """The largest of the shim's peaks; the driver's where there is no shim."""
    peaks = [g.nvml_mem_peak if g.mem_peak is None else g.mem_peak for g in grants]
    return max((peak for peak in peaks if peak is not None), default=None)


def _class(job: JobReport, grants: Grants) -> str:
    if grants:
        return "whole" if grants[-1].state == "whole" else job.job_class or "-"
    return job.job_class or ("whole" if job.cards else "-")


def _cards(grants: Grants) -> str:
    """The cards; of more than two the first, and how many more."""
    names = list(dict.fromkeys(f"{grant.node}:{grant.card}" for grant in grants))
    more = f" +{len(names) - 1}" if len(names) > 2 else ""
    return (names[0] + more if more else ",".join(names)) or "-"


COLUMNS: tuple[tuple[Column, Cell], ...] = (
    (Column("JOBID", left=True), lambda job, _: job.job_id),
    (Column("NAME", 1, left=True, least=6), lambda job, _: job.name or "-"),
    (Column("USER", 12, left=True), lambda job, _: job.user),
    (Column("STATE", 2, left=True), lambda job, _: job.state.partition(" ")[0]),
    (Column("CLASS", 4, left=True), _class),
    (Column("CARD", 9, left=True), lambda _, grants: _cards(grants)),
    (Column("SHARE%", 3), lambda job, grants: number(grants[-1].share if grants else job.share)),
    (Column("ELAPSED", 4), lambda job, _: duration(job.elapsed_s)),
    (Column("GPU_H", 6), lambda job, _: number(job.gpu_hours, 2)),
    (Column("BUSY_S", 5), lambda _, grants: number(_sum(grants, "busy_s"), 1)),
    (Column("HELD_S", 14), lambda _, grants: number(_sum(grants, "held_s"), 1)),
    (Column("USED%", 3), lambda _, grants: number(_reached(grants), 1)),
    (Column("PEAK_GIB", 4), lambda _, grants: gib(_peak(grants))),
    (Column("CAP_GIB", 4), lambda job, grants: gib(grants[-1].mem_cap if grants else job.mem)),
    (Column("DENIED", 10), lambda _, grants: number(_sum(grants, "denied"))),
    (Column("PREEMPTED", 13), lambda _, grants: number(_sum(grants, "preempted"))),
    (Column("SUSPENDED_S", 11), lambda _, grants: number(_sum(grants, "suspended_s"), 1)),
    (Column("CPUS", 12), lambda job, _: number(job.cpus)),
    (Column("CPU%", 7), lambda job, _: number(job.cpu_percent, 1)),
    (Column("HOST_GIB", 11), lambda job, _: gib(job.host_mem_peak, 2)),
    (Column("HOST%", 8), lambda job, _: number(job.host_mem_percent, 1)),
)


def _columns(reports: Sequence[JobReport]) -> list[Column]:
    """Whose a job is matters where there are several users."""
    several = len({report.user for report in reports}) > 1
    columns = [column for column, _ in COLUMNS]
    return [replace(c, rank=2) if several and c.name == "USER" else c for c in columns]


def rows(reports: Sequence[JobReport], by_card: bool) -> list[list[str]]:
    """One row per job, or per card; one with dashes for a job without a ledger's row."""
    pairs: list[tuple[JobReport, Grants]] = []
    for job in reports:
        apart = by_card and len(job.grants) > 1
        pairs += [(job, (grant,)) for grant in job.grants] if apart else [(job, job.grants)]
    return [[cell(job, grants) for _, cell in COLUMNS] for job, grants in pairs]


def lines(reports: Sequence[JobReport], by_card: bool = True) -> list[list[str]]:
    """Header and rows, all columns."""
    return [[column.name for column, _ in COLUMNS], *rows(reports, by_card)]


def fitted(reports: Sequence[JobReport], by_card: bool, room: int | None) -> list[str]:
    """The table for a terminal of this width."""
    return table(_columns(reports), rows(reports, by_card), room)


def sheet(report: JobReport) -> list[str]:
    """One job with a line for each figure, so that nothing of it needs a wide terminal."""
    header, *cards = lines([report])
    columns = [Column("", left=True), *[Column("", left=True)] * len(cards)]
    return [line for line in table(columns, list(zip(header, *cards, strict=True))) if line]
