"""Grants by the files alone: JOBID.json for root, the binary JOBID.grant for other users."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from enforcer.reporting.privacy import Privacy
from enforcer.wire import layout
from enforcer.wire.abi import AbiError, unpack_grant
from gres.config.site import Config, Node

CLASSES = {layout.CLASS_ONLINE: "online", layout.CLASS_OFFLINE: "offline"}


@dataclass(frozen=True)
class Held:
    """One job on one card."""

    job_id: int
    node: str
    uid: int
    job_class: str | None
    state: str  # active, whole, refused
    uuid: str
    card: int
    share: int
    mem_cap: int
    mem_total: int
    since: float
    reclaimable: bool  # its memory may be taken back


def of_node(node: Node) -> list[Held]:
    """The grants of a node, by card and job. An invalid file is skipped: qgpud logs it."""
    found: list[Held] = []
    directory = Path(node.run_dir) / layout.GRANTS_DIR
    with contextlib.suppress(OSError):
        for path in directory.glob("*.grant"):
            with contextlib.suppress(OSError, AbiError, ValueError):
                found += _held(path, node.name)
    return sorted(found, key=lambda held: (held.card, held.job_class != "online", held.job_id))


def _held(path: Path, node: str) -> Iterable[Held]:
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(fd, "rb") as file:
        page = unpack_grant(file.read(1 << 16))
    state = {layout.GRANT_ACTIVE: "active", layout.GRANT_WHOLE: "whole"}.get(page.state, "refused")
    job_class = CLASSES.get(page.job_class) if state == "active" else None
    for card in page.cards[: page.ncards]:
        yield Held(
            page.job_id,
            node,
            page.uid,
            job_class,
            state,
            card.uuid.decode(),
            card.index,
            card.share,
            card.mem_cap,
            card.mem_total,
            page.created_ns / 1e9,
            bool(card.flags & layout.GRANT_CARD_RECLAIMABLE),
        )


def visible(config: Config, held: Iterable[Held]) -> list[Held]:
    """What the caller may see."""
    from cli.output import user_id

    admins = [uid for name in config.reports.admins if (uid := user_id(name)) is not None]
    privacy = Privacy.of(config.reports.private_data, admins)
    return [one for one in held if privacy.sees_live(os.geteuid(), one.uid)]
