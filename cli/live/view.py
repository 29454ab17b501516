"""`qgpu top` as rows and as a picture. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from datetime import datetime

from rich.console import Group
from rich.text import Text

from cli.output import aligned, user_name
from enforcer.reporting.state import CardState, NodeState, TenantState
from gres.printable import printable

GIB = 1 << 30
HEADER = (
    "NODE",
    "CARD",
    "JOBID",
    "USER",
    "CLASS",
    "STATE",
    "SHARE%",
    "NOW%",
    "MEM_GIB",
    "CAP_GIB",
    "PROCS",
)
LEFT = 6
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


def tenant_row(state: NodeState, card: CardState, tenant: TenantState) -> list[str]:
    """One tenant's line."""
    return [
        state.node,
        number(card.index),
        job_name(tenant),
        user_name(tenant.uid),
        tenant.job_class or "whole",
        tenant.state,
        number(tenant.share),
        number(tenant.share_now),
        gib(tenant.mem_used),
        gib(tenant.mem_cap),
        number(tenant.procs),
    ]


def rows(states: Iterable[NodeState]) -> list[list[str]]:
    """One line per tenant, and one with dashes for a card without tenants."""
    lines = []
    for state in states:
        for card in state.cards:
            lines += [tenant_row(state, card, tenant) for tenant in card.tenants]
            if not card.tenants:
                lines.append([state.node, number(card.index), *["-"] * (len(HEADER) - 2)])
    return lines


def as_json(states: Sequence[NodeState], notes: Sequence[str]) -> dict[str, object]:
    """The states as they are, with names of users."""
    nodes = [asdict(state) for state in states]
    for node in nodes:
        for card in node["cards"]:
            for tenant in card["tenants"]:
                tenant["user"] = user_name(tenant["uid"])
    return {"nodes": nodes, "notes": list(notes)}


def _card_line(card: CardState) -> Text:
    used = None if card.util is None else card.util / 100
    memory = (
        card.mem_used / card.mem_total if card.mem_used is not None and card.mem_total else None
    )
    text = Text(f"  card {number(card.index)} {printable(card.name):<10.10} ")
    text.append(f"{bar(used)} {number(card.util):>3} % ", "green")
    text.append(f"use {number(card.use):>3} % ")
    text.append(f"{bar(memory, 12)} {gib(card.mem_used):>5}/{gib(card.mem_total)} GiB ", "blue")
    text.append(f"online {card.granted_online} %")
    return text


def picture(states: Sequence[NodeState], notes: Sequence[str], height: int | None = None) -> Group:
    """What the screen shows; lines that do not fit into `height` are counted instead."""
    parts: list[Text] = []
    for state in states:
        when = datetime.fromtimestamp(state.at).strftime("%H:%M:%S")
        head = Text(f"{state.node}  {when}", "bold")
        if not state.arbiter:
            head.append("  the arbiter does not answer", "bold red")
        parts.append(head)
        parts += [_card_line(card) for card in state.cards]
    lines = rows(states)
    room = len(lines) if height is None else max(1, height - len(parts) - len(notes) - 3)
    shown, hidden = lines[:room], len(lines) - room
    texts = aligned([HEADER, *shown], LEFT)
    parts.append(Text(texts[0], "bold"))
    parts += [
        Text(text, COLOURS.get(line[5], "")) for text, line in zip(texts[1:], shown, strict=True)
    ]
    if hidden > 0:
        parts.append(Text(f"... and {hidden} more: qgpu top --once lists all", "dim"))
    parts += [Text(printable(note), "yellow") for note in notes]
    for part in parts:
        part.no_wrap = True
    return Group(*parts)
