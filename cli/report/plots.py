"""Plots of the report as SVG text, by matplotlib (the extra `plots`)."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from cli.report.ledgers import Row
from enforcer.ledger.schema import CardPoint, Point

GIB = 1 << 30
COLOURS = {"online": "#1f77b4", "offline": "#ff7f0e", "whole": "#2ca02c"}
WIDTH = 10.0


class PlotError(RuntimeError):
    """Nothing can be drawn; the text is a sentence."""


def _figure(height: float, rows: int = 1) -> tuple[Any, Any]:
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError:
        raise PlotError("plots need matplotlib: pip install 'qgpu[plots]'") from None
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "qgpu", "font.size": 9})
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    return figure, figure.subplots(rows, 1, sharex=True, squeeze=False)[:, 0]


def _svg(figure: Any, prefix: str) -> str:
    """The figure as an element to put into a page; ids are made unique by the prefix."""
    out = io.StringIO()
    figure.savefig(out, format="svg", metadata={"Date": None})
    text = out.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r'\bid="([^"]+)"', rf'id="{prefix}-\1"', text)
    text = re.sub(r"url\(#([^)]+)\)", rf"url(#{prefix}-\1)", text)
    return re.sub(r'href="#([^"]+)"', rf'href="#{prefix}-\1"', text)


def _label(text: str) -> str:
    """matplotlib reads $ as mathematics."""
    return text.replace("$", r"\$")


def _when(seconds: float) -> Any:
    return datetime.fromtimestamp(seconds)


def _class(row: Row) -> str:
    return row.usage.job_class or "whole"


def timeline(
    rows: Sequence[Row], cards: Sequence[CardPoint], since: float, until: float, prefix: str
) -> str:
    """One band per card: grants by class, and the card's own utilisation above them. Raises
    PlotError.
    """
    names = sorted({(r.usage.node, r.usage.card_index, r.usage.uuid) for r in rows})
    if not names:
        raise PlotError("no grant stood in this time")
    figure, (axis,) = _figure(0.9 + 0.75 * len(names))
    for at, (_, _, uuid) in enumerate(names):
        mine = sorted((r for r in rows if r.usage.uuid == uuid), key=lambda r: r.usage.granted_at)
        lanes = _lanes(mine, until)
        for row, lane, count in lanes:
            begin = max(row.usage.granted_at / 1e9, since)
            end = min(until if row.usage.ended_at is None else row.usage.ended_at / 1e9, until)
            axis.barh(
                at + 0.3 - 0.6 * (lane + 0.5) / count,
                (max(end - begin, 0)) / 86400,
                left=_when(begin),
                height=0.55 / count,
                color=COLOURS[_class(row)],
                linewidth=0,
            )
        points = [p for p in cards if p.uuid == uuid and p.util is not None]
        if points:
            axis.plot(
                [_when(p.at + p.step / 2) for p in points],
                [at - 0.4 + 0.8 * (p.util or 0) / 100 for p in points],
                color="#444",
                linewidth=0.7,
            )
    axis.set_yticks(range(len(names)), [_label(f"{node}:{index}") for node, index, _ in names])
    axis.set_ylim(-0.5, len(names) - 0.5)
    axis.set_xlim(_when(since), _when(until))
    axis.legend(
        handles=[_patch(colour, name) for name, colour in COLOURS.items()],
        ncols=3,
        loc="lower right",
        bbox_to_anchor=(1, 1),
        frameon=False,
    )
    return _svg(figure, prefix)


def _patch(colour: str, name: str) -> Any:
    from matplotlib.patches import Patch

    return Patch(color=colour, label=name)


def _lanes(rows: Sequence[Row], until: float) -> list[tuple[Row, int, int]]:
    """Concurrent rows beside each other: row, lane, number of lanes."""
    free: list[float] = []
    placed: list[tuple[Row, int]] = []
    for row in rows:
        begin = row.usage.granted_at / 1e9
        end = until if row.usage.ended_at is None else row.usage.ended_at / 1e9
        lane = next((n for n, ends in enumerate(free) if ends <= begin), len(free))
        free[lane : lane + 1] = [end]
        placed.append((row, lane))
    return [(row, lane, max(1, len(free))) for row, lane in placed]


def job(row: Row, prefix: str) -> str:
    """Share used and memory held over time, against what was granted. Raises PlotError."""
    points = row.points or ()
    if not points:
        raise PlotError(
            "nothing was sampled of this grant, or its series is older than the retention"
        )
    figure, (share, memory) = _figure(3.6, rows=2)
    times, used = _steps(points, lambda p: min(100.0, p.busy_ns / (p.step * 1e7)))
    share.plot(times, used, color=COLOURS[_class(row)], label="used", drawstyle="steps-post")
    _, closed = _steps(points, lambda p: min(100.0, p.closed_preempted_ns / (p.step * 1e7)))
    share.plot(
        times,
        closed,
        color="#d62728",
        linewidth=0.8,
        label="waited for online",
        drawstyle="steps-post",
    )
    share.axhline(row.usage.share, color="#444", linestyle="--", linewidth=0.8, label="granted")
    share.set_ylabel("% of the card")
    share.set_ylim(0, 105)
    times, held = _steps(points, lambda p: float("nan") if p.mem_used is None else p.mem_used / GIB)
    memory.plot(times, held, color=COLOURS[_class(row)], label="held", drawstyle="steps-post")
    memory.axhline(
        row.usage.mem_cap / GIB, color="#444", linestyle="--", linewidth=0.8, label="cap"
    )
    memory.set_ylabel("GiB")
    memory.set_ylim(bottom=0)
    for axis in (share, memory):
        axis.legend(ncols=3, loc="lower right", bbox_to_anchor=(1, 1), frameon=False)
    return _svg(figure, prefix)


def _steps(points: Iterable[Point], value: Any) -> tuple[list[Any], list[float]]:
    """Times and values; a gap between buckets is a gap in the line, not a line over it."""
    times: list[Any] = []
    values: list[float] = []
    last: float | None = None
    for point in points:
        if last is not None and point.at > last:
            times.append(_when(last))
            values.append(float("nan"))
        times += [_when(point.at), _when(point.at + point.step)]
        values += [value(point)] * 2
        last = point.at + point.step
    return times, values
