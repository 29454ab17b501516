"""`qgpu report`: what was granted (Slurm's accounting), what was used (the nodes' ledgers)."""

from __future__ import annotations

import gc
import re
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import click

from cli.jobs import extensions
from cli.output import aligned, fail, form_of, say, show, user_name
from cli.report import cards as report_cards
from cli.report import groups as report_groups
from cli.report import ledgers
from cli.report.advice import advice
from cli.report.ledgers import Found, Place, Question
from cli.report.model import JobReport, build
from cli.report.text import lines
from gres.config.site import ConfigError, load_config
from gres.grant.store import RUN_BASE
from gres.paths import PATHS
from gres.units import UnitError, parse_duration
from slurm_plugin.accounting import sacct
from slurm_plugin.accounting import source as accounting
from slurm_plugin.records import SlurmError

DEFAULT_CONFIG = PATHS.config_file
DEFAULT_SINCE = "1d"
LEFT = 5


@dataclass(frozen=True)
class Asked:
    """The command line."""

    job_ids: tuple[str, ...] = ()
    users: tuple[str, ...] = ()
    accounts: tuple[str, ...] = ()
    qos: tuple[str, ...] = ()
    since: str | None = None
    until: str | None = None
    by: str | None = None
    form: str = "table"
    html: str | None = None

    @property
    def windowed(self) -> bool:
        """Whether it asks for groups in a window rather than for jobs by number."""
        return bool(self.users or self.accounts or self.qos or self.since or self.until or self.by)


def moment(text: str, now: float) -> int:
    """Seconds of CLOCK_REALTIME of `2026-11-21`, `2026-11-21T14:00`, `7d` ago, or `now`. Raises
    ValueError. Now is the end of this second: a job that began in it is in the window.
    """
    if text == "now":
        return int(now) + 1
    try:
        return int(now - parse_duration(text).seconds)
    except UnitError:
        pass
    try:
        return int(datetime.fromisoformat(text).timestamp())
    except ValueError:
        raise ValueError(
            f"'{text}' is not a time; write for example 2026-11-21, 2026-11-21T14:00, or 7d for"
            " seven days ago"
        ) from None


def check(asked: Asked) -> None:
    """Refuse what cannot be meant; nothing of it reaches sacct."""
    if asked.job_ids and asked.windowed:
        fail(
            "report",
            "give job ids, or a window with --user, --account, --qos, --since, --until; not both",
        )
    if not asked.job_ids and not asked.windowed:
        fail("report", "give job ids, or for example --since 7d for totals")
    for text in asked.job_ids:
        if not sacct.is_job_id(text) and not run_id(text):
            fail(
                "report",
                f"'{text}' is not a job id; write for example 12, or 12_3 for a task of an array",
            )
    for word in (*asked.users, *asked.accounts, *asked.qos):
        if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.@+-]{0,63}\$?", word):
            fail("report", f"'{word}' is not a name of a user, account or QOS")


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


def unknown_ids(asked: Sequence[str], jobs: Sequence[sacct.SacctJob]) -> list[str]:
    """The requested ids that sacct did not answer. An array's number stands for all its tasks."""
    known = {job.job_id for job in jobs} | {str(job.raw_id) for job in jobs}
    known |= {job.job_id.partition("_")[0].partition("+")[0] for job in jobs}
    return [text for text in asked if text not in known]


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


def report_jobs(asked: Asked, where: Sequence[Place], given: Path | None = None) -> int:
    """Jobs by number; the exit status."""
    runs = [number for text in asked.job_ids if (number := run_id(text)) is not None]
    slurm = [text for text in asked.job_ids if run_id(text) is None]
    known = accounting.choose().jobs(slurm) if slurm else []
    ids = [*(job.raw_id for job in known), *runs]
    detailed = asked.html is not None or asked.form == "json"
    found = ledgers.read(where, Question(jobs=ids, series=detailed))
    known += without_slurm(runs, found)
    latencies = {row.usage.key: row.latency for row in found.rows}
    away = {row.usage.key: row.reclaims for row in found.rows}
    done, problems = extensions.known(given)
    usages = [row.usage for row in found.rows]
    reports = build(known, usages, time.time_ns(), latencies, done, away)
    notes = found.problems + problems + missing_nodes(reports, where)
    if asked.html is not None:
        from cli.report.html import write_jobs

        write_jobs(Path(asked.html), reports, found.rows, where)
    show_jobs(reports, notes, asked.form)
    unknown = unknown_ids(asked.job_ids, known)
    for text in unknown:
        say("report", f"job {text} is not known to sacct")
    return 1 if unknown or found.problems else 0


def show_jobs(reports: Sequence[JobReport], notes: Sequence[str], form: str) -> None:
    """Print in the asked form; notes go to stderr where the form has no place for them."""
    if form == "json" or reports or form == "parsable":
        body = {
            "jobs": [job.as_json() | {"advice": advice(job)} for job in reports],
            "notes": list(notes),
        }
        show(body, lines(reports), form, LEFT)
    if form == "table":
        for line in [line for job in reports for line in advice(job)]:
            click.echo(f"* {line}")
    if form != "json":
        for note in notes:
            say("report", note)


def report_window(asked: Asked, where: Sequence[Place]) -> int:
    """Totals of a window; the exit status."""
    gc.disable()  # nothing of what is read is garbage before the end
    now = time.time()
    try:
        since, until = moment(asked.since or DEFAULT_SINCE, now), moment(asked.until or "now", now)
    except ValueError as error:
        fail("report", str(error))
    if since >= until:
        fail("report", "--since is not before --until")
    window = sacct.Window(since, until, asked.users, asked.accounts, asked.qos)
    jobs = accounting.choose().between(window)
    question = Question(
        since_ns=since * 10**9, until_ns=until * 10**9, series=asked.html is not None
    )
    found = ledgers.read(where, question)
    by = asked.by or "user"
    grouped, total = report_groups.groups(
        jobs, found.rows, by, question.since_ns, question.until_ns
    )
    cards = report_cards.card_uses(found.rows, question.since_ns, question.until_ns)
    if asked.html is not None:
        from cli.report.html import write_window

        write_window(Path(asked.html), (grouped, total), cards, found.rows, where, (since, until))
    body = report_groups.body(grouped, total, by, {"since": since, "until": until}) | {
        "cards": [card.as_json() for card in cards],
        "notes": found.problems,
    }
    table = [list(report_groups.HEADER), *report_groups.rows_of(grouped, total)]
    show(body, table, asked.form, left=1)
    if asked.form == "table" and cards:
        click.echo("\n" + "\n".join(aligned(report_cards.lines(cards), 1)))
        for line in report_cards.advice(cards):
            click.echo(f"* {line}")
    if asked.form != "json":
        for note in found.problems:
            say("report", note)
    return 1 if found.problems else 0


@click.command()
@click.argument("job_ids", metavar="[JOBID]...", nargs=-1)
@click.option("--user", "-u", "users", multiple=True, help="Totals of this user's jobs.")
@click.option("--account", "-A", "accounts", multiple=True, help="Totals of this account's jobs.")
@click.option("--qos", "-q", multiple=True, help="Totals of the jobs of this QOS.")
@click.option("--since", "-S", help="2026-11-21T14:00, or 7d ago. Default with the others: 1d.")
@click.option("--until", "-E", help="As --since. Default: now.")
@click.option(
    "--by", type=click.Choice(sorted(report_groups.KEYS)), help="What to group by. Default: user."
)
@click.option(
    "--config", envvar="QGPU_CONFIG", default=DEFAULT_CONFIG, show_default=True, help="qgpu.yaml."
)
@click.option(
    "--ledger", "ledger_files", multiple=True, help="Read this ledger, not the configured ones."
)
@click.option("--html", metavar="FILE", help="Also write a page with plots.")
@click.option("--json", "as_json", is_flag=True, help="JSON; null where nothing was measured.")
@click.option(
    "--parsable", "as_parsable", is_flag=True, help="One line per card, fields separated by |."
)
def report(
    job_ids: tuple[str, ...],
    users: tuple[str, ...],
    accounts: tuple[str, ...],
    qos: tuple[str, ...],
    since: str | None,
    until: str | None,
    by: str | None,
    config: str,
    ledger_files: tuple[str, ...],
    html: str | None,
    as_json: bool,
    as_parsable: bool,
) -> None:
    """Show what jobs were granted and what they used.

    A job may be 12, an array task 12_3, or an array's number for all its tasks. Without jobs:
    totals of a window, by user, account, QOS or class.
    """
    form = form_of(as_json, as_parsable)
    asked = Asked(job_ids, users, accounts, qos, since, until, by, form, html)
    check(asked)
    try:
        loaded = None if ledger_files else load_config(config)
        where = ledgers.places(loaded) if loaded else [Place(path) for path in ledger_files]
        given = extensions.place(loaded) if loaded else None
        status = report_jobs(asked, where, given) if job_ids else report_window(asked, where)
    except (ConfigError, SlurmError, OSError) as error:
        fail("report", str(error))
    sys.exit(status)
