"""Equal parts of several cards in one job (docs/specs/request.md, docs/adr/0015): what `slurm.multi_card` makes of an
accepted share. The same in Lua, inside slurmctld: slurm_plugin/lua/qgpu_cards.lua.

On such a cluster every share is asked for per task, one task for each card, since Slurm splits what is asked for per
node over two cards as soon as no single one has enough.
"""

from __future__ import annotations

import re
from dataclasses import replace

from gres.entries import Entry, parse_entries, parse_entry
from gres.request import Decision, RequestError, Submission, decide, most_cards, refuse, tagged
from gres.tables import Tables
from gres.tag import Tag

OURS = ("qgpu", "qgpu_mem", "shard", "mps")
MAX_CARDS = 16  # of one job on one node; a grant holds no more


def decide_cards(job: Submission, tables: Tables) -> Decision:
    """Judge a submission with its options `--qgpu-mem` and `--qgpu-cards`, and its tasks. Raises RequestError."""
    if job.qgpu_mem:
        job = replace(job, gres=_joined(job.gres, f"qgpu_mem:{job.qgpu_mem}"))
    job = native(job, tables)
    return _spread(job, decide(job, tables), tables)


def native(job: Submission, tables: Tables) -> Submission:
    """`--tres-per-task=gres/qgpu:30` with K tasks per node, as `--gres=qgpu:30 --qgpu-cards=K`."""
    found = parse_entries(job.tres_per_task)
    if not tables.multi_card or not found.qgpu or parse_entries(job.gres).qgpu:
        return job
    moved = [*found.qgpu, *found.mem, *found.shared]
    tasks = _tasks(job) or 1
    if tasks % 1 or (job.cards and job.cards != f"{tasks:g}"):
        raise refuse(tables, "cards_tasks", found.qgpu[0].text, cards=job.cards or 2, what=f"{tasks:g}")
    if found.shared:  # the mark of our cli_filter: a stand-alone srun, whose step cannot be told from its job
        raise refuse(tables, "cards_srun", found.qgpu[0].text, cards=f"{tasks:g}")
    return replace(
        job,
        gres=_joined(job.gres, *(entry.text for entry in moved)),
        tres_per_task=",".join(rest_of(job.tres_per_task)),
        tres_bind="+".join(_foreign_binds(job.tres_bind)),
        cards=f"{tasks:g}",
    )


def _foreign_binds(bind: str | None) -> list[str]:
    """What is not about ours in what clients write for themselves: `gres/qgpu:per_task:30+...`."""
    pieces = [(piece, parse_entry(piece)) for piece in (bind or "").split("+") if piece]
    return [piece for piece, entry in pieces if entry.name not in OURS or entry.parts[:1] != ("per_task",)]


def rest_of(tres: str | None) -> list[str]:
    """The pieces of a TRES string that are none of ours, as the user wrote them."""
    return [piece for piece in (tres or "").split(",") if piece and parse_entry(piece).name not in OURS]


def _joined(*parts: str | None) -> str:
    return ",".join(part for part in parts if part)


def _tasks(job: Submission) -> float | None:
    """Tasks per node that the user fixed, None if he left it open."""
    if job.tasks_per_node:
        return job.tasks_per_node
    return job.tasks / (job.nodes or 1) if job.tasks else None


def _times(entry: Entry, count: int) -> str:
    """`qgpu:online:30` twice is `qgpu:online:60`."""
    number = re.match("[0-9]+", entry.parts[-1])
    return re.sub("[0-9]+([A-Za-z]*)$", rf"{int(number[0] if number else 0) * count}\1", entry.text)


def _count(job: Submission, tag: Tag, model: str | None, tables: Tables) -> int:
    """Cards of each node. Raises RequestError where the cluster, the nodes or the tasks do not fit."""
    request = f"qgpu:{tag.share}"
    said = job.cards or "1"
    cards = int(said) if re.fullmatch("[0-9]{1,2}", said) else 0
    if not 1 <= cards <= MAX_CARDS:
        raise refuse(tables, "cards_never", "--qgpu-cards", cards=2)
    if cards == 1 and not tables.multi_card:
        return 1
    if not tables.multi_card:
        raise refuse(tables, "cards_never", request, cards=cards)
    top = most_cards(tables, model)
    if cards > top:
        raise refuse(tables, "cards_few", request, cards=cards, top=top, share=tag.share)
    tasks = _tasks(job)
    # One task is what clients say for a job without -n; for several cards it becomes one for each.
    if tasks and tasks != cards and tasks * (job.nodes or 1) > 1:
        raise refuse(tables, "cards_tasks", request, cards=cards, what=f"{tasks:g}")
    return cards


def _spread(job: Submission, decision: Decision, tables: Tables) -> Decision:
    tag = decision.tag
    if tag is None or tag.whole:
        if job.cards and job.cards.isdigit() and int(job.cards) > 1:
            raise refuse(tables, "cards_whole", f"--qgpu-cards={job.cards}", cards=job.cards)
        return decision
    cards = _count(job, tag, decision.model, tables)
    if not tables.multi_card:
        return decision
    found = parse_entries(decision.gres)
    own = [_times(entry, cards) for entry in (*found.qgpu, *found.mem)]
    new = replace(tag, cards=cards)
    text = tagged(new, getattr(decision, tables.tag_field), tables)
    fields = {"comment": decision.comment, "extra": decision.extra, tables.tag_field: text}
    return replace(
        decision,
        gres=_joined(*own, *(entry.text for entry in found.rest)),
        tag=new,
        tres_per_task=_joined(f"gres/{found.shared[0].text}", *rest_of(job.tres_per_task)),
        tasks_per_node=cards,
        tasks=cards * (job.nodes or 1),
        comment=fields["comment"],
        extra=fields["extra"],
    )


__all__ = ["MAX_CARDS", "RequestError", "decide_cards", "native"]
