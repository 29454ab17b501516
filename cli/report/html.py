"""The report as one self-contained page: tables, advice, plots as inline SVG; no script, nothing is
loaded.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import jinja2
from markupsafe import Markup

from cli.report import cards as report_cards
from cli.report import groups as report_groups
from cli.report import plots as report_plots
from cli.report.advice import advice
from cli.report.ledgers import Place, Row
from cli.report.model import JobReport
from cli.report.plots import PlotError
from cli.report.text import lines
from enforcer.ledger.read import card_series, reading
from enforcer.ledger.schema import CardPoint, LedgerError
from gres.printable import printable

MAX_PLOTS = 40  # plots of one page, so that a browser can show it


@dataclass(frozen=True)
class Plot:
    """One plot, or why there is none."""

    title: str
    svg: Markup | None
    why: str = ""


def _plot(title: str, draw: Callable[[], str]) -> Plot:
    try:
        return Plot(title, Markup(draw()))
    except PlotError as error:
        return Plot(title, None, str(error))


def _shown(value: object) -> object:
    """What the page shows of a value: text is made printable, SVG is ours."""
    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _page(**values: object) -> str:
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, finalize=_shown
    )
    text = files("configs").joinpath("report/report.html.j2").read_text(encoding="utf-8")
    return environment.from_string(text).render(**values)


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


def _plots(rows: Sequence[Row], where: Sequence[Place], since: float, until: float) -> list[Plot]:
    cards = cards_between(where, since, until)
    plots = [_plot("Cards by class", lambda: report_plots.timeline(rows, cards, since, until, "t"))]
    for number, row in enumerate(rows[:MAX_PLOTS]):
        title = f"Job {row.usage.job_id} on {row.usage.node}:{row.usage.card_index}"
        plots.append(_plot(title, lambda row=row, n=number: report_plots.job(row, f"j{n}")))  # type: ignore[misc]
    return plots


def _stamp(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def write_jobs(
    path: Path, reports: Sequence[JobReport], rows: Sequence[Row], where: Sequence[Place]
) -> None:
    """The page of jobs."""
    now = time.time()
    since = min((row.usage.granted_at / 1e9 for row in rows), default=now - 1)
    until = max(
        (now if r.usage.ended_at is None else r.usage.ended_at / 1e9 for r in rows), default=now
    )
    header, *table = lines(reports)
    page = _page(
        title="qgpu: " + ", ".join(f"job {report.job_id}" for report in reports[:8]),
        subtitle=f"{_stamp(since)} to {_stamp(until)}.",
        header=header,
        lines=table,
        left=5,
        cards=[],
        advice=[line for report in reports for line in advice(report)],
        plots=_plots(rows, where, since, max(until, since + 1)),
    )
    path.write_text(page, encoding="utf-8")


def write_window(
    path: Path,
    grouped: tuple[Sequence[report_groups.Group], report_groups.Group],
    cards: Sequence[report_cards.CardUse],
    rows: Sequence[Row],
    where: Sequence[Place],
    window: tuple[int, int],
) -> None:
    """The page of a window."""
    since, until = window
    page = _page(
        title="qgpu: use of the cards",
        subtitle=f"{_stamp(since)} to {_stamp(until)}.",
        header=list(report_groups.HEADER),
        lines=report_groups.rows_of(*grouped),
        left=1,
        cards=report_cards.lines(cards) if cards else [],
        advice=report_cards.advice(cards),
        plots=_plots(rows, where, since, until),
    )
    path.write_text(page, encoding="utf-8")
