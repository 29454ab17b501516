"""How `qgpu plan` shows a plan on a terminal."""

from __future__ import annotations

from datetime import datetime

from rich.console import Console
from rich.table import Table
from rich.text import Text

from cli.site.planned import Plan
from gres.config.levels import LONG_RELEASE
from gres.grant.tag import Tag
from gres.units import MIB
from slurm_plugin.submission import Decision


def _release_text(release: str, delay: str) -> str:
    """When offline comes after online's work, with this value and with auto."""
    if release == "auto":
        return (
            f"auto: after online's work offline comes at once if it leaves the card within {delay},"
            f" else after {LONG_RELEASE}"
        )
    return (
        f"{release}: offline comes so long after online's work; with auto it comes at once if it"
        f" leaves the card within {delay}"
    )


def _cards(count: int) -> str:
    return "one card's" if count == 1 else f"each of {count} cards'"


def _unbooked(tag: Tag) -> str:
    return "" if tag.host is None else "; no memory, which may be taken back"


def _host_rows(found: Decision, tag: Tag) -> list[tuple[str, str]]:
    """Where the card's memory goes when it is taken back."""
    if tag.host is None:
        return []
    if found.host is None:
        return [("host memory", "all of the node, by --mem=0 or without a default in slurm.conf")]
    host, what = found.host, "CPU" if found.host.per == "cpu" else "node"
    text = f"{host.mib} MiB per {what} in place of {host.own}, as {tag.host} MiB more must fit"
    return [("host memory", text)]


def _rows(plan: Plan) -> list[tuple[str, str]]:
    tag = plan.decision.tag
    found = plan.decision
    whole_nodes = tag is not None and tag.node
    rows = [("Slurm is asked for", plan.gres or ("whole nodes" if whole_nodes else "(nothing)"))]
    if found.tres_per_task:
        rows.append(("for each task", f"{found.tres_per_task}, one task for each card"))
        rows.append(("tasks", f"{found.tasks_per_node} per node, {found.tasks} in all"))
    if tag is None:
        return [*rows, ("qgpu", "has no part in this request")]
    if tag.whole:
        rows.append(("cards", f"{'all of the nodes, ' * whole_nodes}whole, without sharing"))
    else:
        rows += [
            ("class", f"{tag.job_class}{plan.class_note}"),
            ("share", f"{tag.share} % of {_cards(tag.cards)} compute"),
            (
                "memory cap",
                f"{tag.mem} MiB ({tag.mem * MIB} bytes) of {'one' if tag.cards == 1 else 'each'}"
                " card",
            ),
            ("reserved", f"{plan.decision.shards} of the card's 100 shards{_unbooked(tag)}"),
            *_host_rows(plan.decision, tag),
            *(("idle_release", _release_text(*each)) for each in plan.releases),
        ]
    names = ",".join(plan.nodes)
    nodes = (
        f"{names} ({plan.node_count} node{'s' if plan.node_count != 1 else ''})"
        if names
        else "none"
    )
    return [
        *rows,
        ("card model", plan.decision.model or "any"),
        ("tag", f"{tag} (in {plan.field})"),
        ("has such cards", nodes),
    ]


def _clock(at: int) -> str:
    when = datetime.fromtimestamp(at)
    return when.strftime("%H:%M" if when.date() == datetime.now().date() else "%Y-%m-%d %H:%M")


def when_text(plan: Plan) -> str:
    """When and where the job starts, as far as Slurm says it."""
    if plan.waits:
        return plan.waits
    if plan.start is None:
        return "not known"
    place = ",".join(plan.start.nodes) + ("" if plan.card is None else f", card {plan.card}")
    if plan.parts:
        when = "now" if plan.start.free else f"perhaps {_clock(plan.start.at)}"
        return f"not known: each part alone {when}, on {place}, but they start only together"
    if plan.now:
        return f"now on {place}"
    if plan.start.free:
        return f"perhaps now, on {place}, where there is room; jobs that wait may go first"
    if plan.queue.waiting or plan.start.free is None:
        return f"perhaps {_clock(plan.start.at)}, on {place}: Slurm's guess, as other jobs wait"
    who = f", behind job {plan.behind}" if plan.behind else ""
    return f"perhaps {_clock(plan.start.at)} by the time limits{who}, on {place}"


def _answer_rows(plan: Plan) -> list[tuple[str, str]]:
    room = "has room now; jobs that wait may go first" if plan.queue.eligible else "starts now"
    return [
        *([("starts", when_text(plan))] if plan.start or plan.waits else []),
        *(("instead", f"{words} {room}") for words in plan.instead),
        *(("note", text) for text in plan.notes),
    ]


def show(plans: list[Plan]) -> None:
    """Print the parts of a job, then when it starts."""
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for part, plan in enumerate(plans):
        if len(plans) > 1:
            table.add_row("part", str(part))
        for name, value in _rows(plan):
            table.add_row(name, Text(value))
    for name, value in _answer_rows(plans[0]):
        table.add_row(name, Text(value))
    Console(highlight=False).print(table)
