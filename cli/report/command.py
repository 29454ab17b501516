"""`qgpu report`: what was granted (Slurm's accounting), what was used (the nodes' ledgers)."""

from __future__ import annotations

import gc
import os
import re
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import click

from cli.jobs import extensions
from cli.output import aligned, fail, form_of, room, say, show, show_columns, user_name
from cli.report import cards as report_cards
from cli.report import groups as report_groups
from cli.report import ids as report_ids
from cli.report import ledgers, text
from cli.report.advice import SHOWN, advice, advised_line, has_request
from cli.report.ledgers import Place
from cli.report.read import Read, Totals, read_jobs, read_totals, run_id
from gres.config.site import Config, ConfigError, load_config
from gres.paths import PATHS
from gres.units import UnitError, parse_duration
from slurm_plugin.accounting import sacct
from slurm_plugin.accounting import source as accounting
from slurm_plugin.records import SlurmError

DEFAULT_CONFIG = PATHS.config_file
DEFAULT_SINCE = "1d"
DETAILED_JOBS = 200  # jobs whose histograms of latency JSON has: each costs a question to a qgpud
SHEET_CARDS = 3  # cards of one job that fit side by side into 80 places
FOREVER_NS = 1 << 62


@dataclass(frozen=True)
class Asked:
    """The command line. `jobs`: each word with the jobs that it names."""

    jobs: dict[str, tuple[str, ...]]
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
        """Whether it asks for a window rather than for jobs by number."""
        return bool(self.users or self.accounts or self.qos or self.since or self.until or self.by)

    @property
    def whose(self) -> tuple[str, ...]:
        """Users whose jobs are listed: as sacct does it, one's own, and of root's those of all."""
        filtered = self.users or self.accounts or self.qos or self.by
        return self.users if filtered or os.geteuid() == 0 else (user_name(os.geteuid()),)


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
    if asked.jobs and asked.windowed:
        fail(
            "report",
            "give job ids, or a window with --user, --account, --qos, --since, --until; not both",
        )
    for word in (*asked.users, *asked.accounts, *asked.qos):
        if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.@+-]{0,63}\$?", word):
            fail("report", f"'{word}' is not a name of a user, account or QOS")


def report_jobs(
    asked: Asked, where: Sequence[Place], given: Path | None = None, config: Config | None = None
) -> int:
    """Jobs by number; the exit status."""
    ids = list(dict.fromkeys(job for jobs in asked.jobs.values() for job in jobs))
    runs = [number for text in ids if (number := run_id(text)) is not None]
    slurm = [text for text in ids if run_id(text) is None]
    known = accounting.choose().jobs(slurm) if slurm else []
    detailed = asked.form == "json" and len(ids) <= DETAILED_JOBS
    read = read_jobs(known, None, runs, where, given, config, detailed)
    if asked.html is not None:
        from cli.report.html import write_jobs

        write_jobs(Path(asked.html), read.reports, read.found.rows, where)
    none, some = report_ids.unknown(
        asked.jobs, [name for job in read.jobs for name in (job.job_id, str(job.raw_id))]
    )
    if stepped := report_ids.steps(asked.jobs):
        some.append(f"use is known by job: {', '.join(stepped[:SHOWN])} shows the whole job")
    show_jobs(read, [*read.notes, *some], asked.form)
    for word in none[:SHOWN]:
        say("report", f"job {word} is not known to sacct")
    if len(none) > SHOWN:
        say("report", f"and {len(none) - SHOWN} more are not known to sacct")
    return 1 if none or read.found.problems else 0


def show_jobs(read: Read, notes: Sequence[str], form: str) -> None:
    """Print in the asked form; notes go to stderr where the form has no place for them."""
    reports = read.reports
    if form == "table":
        small = len(reports) == 1 and len(reports[0].grants) <= SHEET_CARDS
        shown = text.sheet(reports[0]) if small else text.fitted(reports, True, room())
        for line in [*(shown if reports else []), *(f"* {line}" for line in advice(*reports))]:
            click.echo(line)
    else:
        show({"jobs": read.body, "notes": list(notes)}, text.lines(reports), form, 0)
    if form != "json":
        for note in notes:
            say("report", note)


def window_of(asked: Asked) -> tuple[int, int]:
    """Begin and end in seconds; ends with a sentence where there is no such window."""
    now = time.time()
    try:
        since, until = moment(asked.since or DEFAULT_SINCE, now), moment(asked.until or "now", now)
    except ValueError as error:
        fail("report", str(error))
    if since >= until:
        fail("report", "--since is not before --until")
    return since, until


def report_window(
    asked: Asked, where: Sequence[Place], given: Path | None = None, config: Config | None = None
) -> int:
    """A list of the window's jobs, or its totals by group; the exit status."""
    gc.disable()  # nothing of what is read is garbage before the end
    bounds = window_of(asked)
    window = sacct.Window(*bounds, asked.whose, asked.accounts, asked.qos)
    listed = totals = None
    if asked.by is None or asked.html is not None:
        whole = window._replace(listed=True)
        jobs = accounting.choose().between(whole)
        listed = read_jobs(jobs, whole, (), where, given, config).with_cards()
    if asked.by is not None or not asked.whose:
        by = asked.by or ("user" if asked.html is not None else None)
        totals = read_totals(by, window, where)
    if asked.html is not None and listed is not None:
        from cli.report.html import write_window

        grouped = report_groups.lines(totals.groups, totals.total) if totals else []
        cards = totals.cards if totals else []
        page, rows = Path(asked.html), listed.found.rows
        write_window(page, listed.reports, rows, grouped, cards, where, bounds)
    times = {"since": bounds[0], "until": bounds[1]}
    if asked.by is None and listed is not None:
        notes = show_list(listed, totals, asked.form, times)
    elif totals is not None and asked.by is not None:
        notes = show_totals(totals, asked.by, asked.form, times)
    if asked.form != "json":
        for note in notes:
            say("report", note)
    problems = listed.found.problems if listed is not None else notes
    return 1 if problems else 0


def show_totals(totals: Totals, by: str, form: str, times: Mapping[str, int]) -> list[str]:
    """Print the groups; notes that are left to say."""
    _, *rows = report_groups.lines(totals.groups, totals.total)
    body = report_groups.body(totals.groups, totals.total, by, times)
    cards = [card.as_json() for card in totals.cards]
    body |= {"cards": cards, "notes": totals.problems}
    show_columns(body, report_groups.COLUMNS, rows, form)
    if form == "table":
        show_cards(totals.cards)
    return totals.problems


def show_cards(cards: Sequence[report_cards.CardUse]) -> None:
    """The cards' use below a table."""
    if cards:
        click.echo("\n" + "\n".join(aligned(report_cards.lines(cards), 1)))
    for line in report_cards.advice(cards):
        click.echo(f"* {line}")


def show_list(read: Read, totals: Totals | None, form: str, times: Mapping[str, int]) -> list[str]:
    """Print one line per job; notes that are left to say."""
    cards = totals.cards if totals is not None else []
    _, total = report_groups.groups(read.jobs, read.found.rows, "user", 0, FOREVER_NS)
    if form != "table":
        more = {"cards": [card.as_json() for card in cards]} if totals is not None else {}
        body = {**times, "jobs": read.body, "total": total.as_json(), **more, "notes": read.notes}
        show(body, text.lines(read.reports, by_card=False), form, 0)
        return read.notes
    if not read.reports:
        since = time.strftime("%Y-%m-%d %H:%M", time.localtime(times["since"]))
        return [f"no job had a card since {since} (--since 30d looks further back)", *read.notes]
    click.echo("\n".join(text.fitted(read.reports, False, room())))
    click.echo(total_line(total, len(read.reports)))
    if advised := [job.job_id for job in read.reports if has_request(job)]:
        click.echo(advised_line(advised, room()))
    show_cards(cards)
    return read.notes


def total_line(total: report_groups.Group, listed: int) -> str:
    """`3 jobs: 1.50 GPU-hours granted, 0.75 used (50.0 % where measured)`; `3 of 4 jobs had cards`
    where some wait, or never got one.
    """
    used = "nothing measured"
    if total.used_s is not None:
        used = f"{total.used_s / 3600:.2f} used"
    if total.efficiency is not None:
        used += f" ({total.efficiency:.1f} % where measured)"
    jobs = f"{listed} job{'s' * (listed != 1)}"
    jobs = jobs if total.jobs == listed else f"{total.jobs} of {jobs} had cards"
    return f"{jobs}: {total.granted_s / 3600:.2f} GPU-hours granted, {used}"


@click.command()
@click.argument("job_ids", metavar="[JOBID]...", nargs=-1)
@click.option("--user", "-u", "users", multiple=True, help="Jobs of this user.")
@click.option("--account", "-A", "accounts", multiple=True, help="Jobs of this account.")
@click.option("--qos", "-q", multiple=True, help="Jobs of this QOS.")
@click.option("--since", "-S", help="2026-11-21T14:00, or 7d ago. Default: 1d.")
@click.option("--until", "-E", help="As --since. Default: now.")
@click.option("--by", type=click.Choice(sorted(report_groups.KEYS)), help="Totals of groups.")
@click.option(
    "--config", envvar="QGPU_CONFIG", default=DEFAULT_CONFIG, show_default=True, help="qgpu.yaml."
)
@click.option(
    "--ledger", "ledger_files", multiple=True, help="Read this ledger, not the configured ones."
)
@click.option("--html", metavar="FILE", help="Also write a page with plots.")
@click.option("--json", "as_json", is_flag=True, help="JSON; null where nothing was measured.")
@click.option("--csv", "as_csv", is_flag=True, help="CSV; empty where nothing was measured.")
@click.option("--parsable", "as_parsable", is_flag=True, help="Fields separated by |.")
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
    as_csv: bool,
    as_parsable: bool,
) -> None:
    """Show what jobs were granted and what they used.

    Without jobs: a list of your jobs of the last day, of root everyone's; --by shows totals of
    groups instead. A job may be 12, 12,13, 12-40, an array task 12_3 or 12_[1-4], or an array's
    number for all its tasks.
    """
    form = form_of(as_json, as_parsable, as_csv)
    try:
        jobs = report_ids.parse(job_ids)
    except ValueError as error:
        fail("report", str(error))
    asked = Asked(jobs, users, accounts, qos, since, until, by, form, html)
    check(asked)
    try:
        loaded = None if ledger_files else load_config(config)
        where = ledgers.places(loaded) if loaded else [Place(path) for path in ledger_files]
        given = extensions.place(loaded) if loaded else None
        status = (report_jobs if job_ids else report_window)(asked, where, given, loaded)
    except (ConfigError, SlurmError, OSError) as error:
        fail("report", str(error))
    sys.exit(status)
