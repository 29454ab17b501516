"""The report as text: a table for people and lines for scripts. Not measured is `-`, measured zero
is 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from cli.report.model import GIB, GrantReport, JobReport

Cell = Callable[[JobReport, GrantReport | None], str]


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


def gib(value: int | None) -> str:
    """GiB with one digit, or a dash."""
    return "-" if value is None else f"{value / GIB:.1f}"


def _of(grant: GrantReport | None, name: str) -> float | None:
    value = None if grant is None else getattr(grant, name)
    return None if value is None else float(value)


def _peak(grant: GrantReport | None) -> int | None:
    """The shim's peak; the driver's where there is no shim."""
    if grant is None:
        return None
    return grant.nvml_mem_peak if grant.mem_peak is None else grant.mem_peak


COLUMNS: tuple[tuple[str, Cell], ...] = (
    ("JOBID", lambda job, _: job.job_id),
    ("USER", lambda job, _: job.user),
    ("STATE", lambda job, _: job.state.partition(" ")[0]),
    (
        "CLASS",
        lambda job, grant: "whole" if grant and grant.state == "whole" else job.job_class or "-",
    ),
    ("CARD", lambda _, grant: f"{grant.node}:{grant.card}" if grant else "-"),
    ("SHARE%", lambda job, grant: number(grant.share if grant else job.share)),
    ("ELAPSED", lambda job, _: duration(job.elapsed_s)),
    ("BUSY_S", lambda _, grant: number(_of(grant, "busy_s"), 1)),
    ("HELD_S", lambda _, grant: number(_of(grant, "held_s"), 1)),
    ("REACHED%", lambda _, grant: number(_of(grant, "reached"), 1)),
    ("PEAK_GIB", lambda _, grant: gib(_peak(grant))),
    ("CAP_GIB", lambda job, grant: gib(grant.mem_cap if grant else job.mem)),
    ("DENIED", lambda _, grant: number(_of(grant, "denied"))),
    ("PREEMPTED", lambda _, grant: number(_of(grant, "preempted"))),
    ("SUSPENDED_S", lambda _, grant: number(_of(grant, "suspended_s"), 1)),
)


def rows(reports: Iterable[JobReport]) -> list[list[str]]:
    """One row per card, and one with dashes for a job without a ledger's row."""
    pairs = [(job, grant) for job in reports for grant in (job.grants or (None,))]
    return [[cell(job, grant) for _, cell in COLUMNS] for job, grant in pairs]


def lines(reports: Sequence[JobReport]) -> list[list[str]]:
    """Header and rows."""
    return [[name for name, _ in COLUMNS], *rows(reports)]
