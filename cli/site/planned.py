"""A request as it would be booked, by qgpu's own rules: what `qgpu plan` shows."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any

from cli.setup.host import find_slurm_conf
from cli.site.sbatch_line import submission
from cli.site.slurm_answer import Queue, Start
from gres.config.hostlist import expand
from gres.config.levels import plan_card
from gres.config.site import Config, NodeGroup
from gres.request.tables import HostDefault, tables_of
from gres.units import MIB
from slurm_plugin.render import host_default
from slurm_plugin.site.conf import parse
from slurm_plugin.site.sources import Disk
from slurm_plugin.submission import Decision, JobSubmit, RequestError, Submission

NCCL = (
    "NCCL refuses several ranks on one card at once (Multiple Ranks are using the same"
    " GPU/Partition); NCCL_MULTI_RANK_GPU_ENABLE=1 was seen to work with 2.30.7, and gloo works"
)


@dataclass(frozen=True)
class Plan:
    """An accepted request in full; `nodes` are bracket lists of where its cards could be.

    `start` is Slurm's answer, None where it was not asked; `now` whether it starts at once, None
    where that is not known, as where others wait and for the `parts` of a job, which start only
    together. `waits`: a limit that others of the user fill. `instead`: requests that were tried,
    for which there is room now.
    """

    decision: Decision
    gres: str
    field: str
    nodes: tuple[str, ...]
    node_count: int
    class_note: str = ""
    releases: tuple[tuple[str, str], ...] = ()  # idle_release and online_delay of these nodes
    start: Start | None = None
    now: bool | None = None
    queue: Queue = Queue(0, 0)  # noqa: RUF009  (frozen)
    parts: bool = False
    card: int | None = None
    behind: str = ""
    waits: str = ""
    instead: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """The plan for --json; memory also in bytes."""
        tag = self.decision.tag
        shared = tag is not None and not tag.whole
        return {
            "accepted": True,
            "gres": self.gres,
            "tag": str(tag) if tag else None,
            "tag_field": self.field if tag else None,
            "class": tag.job_class if tag else None,
            "share_percent": tag.share if tag and shared else None,
            "mem_mib": tag.mem if tag and shared else None,
            "mem_bytes": tag.mem * MIB if tag and shared else None,
            "shards": self.decision.shards or None,
            "cards_per_node": tag.cards if tag and shared else None,
            "reclaimable": tag.host is not None if tag and shared else None,
            "host_memory": asdict(self.decision.host) if self.decision.host else None,
            "tres_per_task": self.decision.tres_per_task,
            "tasks_per_node": self.decision.tasks_per_node or None,
            "whole_cards": self.decision.cards or None,
            "model": self.decision.model,
            "nodes": list(self.nodes),
            "node_count": self.node_count,
            "idle_release": [value for value, _ in self.releases] if shared else None,
            "starts": self._starts(),
            "waits": self.waits or None,
            "instead": list(self.instead),
            "notes": list(self.notes),
        }

    def _starts(self) -> dict[str, Any] | None:
        if self.start is None:
            return None
        return {
            "now": False if self.waits else self.now,
            "at": datetime.fromtimestamp(self.start.at).astimezone().isoformat(),
            "nodes": list(self.start.nodes),
            "card": self.card,
            "partition": self.start.partition,
            "behind": self.behind or None,
        }


def _fits(group: NodeGroup, decision: Decision, config: Config) -> bool:
    """Whether an empty node of this group could take the request."""
    cards = max(decision.cards, decision.tag.cards if decision.tag else 0)
    if decision.model not in (None, group.model) or cards > group.count:
        return False
    mem = decision.tag.mem if decision.tag else 0
    return mem <= config.models[group.model].usable


def plan_of(decision: Decision, gres: str, config: Config) -> Plan:
    """A decision with the nodes whose cards fit."""
    groups = [group for group in config.nodes if _fits(group, decision, config)]
    count = sum(len(expand(group.names)) for group in groups)
    names = tuple(group.names for group in groups)
    field = tables_of(config).tag_field
    return Plan(decision, gres, field, names, count, releases=_releases(config, groups))


def make_plan(job: Submission, config: Config, memory: HostDefault | None = None) -> Plan:
    """Decide a submission by qgpu's own rules and find its nodes. Raises RequestError with the
    sentence for the user, LuaMissingError.

    `memory`: the host memory of a job that asks for none.
    """
    decision = JobSubmit(config, memory=memory).decide(job)
    plan = plan_of(decision, job.gres or "" if decision.gres is None else decision.gres, config)
    if job.qos is None or job.qos.lower() in tables_of(config).qos:
        return plan
    note = (
        f" (by default: qgpu.yaml maps no QOS {job.qos!r}; whether Slurm has it is not known here)"
    )
    return replace(plan, class_note=note)


def _releases(config: Config, groups: Iterable[NodeGroup]) -> tuple[tuple[str, str], ...]:
    """The values on the cards of each group's first node."""
    nodes = [config.node(expand(group.names)[0]) for group in groups]
    plans = [plan_card(config, node, card.index, "") for node in nodes for card in node.cards]
    return tuple(sorted({(str(p.idle_release), str(p.online_delay)) for p in plans}))


class RefusedError(Exception):
    """sbatch would refuse it, or it would wait for ever; the text is the sentence."""

    def __init__(self, text: str, rule: str | None = None) -> None:
        super().__init__(text)
        self.rule = rule


def _default_memory(config: Config) -> HostDefault:
    """What slurm.conf of this host gives a job that asks for no memory, if there is one."""
    path = find_slurm_conf("/", os.environ)
    return host_default(parse(path, Disk(), config.slurm.version).text) if path else HostDefault()


def by_rules(found: Mapping[str, str], config: Config) -> Plan:
    """The plan by qgpu's rules alone. Raises RefusedError, LineError, LuaMissingError."""
    job = submission(found)
    if job.partition is None:
        job = replace(job, partition=next(iter(tables_of(config).partitions), None))
    try:
        plan = make_plan(job, config, _default_memory(config))
    except RequestError as error:
        raise RefusedError(str(error), error.key) from None
    shape = (job.tasks, job.tasks_per_node, job.nodes)
    return replace(plan, notes=tuple(ranks(plan.decision, *shape)))


def ranks(
    decision: Decision, tasks: int | None, tasks_per_node: int | None, nodes: int | None
) -> list[str]:
    """What NCCL does with more tasks on a node than it has cards of the job."""
    tag = decision.tag
    count = tasks_per_node or math.ceil((tasks or 1) / (nodes or 1))
    if tag is None or tag.whole or count <= tag.cards:
        return []
    cards = "one card" if tag.cards == 1 else f"{tag.cards} cards"
    return [f"{count} tasks of a node are on {cards}: {NCCL}"]
