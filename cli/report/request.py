"""What a job should ask for if it is run again. Pure.

Who repeats the job under the answer is refused no memory, and is sure of no less of the card than
it used: the answer is made of the most that it held and was refused, and of its busiest seconds,
with a reserve (docs/specs/reporting/report.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cli.report.model import GIB, UNEXPLAINED, GrantReport, JobReport
from gres.grant.store import RUN_BASE
from gres.units import MIB, format_mib

# The least reserve of memory, in bytes: contexts of other drivers are that much larger.
RESERVE_MEM = 256 * MIB
RESERVE_SHARE = 5  # the least reserve of the share, in percent of the card
WORTH = 3  # a share or a cap that is less than so many times the use is not worth a sentence
LEAST_CAP, LEAST_SHARE = 4 * GIB, 10  # nor is a smaller one
# Seconds for which a job must have run, if it did not end by itself, to show what it needs.
EARLY_S = 600
SHORT_S = 10  # seconds of a grant that show nothing of its use of time


@dataclass(frozen=True)
class Use:
    """What a job was granted last, and the most that any of its grants shows.

    `peak`, `reached` and `most` are None where they were not measured; `need` is what it would have
    held with a refused allocation, 0 if that is not known.
    """

    share: int
    cap: int
    mem_total: int
    job_class: str | None
    cards: int
    peak: int | None
    refused: int
    need: int
    reached: float | None  # mean of a grant, in percent of the card
    most: float | None  # of its busiest seconds


@dataclass(frozen=True)
class Request:
    """A share with its memory, on so many cards of a node; without a share whole cards."""

    share: int
    vram: int
    cards: int = 1


def last_run(job: JobReport) -> list[GrantReport]:
    """The grants since the job started last: those of an earlier run ended before that."""
    ends = [one.granted_at + one.granted_s for one in job.grants]
    began = max(ends, default=0.0) - (job.elapsed_s or 0)
    return [one for one, end in zip(job.grants, ends, strict=True) if end >= began]


def cards_of(grants: Sequence[GrantReport]) -> int:
    """The most cards that it had at once on one node."""
    return max(
        sum(
            one.node == at.node
            and 0 <= at.granted_at - one.granted_at < max(one.granted_s - 1e-6, 1e-9)
            for one in grants
        )
        for at in grants
    )


def unused(grant: GrantReport) -> bool:
    """Whether nothing was launched, held or refused there."""
    return grant.launches == 0 and not grant.mem_peak and not grant.denied


def unused_cards(job: JobReport) -> list[GrantReport]:
    """Of several cards at once those that its last run never used, if it used another of them."""
    last = [one for one in last_run(job) if one.state == "active" and one.fetched is not False]
    idle = [one for one in last if unused(one) and one.granted_s >= SHORT_S]
    several = last and cards_of(last) > 1 and ran_long(job)
    refused = any(one.denied for one in last)  # it may have ended before it came to the others
    return idle if several and not refused and len(idle) < len(last) else []


def use_of(job: JobReport) -> Use | None:
    """Of the grants that tasks took; None if its last run had none."""
    taken = [one for one in job.grants if one.state == "active" and one.fetched is not False]
    last = [one for one in last_run(job) if one in taken]
    if not last:
        return None
    now, idle, need = last[-1], unused_cards(job), max(one.mem_refused or 0 for one in taken)
    counted = last if any(one.denied for one in last) or need <= now.mem_cap else taken
    peaks = [one.mem_peak for one in last]
    long = [one for one in taken if one.granted_s >= SHORT_S]
    alike = len({one.mem_total for one in taken}) == 1  # percent of the same kind of card
    return Use(
        share=max(one.share for one in last),
        cap=max(one.mem_cap for one in last),
        mem_total=now.mem_total,
        job_class=now.job_class,
        cards=cards_of([one for one in last if one not in idle]),
        peak=None if None in peaks else max(one.mem_peak or 0 for one in taken),
        refused=sum(one.denied or 0 for one in counted),
        need=need,
        reached=_most([(one.reached, one in last) for one in long]),
        most=_most([(one.reached_most, one in last) for one in long]) if alike else None,
    )


def _most(values: Sequence[tuple[float | None, bool]]) -> float | None:
    """The largest one; None if one that has to be known is not."""
    known = [value for value, _ in values if value is not None]
    return None if (None, True) in values else max(known, default=None)


def ended_by_itself(job: JobReport) -> bool:
    """Whether it showed all that it needs: one that failed, or was cancelled early, did not."""
    state, _, _ = job.state.partition(" ")
    long = (job.elapsed_s or 0) >= EARLY_S
    return state in ("COMPLETED", "TIMEOUT") or (state == "CANCELLED" and long)


def ran_long(job: JobReport) -> bool:
    """Whether what it did not do until now says something."""
    return ended_by_itself(job) or (job.state == "RUNNING" and (job.elapsed_s or 0) >= EARLY_S)


def with_reserve(need: int) -> int:
    """Bytes: an eighth more, and whole GiB."""
    return -(-(need + max(need // 8, RESERVE_MEM)) // GIB) * GIB


def request_advice(job: JobReport) -> list[str]:
    """One sentence with the request that it should be run with the next time, or none."""
    use = use_of(job)
    if use is None:
        return []
    if use.refused:
        return [_refused(job, use)]
    found = (_more(job, use) if ran_long(job) else None) or (
        _less(job, use) if ended_by_itself(job) else None
    )
    if found is None or not _allowed(found[1], job):
        return []
    return [f"job {job.job_id}: {found[0]}: {written(found[1], job)} would do."]


def _allowed(request: Request, job: JobReport) -> bool:
    limits = job.limits
    fits = limits.usable is None or request.vram <= limits.usable
    return fits and limits.min_share <= request.share <= limits.max_share


def written(request: Request, job: JobReport) -> str:
    """As it is typed."""
    vram = format_mib(request.vram // MIB)
    if job.raw_id >= RUN_BASE:
        return f"qgpu run --share {request.share} --mem {vram}"
    model = f"{job.limits.model}:" if job.limits.model else ""
    if not request.share:
        return f"--gres=gpu:{model}{request.cards}"
    return f"--gres=qgpu:{model}{request.share},vram:{vram}{written_cards(request.cards)}"


def written_cards(cards: int) -> str:
    """The option for parts of several cards, behind a blank."""
    return f" --qgpu-cards={cards}" if cards > 1 else ""


def _refused(job: JobReport, use: Use) -> str:
    """Its cap was too small. The share stays: the use of time follows from the memory it lacked.

    It is the least that helps, because only the need at the largest refusal is known: what other
    processes would have asked for then, or the same one later, is not.
    """
    said = (
        f"job {job.job_id}: {use.refused} allocation(s) were refused at its cap of"
        f" {use.cap / GIB:.1f} GiB"
    )
    if not use.need:
        return f"{said}. How much it needed is not known. Ask for more with vram."
    said += f"; with the largest it would have held {use.need / GIB:.1f} GiB"
    usable = use.mem_total if job.limits.usable is None else job.limits.usable
    if use.need <= usable:
        vram = min(with_reserve(max(use.need, use.peak or 0)), usable)
        request = Request(use.share, max(vram, use.cap), use.cards)
        if _allowed(request, job):
            return (
                f"{said}: ask for {written(request, job)} or more, as it may need more after that."
            )
    elif use.need + UNEXPLAINED <= use.mem_total and job.raw_id < RUN_BASE:
        whole = written(Request(0, 0, use.cards), job)
        return f"{said}, and shares have {usable / GIB:.1f} GiB of a card: ask for {whole}."
    return f"{said}, and a card has {usable / GIB:.1f} GiB for shares."


def _more(job: JobReport, use: Use) -> tuple[str, Request] | None:
    """It used its share, and waited for more."""
    waits = [
        one.share_wait_s / one.granted_s
        for one in last_run(job)
        if one.share_wait_s and one.granted_s >= SHORT_S and (one.reached or 0) >= 0.8 * use.share
    ]
    if use.reached is None or max(waits, default=0) <= 0.25:
        return None
    reached = round(use.reached)
    share = min(max(-(-use.share * 3 // 2), reached), job.limits.max_share)
    if share <= use.share or share < reached:
        return None
    said = f"it used its share of {use.share} % and waited {max(waits):.0%} of its time for more"
    return said, Request(share, use.cap, use.cards)


def _less(job: JobReport, use: Use) -> tuple[str, Request] | None:
    """It used far less than it was granted of its share or of its memory.

    What its steps name for themselves (`srun --gres=qgpu:15`) stays, because the steps of a job
    that has less would be refused.
    """
    if not use.peak:
        return None
    need = max(use.peak, use.need)  # an earlier run was refused more than this one held
    mem = "gres/vram" not in job.parts and use.cap >= LEAST_CAP and need * WORTH <= use.cap
    firm = use.job_class in job.limits.firm and use.share >= LEAST_SHARE and not job.parts
    time = firm and use.most is not None and use.most * WORTH < use.share
    if not (mem or time):
        return None
    vram = max(min(with_reserve(need), use.cap), job.limits.least)
    if "gres/vram" in job.parts:
        vram = use.cap
    said = f"it held at most {use.peak / GIB:.1f} of {use.cap / GIB:.1f} GiB"
    share, reached = use.share, round(use.reached or 0)
    if time and use.most is not None:
        said += f" and used at most {use.most:.0f} of its {share} %"
        share = max(-int(-(use.most + max(use.most / 4, RESERVE_SHARE)) // 1), job.limits.min_share)
    elif reached > share:
        said += f" and used {reached} % of the card with its share of {share} %"
        share = reached
    return said, Request(share, vram, use.cards)
