"""What a request for a share may say, by the tables that job_submit.lua has. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from gres.config.levels import plan_card
from gres.config.site import Config
from gres.request.tables import tables_of
from gres.units import MIB


@dataclass(frozen=True)
class Limits:
    """Limits of requests for a share of one model of card, in percent and bytes.

    `usable`: what the shares of a card have together; None if no qgpu.yaml says it. `model` is
    empty where all cards are of one model. `firm`: classes whose shares never add up to more than
    a card, so that each job is sure of its own. `auto`: node and index of cards whose idle_release
    is auto in qgpu.yaml.
    """

    min_share: int = 1
    max_share: int = 100
    least: int = MIB
    usable: int | None = None
    model: str = ""
    firm: frozenset[str] = frozenset()
    auto: frozenset[tuple[str, int]] = frozenset()


def limits_of(config: Config, node: str) -> Limits:
    """Of the cards of this node."""
    tables, found = tables_of(config), config.node(node)
    model, cards = found.model, [card.index for card in found.cards]
    firm = (
        name
        for name, settings in config.classes.items()
        if tables.compute[name] and settings.policy != "best-effort"
    )
    return Limits(
        tables.min_share,
        tables.max_share,
        tables.models[model].least * MIB,
        tables.models[model].usable * MIB,
        model if len(tables.models) > 1 else "",
        frozenset(firm),
        frozenset(
            (node, card)
            for card in cards
            if plan_card(config, found, card, "").idle_release == "auto"
        ),
    )
