"""The plan of a job as this cluster's Slurm answers: nothing that it decides is decided here."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from dataclasses import replace

from cli.site import slurm_answer, slurm_limits
from cli.site.neighbours import neighbours
from cli.site.planned import Plan, RefusedError, by_rules, plan_of, ranks
from cli.site.sbatch_line import Line, LineError, asked, special
from cli.site.slurm_answer import NOW_S, Answer, Queue, Start
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
    ever = slurm_limits.above_partition(found.get("time"), answer.start.partition, qos)
    limit = slurm_limits.limit_of(qos, _wants(plan, answer.start))
    if ever or limit is None:
        return ever, ""
    return (limit.sentence, "") if limit.ever else ("", limit.sentence)


def _placed(plan: Plan, config: Config) -> Plan:
    """The plan with the card, whom it waits for, and what else is on the node."""
    if plan.start is None or plan.parts:
        return plan
    if not plan.start.free:
        known = plan.start.free is False and not plan.queue.waiting
        return replace(plan, behind=slurm_answer.behind(plan.start) if known else "")
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


def _now(start: Start, queue: Queue) -> bool | None:
    """Whether it starts at once; None where jobs wait that may go first, perhaps unseen ones."""
    if not start.free:
        return start.free
    unseen = not queue.waiting and start.at > time.time() + NOW_S
    return None if queue.eligible or unseen else True


def _has_room(
    answer: Answer | None, found: Mapping[str, str], config: Config, queue: Queue
) -> bool:
    """Whether nodes have now what it asks for, no limit in its way."""
    if answer is None or not (answer := slurm_answer.asked_again(answer)).free():
        return False
    seen = queue.eligible or (answer.start and _now(answer.start, queue))
    return bool(seen) and _never(answer, found, _plans(answer, found, config)[0]) == ("", "")


def _timed(
    line: Line, found: Mapping[str, str], config: Config, answer: Answer, plan: Plan
) -> Plan:
    """The plan with when it starts, and what would start sooner."""
    tries: list[list[tuple[str, Answer | None]]] = []
    if plan.decision.tag and not plan.parts and (plan.waits or not answer.free()):
        # All are asked before the first is asked again, because each waits from its own question.
        tries = [
            [(words, slurm_answer.ask(line.command(words))) for words in kind]
            for kind in neighbours(found, plan.decision.tag, config)
        ]
    start = slurm_answer.asked_again(answer).start
    if start is None:
        return plan
    queue = slurm_answer.queue(start.partition)
    now = None if plan.parts else _now(start, queue)
    plan = replace(plan, start=replace(start, at=int(time.time())) if now else start, now=now)
    plan = replace(plan, queue=queue, notes=(*plan.notes, *filter(None, [queue.sentence()])))
    if start.free and not plan.waits:
        return plan
    named = (
        next((words for words, asked in kind if _has_room(asked, found, config, queue)), None)
        for kind in tries
    )
    return replace(plan, instead=tuple(filter(None, named)))


def by_slurm(line: Line, config: Config) -> list[Plan] | None:
    """The plans of the job's parts as Slurm answers; None if it does not. Raises RefusedError,
    NoAnswerError, and LineError for a script that sbatch would wait for.
    """
    try:
        found = asked(line, os.environ)
    except LineError:  # sbatch finds its script and reads it by rules of its own
        if line.script is not None and special(line.script):
            raise
        found = dict(line.options)
    answer = _answer(line, found)
    if answer is None:
        return None
    if answer.refused:
        said = slurm_limits.explain(answer.refused, found.get("gres", ""))
        raise RefusedError(said, _rule(answer, found, config))
    plans = _plans(answer, found, config)
    ever, waits = _never(answer, found, plans[0])
    if ever:
        raise RefusedError(ever, "never")
    parts = len(plans) > 1 or (":", "") in line.options
    notes = (*plans[0].notes, *answer.notes)
    first = replace(plans[0], start=answer.start, waits=waits, notes=notes, parts=parts)
    later = "; ".join(_tells(found))
    if later:
        first = replace(first, waits=waits or later)
    else:
        first = _timed(line, found, config, answer, first)
    more = (replace(each, start=first.start, parts=True) for each in plans[1:])
    return [_placed(first, config), *more]


def _rule(answer: Answer, found: Mapping[str, str], config: Config) -> str | None:
    """The rule of qgpu that refused, if one did."""
    try:
        by_rules(found, config)
    except RefusedError as error:
        return error.rule if str(error) == answer.refused else None
    except (LineError, LuaMissingError):
        return None
    return None
