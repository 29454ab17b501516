"""Decides a Prolog's request. Pure: the job, the node and qgpu.yaml go in.

Three outcomes:

* `Ignore`: the job does not use qgpu
* `Broken`: the node cannot serve it; the Prolog fails and Slurm drains the node
* `Grant`: active, whole, or refused where the job is at fault; the Prolog succeeds, and SPANK shows
  a refusal and starts nothing
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from enforcer.nvml.port import CardInfo
from gres.config.levels import CardPlan, plan_card
from gres.config.site import Config, JobClass, Node
from gres.grant.hookenv import HookJob
from gres.grant.identity import DeviceCard, IdentityError
from gres.grant.store import Grant, GrantCard, GrantError, clip_message
from gres.grant.tag import Tag
from gres.units import MIB, format_mib

NAMED = 4  # jobs named in one sentence; more are counted

Identify = Callable[[Node, Iterable[int]], tuple[DeviceCard, ...]]


@dataclass(frozen=True)
class Ignore:
    """The job holds no card and has no tag; an --exclusive job holds those that it finds."""


@dataclass(frozen=True)
class Broken:
    """The node cannot serve the job; `reason` is for its administrator and becomes the drain
    reason.
    """

    reason: str


@dataclass(frozen=True)
class Paths:
    """Paths in a grant for SPANK and the shim; all absolute."""

    run_dir: str
    driver: str
    shim: str


Decision = Ignore | Broken | Grant


def decide(
    job: HookJob,
    node: Node,
    config: Config,
    cards: Callable[[], tuple[CardInfo, ...]],
    paths: Callable[[], Paths],
    identify: Identify,
    now_ns: int,
    plan: Callable[[int, str], CardPlan] | None = None,
) -> Decision:
    """The decision for a Prolog. `now_ns` is CLOCK_REALTIME.

    `plan` gives the settings of a card by index and UUID, by default those of qgpu.yaml. `cards`
    asks the driver and `paths` searches its library, both only if needed. They may raise NvmlError
    and BrokenNodeError. An IdentityError of `identify` becomes a `Broken`.
    """
    if job.node != node.name:
        return Broken(
            f"the prolog of job {job.job_id} ran for node {job.node}, but this qgpud serves"
            f" {node.name}"
        )
    if not job.gpus and (job.tag is None or job.tag.node) and not job.problem:
        return Ignore()
    fault = job_fault(job, node)
    if fault:
        return refused(job, fault, now_ns)
    rules = plan or (lambda index, uuid: plan_card(config, node, index, uuid))
    try:
        found = tuple(_granted_card(job, card, cards(), rules) for card in identify(node, job.gpus))
    except (IdentityError, CardFaultError) as error:
        return Broken(str(error))
    assert job.tag is not None  # job_fault refuses a job without one
    too_big = _memory_fault(job, job.tag, node)
    if too_big:
        return refused(job, too_big, now_ns)
    return _grant(job, job.tag, found, config, paths(), now_ns)


class CardFaultError(RuntimeError):
    """A configured card is absent or another one; the text names it."""


def job_fault(job: HookJob, node: Node) -> str:
    """The job's fault, as a sentence for its user; empty if there is none."""
    if job.problem:
        return (
            f"what Slurm said about the share of job {job.job_id} cannot be used: {job.problem}."
            " Submit the job again with --gres=qgpu:30; if that repeats, tell the administrators."
        )
    if job.unanswered:
        return (
            f"job {job.job_id} holds a GPU of {node.name} and carries no tag of qgpu's job_submit"
            " plugin, and slurmctld"
            " did not tell in time whether it has whole cards. Submit it again."
        )
    if job.tag is None:
        return (
            f"job {job.job_id} holds a GPU of {node.name} without a grant: it did not pass qgpu's"
            " job_submit plugin, or its comment was changed. Ask for a share with --gres=qgpu:30,"
            " or for a whole card with --gres=gpu:1."
        )
    if not job.gpus:
        return (
            f"job {job.job_id} asked for"
            f" {'whole cards' if job.tag.whole else f'qgpu:{job.tag.share}'}, but Slurm"
            f" gave it no card on {node.name}. Submit it again with"
            f" --gres={'gpu:1' if job.tag.whole else 'qgpu:30'};"
            " if that repeats, tell the administrators."
        )
    if not job.tag.whole and len(job.gpus) != job.tag.cards:
        return (
            f"job {job.job_id} has a share of {job.tag.cards} card(s), but Slurm gave it parts of"
            f" {len(job.gpus)} on {node.name}. Submit it again; if that repeats, tell the"
            " administrators: slurm.conf has MULTIPLE_SHARING_GRES_PJ, which needs slurm.multi_card"
            " in qgpu.yaml."
        )
    return ""


def _memory_fault(job: HookJob, tag: Tag, node: Node) -> str:
    usable = min(node.cards[index].usable for index in job.gpus)
    if tag.whole or tag.mem <= usable:
        return ""
    return (
        f"job {job.job_id} asked for vram:{format_mib(tag.mem)}, but a card of {node.name} has"
        f" {format_mib(usable)} for jobs. Submit it again with vram:{format_mib(usable)} or"
        " less."
    )


def _granted_card(
    job: HookJob,
    card: DeviceCard,
    present: tuple[CardInfo, ...],
    plan: Callable[[int, str], CardPlan],
) -> GrantCard:
    """The card that Slurm gave, as the driver reports it now. Raises CardFaultError."""
    info = next((info for info in present if info.place == card.place), None)
    spec = card.spec
    if info is None:
        gone = f"none with minor number {card.minor}"
        if card.instance is not None:
            gone += f" and GPU instance {card.instance.gi} with compute instance {card.instance.ci}"
        raise CardFaultError(
            f"card {spec.index} ({spec.path}) does not answer: NVML sees {len(present)} card(s),"
            f" {gone}"
        )
    if info.mem_total < spec.usable * MIB:
        raise CardFaultError(
            f"card {spec.index} ({spec.path}) has {format_mib(info.mem_total // MIB)} of memory,"
            f" but qgpu.yaml says that a {spec.model} has {format_mib(spec.memory)}"
        )
    tag = job.tag
    share, cap = (tag.share, tag.mem * MIB) if tag and not tag.whole else (100, info.mem_total)
    governed = not tag or plan(spec.index, info.uuid).governed(tag.job_class)
    if not governed:
        cap = info.mem_total  # isolation none: no cap, but still accounted
    cap = min(cap, info.mem_total)
    return GrantCard(info.uuid, card.minor, spec.index, share, cap, info.mem_total, governed)


def _grant(
    job: HookJob,
    tag: Tag,
    cards: tuple[GrantCard, ...],
    config: Config,
    paths: Paths,
    now_ns: int,
) -> Decision:
    try:
        return Grant(
            job_id=job.job_id,
            uid=job.uid,
            gid=job.gid,
            node=job.node,
            state="whole" if tag.whole else "active",
            job_class=tag.job_class,
            created_ns=now_ns,
            cards=cards,
            run_dir=paths.run_dir,
            driver_path=paths.driver,
            shim_path=paths.shim,
            reclaimable=tag.host is not None and reclaimable(tag.job_class, cards, config),
        )
    # a path too long or too many cards: for the administrator to repair
    except GrantError as error:
        return Broken(f"the grant of job {job.job_id} cannot be made: {error}")


def reclaimable(job_class: JobClass | None, cards: Iterable[GrantCard], config: Config) -> bool:
    """Whether memory of a job of the class may be taken back: not without gates, by which it is
    held.
    """
    return config.reclaims(job_class) and all(card.governed for card in cards)


def refused(job: HookJob | Grant, sentence: str, now_ns: int) -> Grant:
    """A grant that starts no task and gives the user the reason."""
    return Grant(
        job_id=job.job_id,
        uid=job.uid,
        gid=job.gid,
        node=job.node,
        state="refused",
        created_ns=now_ns,
        message=clip_message(sentence),
    )


def taken(grant: Grant, others: Iterable[Grant], doubtful: Collection[int] = ()) -> str:
    """The refusal if Slurm gave a whole card to two jobs, as a sentence for the user; else empty.

    Slurm before 23.11.5 does so with gpu:N. job_submit asks for shard:100 there, but jobs queued
    before it was active did not.
    """
    for other in others:
        # a job that was moved here makes room
        both = {card.uuid for card in other.cards if not card.home} & {
            card.uuid for card in grant.cards
        }
        if other.job_id != grant.job_id and both and "whole" in (grant.state, other.state):
            card = next(card for card in grant.cards if card.uuid in both)
            held = "it as a whole" if other.state == "whole" else "a share of it"
            cause = (
                "Submit it again; if that repeats, tell the administrators: Slurm before 23.11.5"
                " gives cards away twice where jobs ask for gpu:N without qgpu's job_submit."
            )
            return (
                f"Slurm gave card {card.index} of {grant.node} to job {grant.job_id}, though job"
                f" {other.job_id} holds {held}. {_doubt([other.job_id], doubtful) or cause}"
            )
    return ""


def overbooked(grant: Grant, others: Iterable[Grant], doubtful: Collection[int] = ()) -> str:
    """The refusal if caps of jobs that reserve exceed a card's memory, as a sentence for the user;
    else empty.

    Slurm's shards keep the sum of these caps within the card, except for a job that bypassed
    job_submit. Memory promised to others must stay theirs then. A cap of the whole card (isolation
    `none`) does not count, nor does a reclaimable one (granting/reclaimable.py).
    """
    if grant.reclaimable:
        return ""
    reserving = [o for o in others if o.job_id != grant.job_id and not o.reclaimable]
    found = [(o.job_id, held) for o in reserving for held in o.cards]
    standing = [(job, held) for job, held in found if held.mem_cap < held.mem_total]
    for card in grant.cards:
        beside = {job: held.mem_cap for job, held in standing if held.uuid == card.uuid}
        caps = sum(beside.values())
        if caps and caps + card.mem_cap > card.mem_total > card.mem_cap:
            own, held_by_all, size = (
                format_mib(n // MIB) for n in (card.mem_cap, caps, card.mem_total)
            )
            cause = (
                "A job's gres did not pass qgpu's job_submit plugin. Submit it again; tell the"
                " administrators."
            )
            return (
                f"job {grant.job_id} is promised {own} of card {card.index} of {grant.node}, but"
                f" {held_by_all} of its {size} belong to {named_jobs(beside)}."
                f" {_doubt(beside, doubtful) or cause}"
            )
    return ""


def _doubt(jobs: Iterable[int], doubtful: Collection[int]) -> str:
    """What to do if it is not known whether these jobs still run; else empty."""
    unsure = [job for job in jobs if job in doubtful]
    if not unsure:
        return ""
    return (
        f"Nothing of {named_jobs(unsure)} runs there, and slurmctld did not tell whether"
        f" {'it has' if len(unsure) == 1 else 'they have'} ended. Submit it again; if that repeats,"
        " tell the administrators: qgpu doctor on the node says more."
    )


def named_jobs(jobs: Iterable[int]) -> str:
    """Such as "job 7" or "jobs 7, 8, 9 and 2 more"."""
    first, *more = sorted(jobs)
    if not more:
        return f"job {first}"
    listed = ", ".join(map(str, (first, *more[: NAMED - 1])))
    left = len(more) - NAMED + 1
    return f"jobs {listed}{f' and {left} more' if left > 0 else ''}"


def same_promise(old: Grant, new: Grant) -> bool:
    """Whether two grants differ only in their date: the same Prolog came twice."""
    return _undated(old) == _undated(new)


def _undated(grant: Grant) -> tuple[object, ...]:
    return (
        grant.job_id,
        grant.uid,
        grant.gid,
        grant.node,
        grant.state,
        grant.job_class,
        grant.message,
        [(card.home or card.uuid, card.share, card.governed) for card in grant.cards],
        [card.mem_cap for card in grant.cards],
        grant.run_dir,
        grant.driver_path,
        grant.shim_path,
        grant.reclaimable,
    )
