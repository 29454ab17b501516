"""Plots of the report as SVG text, by matplotlib (the extra `plots`)."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from cli.report.ledgers import Row
from enforcer.ledger.schema import CardPoint

GIB = 1 << 30
COLOURS = {"online": "#1f77b4", "offline": "#ff7f0e", "whole": "#2ca02c"}
WIDTH = 5.2  # inches: a telephone's width, and two beside each other on a wide screen


class PlotError(RuntimeError):
    """Nothing can be drawn; the text is a sentence."""


def _figure(height: float, rows: int = 1) -> tuple[Any, Any]:
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError:
        raise PlotError("plots need matplotlib: pip install 'qgpu[plots]'") from None
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "qgpu", "font.size": 8})
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
    figure, (axis,) = _figure(0.9 + 0.6 * len(names))
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
    _times(axis, since, until)
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


def _times(axis: Any, begin: float, end: float) -> None:
    """The axis of times, from begin to end, with labels that do not touch."""
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

    locator = AutoDateLocator(maxticks=6)  # type: ignore[no-untyped-call]
    axis.xaxis.set_major_locator(locator)
    labels = ConciseDateFormatter(locator)  # type: ignore[no-untyped-call]
    axis.xaxis.set_major_formatter(labels)
    axis.set_xlim(_when(begin), _when(max(end, begin + 0.1)))


class Piece(NamedTuple):
    """What was measured from `begin` to `end`, both inside the time of the grant."""

    begin: float
    end: float
    busy_ns: int
    waited_ns: int
    held: int | None

    def percent(self, nanoseconds: int) -> float:
        """Of this time."""
        return min(100.0, nanoseconds / (self.end - self.begin) / 1e7)


def pieces(row: Row) -> list[Piece]:
    """The series, cut to the time of the grant, since its first and last bucket reach over it.

    What is left of a bucket may be shorter than the pause between two samples, so that it would
    show the work of the time before it as its own: such a rest is joined to its neighbour.
    """
    points, usage = row.points or (), row.usage
    begin = usage.granted_at / 1e9
    ended = usage.ended_at if usage.ended_at is not None else usage.sampled_at
    end = max((p.at + p.step for p in points), default=0) if ended is None else ended / 1e9
    found: list[Piece] = []
    for p in points:
        start, stop = max(p.at, begin), min(p.at + p.step, end)
        if stop <= start:
            continue
        piece = Piece(start, stop, p.busy_ns, p.closed_preempted_ns, p.mem_used)
        last = found[-1] if found else None
        if last and last.end == start and min(stop - start, last.end - last.begin) < p.step / 2:
            piece = _joined(found.pop(), piece)
        found.append(piece)
    return found


def _joined(a: Piece, b: Piece) -> Piece:
    held = max((value for value in (a.held, b.held) if value is not None), default=None)
    return Piece(a.begin, b.end, a.busy_ns + b.busy_ns, a.waited_ns + b.waited_ns, held)


def job(row: Row, prefix: str) -> str:
    """Share used and memory held over time, against what was granted. Raises PlotError."""
    found = pieces(row)
    if not found:
        raise PlotError("nothing was sampled of this grant")
    colour = COLOURS[_class(row)]
    figure, (share, memory) = _figure(3.2, rows=2)
    lines = (
        (share, lambda p: p.percent(p.busy_ns), colour, 1.5, "used"),
        (share, lambda p: p.percent(p.waited_ns), "#d62728", 0.8, "waited"),
        (memory, _held, colour, 1.5, "held"),
    )
    for axis, value, tint, width, label in lines:
        times, values = _steps(found, value)
        axis.plot(times, values, color=tint, linewidth=width, label=label, drawstyle="steps-post")
    for axis, level, label in (
        (share, row.usage.share, "granted"),
        (memory, row.usage.mem_cap / GIB, "cap"),
    ):
        axis.axhline(level, color="#444", linestyle="--", linewidth=0.8, label=label)
        axis.legend(ncols=3, loc="lower right", bbox_to_anchor=(1, 1), frameon=False)
    share.set_ylabel("% of the card")
    share.set_ylim(0, 105)
    memory.set_ylabel("GiB")
    memory.set_ylim(bottom=0)
    _times(memory, row.usage.granted_at / 1e9, found[-1].end)
    return _svg(figure, prefix)


def _held(piece: Piece) -> float:
    return float("nan") if piece.held is None else piece.held / GIB


def _steps(
    found: Iterable[Piece], value: Callable[[Piece], float]
) -> tuple[list[Any], list[float]]:
    """Times and values; a gap between buckets is a gap in the line, not a line over it."""
    times: list[Any] = []
    values: list[float] = []
    last: float | None = None
    for piece in found:
        if last is not None and piece.begin > last:
            times.append(_when(last))
            values.append(float("nan"))
        times += [_when(piece.begin), _when(piece.end)]
        values += [value(piece)] * 2
        last = piece.end
    return times, values
