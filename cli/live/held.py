"""`qgpu jobs` and `qgpu cards`: what is granted where, from the files alone; no daemon needs to
answer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import click

from cli.columns import Column
from cli.live import grantfiles
from cli.live import states as live
from cli.live.grantfiles import Held
from cli.live.view import gib
from cli.output import fail, form_of, show_columns, user_name
from cli.report.command import DEFAULT_CONFIG
from cli.report.text import duration
from gres.config.site import Config, ConfigError, load_config

JOBS = (
    Column("JOBID", left=True),
    Column("USER", 1, left=True, least=8),
    Column("NODE", 3, left=True),
    Column("CARD", left=True),
    Column("CLASS", 1, left=True),
    Column("SHARE%"),
    Column("CAP_GIB"),
    Column("SINCE", 2),
    Column("MEMORY", 3),
)
CARDS = (
    Column("NODE", 2, left=True),
    Column("CARD", left=True),
    Column("MODEL", 3, left=True),
    Column("USE", left=True),
    Column("ONLINE%", 1),
    Column("OFFLINE%", 1),
    Column("JOBS", 2),
    Column("GRANTED_GIB"),
    Column("USABLE_GIB"),
    Column("RECLAIMABLE_GIB", 4),
)


def job_rows(held: Sequence[Held], now: float) -> list[list[str]]:
    """One line per job and card."""
    return [
        [
            str(h.job_id),
            user_name(h.uid),
            h.node,
            str(h.card),
            h.job_class or "whole",
            str(h.share),
            gib(h.mem_cap),
            duration(max(0.0, now - h.since)),
            "reclaimable" if h.reclaimable else "reserved",
        ]
        for h in held
    ]


def card_bodies(config: Config, names: Sequence[str]) -> list[dict[str, Any]]:
    """Each configured card with sums of its grants; sums are public, the users are not."""
    bodies = []
    for name in names:
        node = config.node(name)
        held = grantfiles.of_node(node)
        for card in node.cards:
            mine = [h for h in held if h.card == card.index and h.state != "refused"]
            whole = any(h.state == "whole" for h in mine)
            shares = {
                kind: sum(h.share for h in mine if h.job_class == kind)
                for kind in ("online", "offline")
            }
            bodies.append(
                {
                    "node": name,
                    "card": card.index,
                    "uuid": mine[0].uuid if mine else None,
                    "model": card.model,
                    "use": "whole" if whole else "shared" if mine else "free",
                    **shares,
                    "jobs": len({h.job_id for h in mine}),
                    # A whole card's grant is all of its memory, of which a part is not usable.
                    "mem_granted": min(
                        sum(h.mem_cap for h in mine if not h.reclaimable), card.usable << 20
                    ),
                    "mem_usable": card.usable << 20,
                    "mem_reclaimable": sum(h.mem_cap for h in mine if h.reclaimable),
                }
            )
    return bodies


def card_rows(bodies: Sequence[dict[str, Any]]) -> list[list[str]]:
    """One line per card."""
    return [
        [
            b["node"],
            str(b["card"]),
            b["model"],
            b["use"],
            str(b["online"]),
            str(b["offline"]),
            str(b["jobs"]),
            gib(b["mem_granted"]),
            gib(b["mem_usable"]),
            gib(b["mem_reclaimable"]),
        ]
        for b in bodies
    ]


def _options(command: Callable[..., None]) -> Callable[..., None]:
    for option in (
        click.option("--parsable", "as_parsable", is_flag=True, help="Fields separated by |."),
        click.option("--json", "as_json", is_flag=True, help="JSON."),
        click.option("--node", help="This node instead of the one we are on."),
        click.option(
            "--config",
            envvar="QGPU_CONFIG",
            default=DEFAULT_CONFIG,
            show_default=True,
            help="qgpu.yaml.",
        ),
    ):
        command = option(command)
    return command


def _nodes(command: str, config: str, node: str | None) -> tuple[Config, list[str]]:
    try:
        loaded = load_config(config)
        return loaded, live.nodes_here(loaded, node, cluster=False)
    except ConfigError as error:
        fail(command, str(error))


@click.command()
@_options
def jobs(config: str, node: str | None, as_json: bool, as_parsable: bool) -> None:
    """Show which jobs hold cards here."""
    loaded, names = _nodes("jobs", config, node)
    held = grantfiles.visible(
        loaded, [h for name in names for h in grantfiles.of_node(loaded.node(name))]
    )
    held = [h for h in held if h.state != "refused"]
    body = {"jobs": [asdict(h) | {"user": user_name(h.uid)} for h in held]}
    show_columns(body, JOBS, job_rows(held, time.time()), form_of(as_json, as_parsable))


@click.command()
@_options
def cards(config: str, node: str | None, as_json: bool, as_parsable: bool) -> None:
    """Show this node's cards and how much of each is granted."""
    loaded, names = _nodes("cards", config, node)
    bodies = card_bodies(loaded, names)
    show_columns({"cards": bodies}, CARDS, card_rows(bodies), form_of(as_json, as_parsable))
