"""The plan of a job as this cluster's Slurm answers: nothing that it decides is decided here."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from cli.site import slurm_answer
from cli.site.neighbours import neighbours
from cli.site.planned import Plan, RefusedError, by_rules, plan_of, ranks
from cli.site.sbatch_line import Line, LineError, asked
from cli.site.slurm_answer import Answer, Start
from gres.config.hostlist import expand
from gres.config.site import Config
from gres.grant.tag import TagError
from gres.units import MIB
from slurm_plugin.submission import LuaMissingError, read_decision

_SHAPE = ("tasks", "tasks_per_node", "nodes")


def _wants(plan: Plan, start: Start) -> dict[str, int]:
    """TRES of the whole job, as its QOS limits them."""
    wants = {"cpu": start.cpus, "node": len(start.nodes)}
    tag = plan.decision.tag
    if tag is None or tag.whole:
        return wants
    nodes = len(start.nodes)
    share = tag.share * tag.cards * nodes
    return wants | {
        "gres/qgpu": share,
        f"gres/qgpu:{tag.job_class}": share,
        "gres/shard": plan.decision.shards * tag.cards * nodes,
        "gres/vram": tag.mem * MIB * tag.cards * nodes,
    }


def _told_plan(told: Mapping[str, str], config: Config) -> Plan:
    decision = read_decision(told)
    gres = "" if decision.gres in (None, "none") else decision.gres
    gres = re.sub(r"(^|,)gres[:/]", r"\1", gres or "")  # as a user would write it
    plan = plan_of(decision, gres, config)
    shape = [int(told[name]) if name in told else None for name in _SHAPE]
    return replace(plan, notes=tuple(ranks(decision, *shape)))


def _plans(answer: Answer, found: Mapping[str, str], config: Config) -> list[Plan]:
    """What would be booked: as slurmctld says it, else as this host's rules have it."""
    try:
        if answer.told:
            return [_told_plan(told, config) for told in answer.told]
        why = (
            "slurmctld did not say what it books; qgpu's SPANK plugin and Lua say it (qgpu doctor)"
        )
    except (ValueError, TagError):
        why = "slurmctld has another version of qgpu"
    plan = by_rules(found, config)
    return [replace(plan, notes=(*plan.notes, f"what is booked is by this host's rules: {why}"))]


def _never(answer: Answer, found: Mapping[str, str], plan: Plan) -> tuple[str, str]:
    """Why the job would wait for ever, and for what others of the user; sentences or empty."""
    if answer.start is None:
        return "", ""
    qos = (answer.told[0].get("qos") if answer.told else None) or found.get("qos")
    ever = slurm_answer.above_partition(found.get("time"), answer.start.partition, qos)
    limit = slurm_answer.limit_of(qos, _wants(plan, answer.start))
    if ever or limit is None:
        return ever, ""
    return (limit.sentence, "") if limit.ever else ("", limit.sentence)


def _placed(plan: Plan, config: Config, delayed: bool) -> Plan:
    """The plan with the card, whom it waits for unless an option delays it, and what else is on
    the node.
    """
    if plan.start is None:
        return plan
    if not plan.start.now():
        return replace(plan, behind="" if delayed else slurm_answer.behind(plan.start))
    tag = plan.decision.tag
    if tag is None or tag.whole or len(plan.start.nodes) != 1:
        return plan
    node = plan.start.nodes[0]
    use = slurm_answer.use_of(node)
    spread = config.slurm.placement == "spread"
    online = use.granted.get("online", 0)
    notes = plan.notes
    if tag.job_class == "offline" and online:
        notes += (
            f"online jobs hold {online} of each 100 % of a card on {node}: this job is suspended"
            " while one on its card works",
        )
    card = slurm_answer.card_of(use, plan.decision.shards, spread) if tag.cards == 1 else None
    return replace(plan, card=card, notes=notes)


def _tells(found: Mapping[str, str]) -> list[str]:
    """What --test-only does not look at, and so `starts` does not say."""
    said = {
        "hold": "--hold: it starts only after `scontrol release`",
        "dependency": f"--dependency={found.get('dependency')}: it starts only after that",
        "begin": f"--begin={found.get('begin')}: it starts only after that",
    }
    return [text for name, text in said.items() if name in found]


def _answer(line: Line, found: Mapping[str, str]) -> Answer | None:
    """sbatch's answer. --test-only takes -w for all nodes of the job and finds none for -N2 -w n1,
    which a submission completes: such a job is asked for without -w.
    """
    answer = slurm_answer.ask(line.command())
    named, nodes = found.get("nodelist"), re.match("[0-9]+", found.get("nodes", ""))
    if not answer or not slurm_answer.no_nodes(answer) or not named or not nodes:
        return answer
    try:
        less = len(expand(named)) < int(nodes[0])
    except ValueError:
        return answer
    free = slurm_answer.ask(line.command("--nodelist=")) if less else None
    if free is None or free.refused:
        return answer
    return replace(free, notes=(*free.notes, f"--test-only was asked without -w {named}"))


def _starts_now(line: Line, found: Mapping[str, str], config: Config, words: str) -> bool:
    """Whether the job would start now with these words behind its own, no limit in its way."""
    answer = slurm_answer.ask(line.command(words))
    if answer is None or not answer.start_now():
        return False
    return _never(answer, found, _plans(answer, found, config)[0]) == ("", "")


def by_slurm(line: Line, config: Config) -> list[Plan] | None:
    """The plans of the job's parts as Slurm answers; None if it does not. Raises RefusedError."""
    try:
        found = asked(line, os.environ)
    except LineError:  # sbatch finds its script and reads it by rules of its own
        found = dict(line.options)
    answer = _answer(line, found)
    if answer is None:
        return None
    if answer.refused:
        said = slurm_answer.explain(answer.refused, found.get("gres", ""))
        raise RefusedError(said, _rule(answer, found, config))
    plans = _plans(answer, found, config)
    ever, waits = _never(answer, found, plans[0])
    first = replace(plans[0], start=answer.start, waits=waits)
    if ever:
        raise RefusedError(ever, "never")
    if len(plans) == 1 and first.decision.tag and (waits or not answer.start_now()):
        starts = partial(_starts_now, line, found, config)
        first = replace(first, instead=neighbours(found, first.decision.tag, config, starts))
    queue = slurm_answer.waiting(answer.start) if answer.start else ""
    notes = (*first.notes, *answer.notes, *filter(None, [queue]))
    later = "; ".join(_tells(found))
    placed = _placed(replace(first, notes=notes, waits=waits or later), config, bool(later))
    return [placed, *(replace(each, start=answer.start) for each in plans[1:])]


def _rule(answer: Answer, found: Mapping[str, str], config: Config) -> str | None:
    """The rule of qgpu that refused, if one did."""
    try:
        by_rules(found, config)
    except RefusedError as error:
        return error.rule if str(error) == answer.refused else None
    except (LineError, LuaMissingError):
        return None
    return None
