"""`qgpu top` as rows and as a picture. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from typing import NamedTuple

from rich.console import Group
from rich.text import Text

from cli.columns import GAP, Column, cells, fit, padded, table
from cli.live.history import KEPT, History
from cli.output import user_name
from cli.report.text import duration
from enforcer.reporting.state import CardState, NodeState, TenantState
from gres.printable import printable

GIB = 1 << 30
COLUMNS = (
    Column("NODE", 8, left=True),
    Column("CARD", 1, left=True),
    Column("JOBID", left=True),
    Column("USER", 3, left=True, least=8),
    Column("CLASS", 5, left=True),
    Column("STATE", left=True),
    Column("SHARE%", 1),
    Column("NOW%"),
    Column("HELD%", 2),
    Column("BY", 6, left=True),
    Column("MEM_GIB", 1),
    Column("CAP_GIB", 4),
    Column("PROCS", 9),
    Column("TIME", 7),
)
# The parts of a card's line; its history grows to what is left.
CARD = (
    (Column("", left=True), ""),
    (Column("", 3, left=True), ""),
    (Column("", 6, left=True), "green"),
    (Column("", 4), "green"),
    (Column(""), ""),
    (Column("", 2, left=True, least=10), "green"),
    (Column("", 5, left=True), "blue"),
    (Column(""), "blue"),
    (Column("", 1), ""),
)
HISTORY = 5  # its place among them
INDENT = "  "
MAKER = "NVIDIA "  # it stands before every name, and says nothing
COLOURS = {
    "running": "green",
    "preempted": "red",
    "stopped": "red",
    "suspended": "red",
    "throttled": "yellow",
    "idle": "dim",
    "waiting": "dim",
    "whole": "cyan",
    "unknown": "magenta",
}
BLOCKS = " ▏▎▍▌▋▊▉█"
SORTS = {"n": "node", "c": "use", "m": "memory", "t": "time", "j": "job", "u": "user"}


class Row(NamedTuple):
    """One job on one card, or a card without jobs."""

    state: NodeState
    card: CardState
    tenant: TenantState | None


@dataclass
class Shown:
    """What the one who looks chose, and what was seen so far."""

    uid: int | None = None  # jobs of this user alone
    sort: str = "n"
    history: History = field(default_factory=History)


def number(value: float | None, digits: int = 0) -> str:
    """A number, or a dash where nothing was measured."""
    return "-" if value is None else f"{value:.{digits}f}"


def gib(value: int | None) -> str:
    """GiB with one digit, or a dash."""
    return "-" if value is None else f"{value / GIB:.1f}"


def bar(part: float | None, width: int = 20) -> str:
    """A bar for 0..1 in eighths of a character; dots where nothing was measured."""
    if part is None:
        return "·" * width
    eighths = round(min(max(part, 0), 1) * width * 8)
    full, rest = divmod(eighths, 8)
    return ("█" * full + (BLOCKS[rest] if rest else "")).ljust(width)


def job_name(tenant: TenantState) -> str:
    """The job's number."""
    return str(tenant.job_id)


def rows_of(states: Iterable[NodeState], shown: Shown) -> list[Row]:
    """The rows of the chosen user, as sorted; cards without jobs come last, or where they are."""
    found = []
    for state in states:
        for card in state.cards:
            mine = [t for t in card.tenants if shown.uid in (None, t.uid)]
            found += [Row(state, card, tenant) for tenant in mine]
            if not card.tenants and shown.uid is None:
                found.append(Row(state, card, None))
    return found if shown.sort == "n" else sorted(found, key=lambda row: _order(row, shown.sort))


def _order(row: Row, sort: str) -> tuple[bool, float, str]:
    """The most used, the largest and the longest running first; what is not known last."""
    tenant = row.tenant
    if tenant is None:
        return True, 0.0, ""
    value: float | None = {
        "c": tenant.share_now,
        "m": tenant.mem_used,
        "t": -tenant.granted_at,
        "j": -tenant.job_id,
        "u": 0.0,
    }[sort]
    return value is None, -(value or 0.0), user_name(tenant.uid) if sort == "u" else ""


def cells_of(row: Row, history: History) -> list[str]:
    """The texts of a row; dashes for a card without jobs."""
    state, card, tenant = row
    if tenant is None:
        return [state.node, number(card.index), *["-"] * (len(COLUMNS) - 2)]
    return [
        state.node,
        number(card.index),
        job_name(tenant),
        user_name(tenant.uid),
        tenant.job_class or "whole",
        tenant.state,
        number(tenant.share),
        number(tenant.share_now),
        number(history.held(card, tenant)),
        history.holders(card, tenant) or "-",
        gib(tenant.mem_used),
        gib(tenant.mem_cap),
        number(tenant.procs),
        duration(max(0.0, state.at - tenant.granted_at)),
    ]


def columns_of(states: Sequence[NodeState]) -> tuple[Column, ...]:
    """The node's name is needed where there are several."""
    node = COLUMNS[0]
    return (replace(node, rank=0) if len(states) > 1 else node, *COLUMNS[1:])


def as_json(states: Sequence[NodeState], notes: Sequence[str], shown: Shown) -> dict[str, object]:
    """The states as they are, with names of users."""
    nodes = [asdict(state) for state in states]
    for node in nodes:
        for card in node["cards"]:
            mine = [t for t in card["tenants"] if shown.uid in (None, t["uid"])]
            card["tenants"] = [tenant | {"user": user_name(tenant["uid"])} for tenant in mine]
    return {"nodes": nodes, "notes": list(notes)}


def _card_cells(card: CardState) -> list[str]:
    used = None if card.util is None else card.util / 100
    memory = (
        card.mem_used / card.mem_total if card.mem_used is not None and card.mem_total else None
    )
    return [
        f"card {number(card.index)}",
        printable(card.name).removeprefix(MAKER),
        bar(used),
        f"driver {number(card.util)} %",
        f"use {number(card.use)} %",
        " " * KEPT,
        bar(memory, 12),
        f"{gib(card.mem_used)}/{gib(card.mem_total)} GiB",
        f"online {card.granted_online} %",
    ]


def card_lines(states: Sequence[NodeState], history: History, room: int | None) -> list[Text]:
    """One line per card, all with the same parts."""
    cards = [card for state in states for card in state.cards]
    lines = [_card_cells(card) for card in cards]
    widths = [max(map(cells, texts)) for texts in zip(*lines, strict=True)]
    columns = [column for column, _ in CARD]
    kept = fit(columns, widths, None if room is None else room - len(INDENT)) if lines else {}
    texts = []
    for card, line in zip(cards, lines, strict=True):
        text = Text(INDENT)
        for at, width in kept.items():
            part = history.line(card, width) if at == HISTORY else line[at]
            text.append(padded(part, width, columns[at].left) + GAP, CARD[at][1])
        text.rstrip()
        texts.append(text)
    return texts


def _heads(states: Sequence[NodeState], cards: Sequence[Text]) -> list[Text]:
    """The cards below the name of their node."""
    parts, left = [], list(cards)
    for state in states:
        when = datetime.fromtimestamp(state.at).strftime("%H:%M:%S")
        head = Text(f"{printable(state.node)}  {when}", "bold")
        if not state.arbiter:
            head.append("  the arbiter does not answer", "bold red")
        parts += [head, *left[: len(state.cards)]]
        del left[: len(state.cards)]
    return parts


def keys_line(sort: str, room: int | None) -> Text:
    """The keys, as many as fit; that of the order now is bold."""
    text = Text("q quit", "dim")
    for key, word in SORTS.items():
        more = f"{'' if key != 'n' else 'sort: '}{key} {word}"
        if room is not None and len(text) + len(GAP) + len(more) > room:
            break
        text.append(GAP + more, "bold" if key == sort else "")
    return text


def _limited(parts: list[Text], lines: int) -> list[Text]:
    """At most so many lines; the last one then counts the others."""
    if len(parts) <= lines:
        return parts
    hidden = len(parts) - lines + 1
    more = Text(f"... and {hidden} more: qgpu top --once lists all", "dim")
    return [*parts[: lines - 1], more]


def picture(
    states: Sequence[NodeState],
    notes: Sequence[str],
    shown: Shown,
    width: int | None = None,
    height: int | None = None,
) -> Group:
    """What the screen shows. Columns that do not fit leave; lines that do not fit are counted."""
    head = _heads(states, card_lines(states, shown.history, width))
    rows = rows_of(states, shown)
    texts = table(columns_of(states), [cells_of(row, shown.history) for row in rows], width)
    lines = [Text(texts[0], "bold")]
    lines += [
        Text(text, COLOURS.get(row.tenant.state if row.tenant else "", ""))
        for text, row in zip(texts[1:], rows, strict=True)
    ]
    tail = [Text(printable(note), "yellow") for note in notes]
    tail.append(keys_line(shown.sort, width))
    if height is not None:
        room = max(4, height - len(tail))
        head = _limited(head, max(2, room - len(lines), room // 2))
        lines = _limited(lines, max(2, room - len(head)))
    parts = [*head, *lines, *tail]
    for part in parts:
        part.no_wrap, part.overflow = True, "ellipsis"
    return Group(*parts)
