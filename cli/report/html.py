"""The report as one self-contained page: tables, advice, plots as inline SVG; no script, nothing is
loaded.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path

import jinja2
from markupsafe import Markup

from cli.report import cards as report_cards
from cli.report import plots as report_plots
from cli.report import text
from cli.report.advice import advice, some
from cli.report.ledgers import Place, Question, Row, read
from cli.report.model import JobReport
from cli.report.plots import PlotError
from enforcer.ledger.read import card_series, reading
from enforcer.ledger.schema import CardPoint, LedgerError
from gres.printable import printable

MAX_PLOTS = 40  # plots of one page, so that a browser can show it
NAME_LENGTH = 60  # characters of a job's name, of which Slurm takes 64 KiB
FREE = ("NAME", "USER", "CARD", "GROUP")  # columns whose words may wrap
MAX_LISTED = 500  # jobs of one page, likewise


@dataclass(frozen=True)
class Table:
    """One table; `left` columns hold words."""

    title: str
    header: Sequence[str]
    lines: Sequence[Sequence[str]]
    left: int
    note: str = ""


@dataclass(frozen=True)
class Plot:
    """One plot, with the advice on its job."""

    title: str
    svg: Markup
    lines: Sequence[str] = ()


def _shown(value: object) -> object:
    """What the page shows of a value: text is made printable, SVG is ours."""
    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _page(**values: object) -> str:
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, finalize=_shown
    )
    source = files("configs").joinpath("report/report.html.j2").read_text(encoding="utf-8")
    return environment.from_string(source).render(free=FREE, **values)


def cards_between(where: Sequence[Place], since: float, until: float) -> list[CardPoint]:
    """What whole cards did; ledgers that cannot be read add nothing."""
    found: dict[tuple[str, int, int], CardPoint] = {}
    for place in where:
        if place.readable:
            try:
                with reading(place.path) as database:
                    for point in card_series(database, int(since), int(until) + 1):
                        found[point.uuid, point.step, point.at] = point
            except LedgerError:
                continue  # reported when the rows were read
    return sorted(found.values(), key=lambda point: point.at)


def _end(row: Row) -> float:
    """When the grant ended; now while it stands."""
    return time.time() if row.usage.ended_at is None else row.usage.ended_at / 1e9


def _length(row: Row) -> float:
    return _end(row) - row.usage.granted_at / 1e9


def sampled(rows: Sequence[Row], where: Sequence[Place]) -> list[Row]:
    """The longest grants that were sampled, with their series, the longest first."""
    measured = [row for row in rows if row.usage.sampled_at is not None]
    chosen = sorted(measured, key=_length, reverse=True)[:MAX_PLOTS]
    keys = [row.usage.key for row in chosen]
    jobs = list(dict.fromkeys(row.usage.job_id for row in chosen))
    found = {row.usage.key: row for row in read(where, Question(jobs=jobs, series=True)).rows}
    return [found[key] for key in keys if key in found and report_plots.pieces(found[key])]


def _plots(
    reports: Sequence[JobReport], rows: Sequence[Row], where: Sequence[Place], advised: bool
) -> tuple[list[Plot], str]:
    """The cards, then the longest jobs; and a sentence on what has no plot."""
    since = min((row.usage.granted_at / 1e9 for row in rows), default=0.0)
    until = max((_end(row) for row in rows), default=0.0)
    named = {report.raw_id: report for report in reports}
    shown = sampled([row for row in rows if row.usage.job_id in named], where)
    try:
        cards = cards_between(where, since, until)
        svg = Markup(report_plots.timeline(rows, cards, since, until, "t"))
        plots = [Plot("Cards by class", svg)]
        for number, row in enumerate(shown):
            report = named[row.usage.job_id]
            title = f"Job {report.job_id} {report.name} on {row.usage.node}:{row.usage.card_index}"
            svg = Markup(report_plots.job(row, f"j{number}"))
            plots.append(Plot(title, svg, advice(report) if advised else ()))
    except PlotError as error:
        return [], f"No plots: {error}."
    left = len(rows) - len(shown)
    if not left:
        return plots, ""
    return plots, (
        f"{left} of {len(rows)} grants have no plot: nothing was sampled of them, or they are not"
        f" among the {MAX_PLOTS} longest."
    )


def _stamp(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def _listed(title: str, reports: Sequence[JobReport], by_card: bool) -> Table:
    """The first jobs."""
    note = ""
    if len(reports) > MAX_LISTED:
        note = (
            f"The newest {MAX_LISTED} of {len(reports)} jobs; the same command with --csv instead"
            " of --html lists all."
        )
    header, *lines = text.lines(reports[:MAX_LISTED], by_card)
    return Table(title, header, lines, sum(column.left for column, _ in text.COLUMNS), note)


def _newest(reports: Sequence[JobReport]) -> list[JobReport]:
    """With short names, the newest first; those that wait come before them."""
    newest = sorted(reports, key=lambda r: (r.start is None, r.start or 0, r.raw_id), reverse=True)
    return [replace(report, name=printable(report.name, NAME_LENGTH)) for report in newest]


def _save(path: Path, page: str) -> None:
    try:
        path.write_text(page, encoding="utf-8")
    except OSError as error:
        raise OSError(
            f"{path} cannot be written: {error.strerror}; name another file with --html"
        ) from error


def write_jobs(
    path: Path, reports: Sequence[JobReport], rows: Sequence[Row], where: Sequence[Place]
) -> None:
    """The page of jobs asked for by number."""
    reports = _newest(reports)
    plots, note = _plots(reports, rows, where, False)
    page = _page(
        title="qgpu: " + some([f"job {report.job_id}" for report in reports]),
        subtitle=f"Written {_stamp(time.time())}.",
        tables=[_listed("", reports, True)],
        advice=advice(*reports),
        plots=plots,
        note=note,
    )
    _save(path, page)


def write_window(
    path: Path,
    reports: Sequence[JobReport],
    rows: Sequence[Row],
    grouped: Sequence[Sequence[str]],
    cards: Sequence[report_cards.CardUse],
    where: Sequence[Place],
    window: tuple[int, int],
) -> None:
    """The page of a window: totals and cards where they were asked for, and all its jobs."""
    reports = _newest(reports)
    plots, note = _plots(reports, rows, where, True)
    tables = [Table("Totals", grouped[0], grouped[1:], 1)] if grouped else []
    if cards:
        header, *lines = report_cards.lines(cards)
        tables.append(Table("Card use", header, lines, 1))
    page = _page(
        title="qgpu: use of the cards",
        subtitle=f"{_stamp(window[0])} to {_stamp(window[1])}.",
        tables=[*tables, _listed("Jobs, the newest first", reports, False)],
        advice=report_cards.advice(cards),
        plots=plots,
        note=note,
    )
    _save(path, page)
