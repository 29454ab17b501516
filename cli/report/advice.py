"""Advice on jobs: sentences that name the flag or the setting to change. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from cli.report.absences import away_sentences
from cli.report.model import GIB, GrantReport, JobReport
from cli.report.request import (
    SHORT_S,
    cards_of,
    last_run,
    ran_long,
    request_advice,
    unused,
    unused_cards,
    written_cards,
)

LEAST_IDLE_S, LEAST_IDLE = 1.0, 0.05  # seconds, and part of the time granted; less is not said
SHOWN = 10  # jobs that one line names; the others are counted


def advice(*jobs: JobReport) -> list[str]:
    """Sentences that name the flag to change, in the order of the jobs; empty if nothing is
    remarkable. What concerns a card rather than a job is said once.
    """
    of_jobs = [[*_limit_advice(job), *away_sentences(job), *_use_advice(job)] for job in jobs]
    return [*(line for lines in of_jobs for line in lines), *_idle_advice(jobs)]


def has_request(job: JobReport) -> bool:
    """Whether the advice says what to ask for the next time."""
    return not any(one.escaped for one in job.grants) and bool(_request(job))


def some(words: Sequence[str], shown: int = SHOWN) -> str:
    """`1, 2, 3 and 24 more`."""
    left = len(words) - shown
    return ", ".join(words[:shown]) + (f" and {left} more" if left > 0 else "")


def _limit_advice(job: JobReport) -> list[str]:
    """What was done about the time that online jobs took."""
    lines = []
    if job.extended_s:
        lines.append(
            f"job {job.job_id}: its time limit was extended by {job.extended_s // 60} min for the"
            " time that online jobs suspended it."
        )
    if job.requeued:
        lines.append(
            f"job {job.job_id}: it was requeued {job.requeued} time(s), since online jobs suspended"
            " it for longer than its QOS allows. If it must not wait, ask for an online QOS with"
            " --qos."
        )
    return lines


def _unfetched(job: JobReport, grant: GrantReport) -> str:
    if grant.nvml_mem_peak:
        return (
            f"job {job.job_id}: its programs used card {grant.card} of {grant.node} without limits,"
            " since no task took the job's grant there. Tell the administrators: Slurm does not"
            " load qgpu's SPANK plugin on that node."
        )
    return (
        f"job {job.job_id}: no task took its grant on {grant.node}, so nothing ran under it there."
        " That is so where the job was cancelled early, where salloc started no srun, and on nodes"
        " that no srun of the job reached."
    )


def idle_percent(idle_s: float | None, waited_s: float | None, granted_s: float) -> float | None:
    """Part of the time waited for online in which the card was idle, if it is worth a sentence."""
    if not idle_s or not waited_s or idle_s < max(LEAST_IDLE_S, LEAST_IDLE * granted_s):
        return None
    return 100 * idle_s / waited_s


def use_auto(card: int, node: str) -> str:
    """What shortens the idle time."""
    return (
        f"If idle_release is not auto yet, root on {node} may try:"
        f" qgpu card set {card} idle_release=auto"
    )


def _idle_advice(jobs: Sequence[JobReport]) -> list[str]:
    """What idle_release cost, by card."""
    of_card: dict[tuple[str, int], list[tuple[JobReport, float, float]]] = {}
    for job in jobs:
        for place in dict.fromkeys((one.node, one.card) for one in job.grants):
            grants = [one for one in job.grants if (one.node, one.card) == place]
            idle = sum(one.suspended_idle_s or 0 for one in grants)
            waited = sum(one.suspended_s or 0 for one in grants)
            if idle_percent(idle, waited, sum(one.granted_s for one in grants)) is not None:
                of_card.setdefault(place, []).append((job, idle, waited))
    return [_idle_sentence(*place, found) for place, found in of_card.items()]


def _idle_sentence(node: str, card: int, found: Sequence[tuple[JobReport, float, float]]) -> str:
    names = some([job.job_id for job, _, _ in found])
    percent = 100 * sum(idle for _, idle, _ in found) / sum(waited for _, _, waited in found)
    auto = any((node, card) in job.limits.auto for job, _, _ in found)
    return (
        f"card {card} of {node} was idle {percent:.0f} % of the time that job"
        f"{'s' * (len(found) > 1)} {names} waited: idle_release"
        + (", which is auto there." if auto else f". {use_auto(card, node)}")
    )


def _use_advice(job: JobReport) -> list[str]:
    """One sentence for the whole job on what to ask for: its grants differ by card and by run."""
    escaped = [grant for grant in job.grants if grant.escaped]
    if escaped:
        most = max(grant.nvml_mem_peak or 0 for grant in escaped)
        return [
            f"job {job.job_id}: the driver saw {most / GIB:.1f} GiB held by a program that ran"
            " without qgpu's library (LD_PRELOAD was emptied?). Its use is not in these figures."
        ]
    unfetched = [_unfetched(job, grant) for grant in job.grants if grant.fetched is False]
    return [*dict.fromkeys(unfetched), *_request(job), *_suspended(job)]


def _request(job: JobReport) -> list[str]:
    """What to ask for the next time."""
    return _unused(job) or [*_unused_cards(job), *request_advice(job)]


def _unused(job: JobReport) -> list[str]:
    """It launched nothing and held nothing, on none of its cards."""
    taken = [one for one in job.grants if one.state == "active" and one.fetched is not False]
    idle = all(map(unused, taken))
    if not (taken and idle and ran_long(job)) or sum(one.granted_s for one in taken) < SHORT_S:
        return []
    return [
        f"job {job.job_id}: it never used its card. Leave out --gres=qgpu if it does not need one."
    ]


def _unused_cards(job: JobReport) -> list[str]:
    """It used some of its cards, and others never."""
    idle = unused_cards(job)
    if not idle:
        return []
    names = some([f"card {one.card} of {one.node}" for one in idle])
    left = cards_of([one for one in last_run(job) if one not in idle])
    fewer = f"write{written_cards(left)}" if left > 1 else "leave out --qgpu-cards"
    return [f"job {job.job_id}: it never used {names}: {fewer}, if it needs no more cards."]


def _suspended(job: JobReport) -> list[str]:
    """How much of the time that it ran, as ELAPSED and SUSPENDED_S say it."""
    grants = [one for one in last_run(job) if one.state == "active"]
    if job.job_class != "offline" or not grants or not job.elapsed_s:
        return []
    cards = sum(
        cards_of([one for one in grants if one.node == n]) for n in {g.node for g in grants}
    )
    lost = sum(one.suspended_s or 0 for one in grants) / cards
    if lost <= 0.25 * job.elapsed_s or any(one.denied for one in grants):
        return []
    return [
        f"job {job.job_id}: online jobs suspended it for {min(1.0, lost / job.elapsed_s):.0%} of"
        " the time that it ran. If it must not wait, ask for an online QOS with --qos."
    ]


def advised_line(jobs: Sequence[str], width: int | None) -> str:
    """The command that shows the requests to make next time: of the last SHOWN jobs, or of fewer
    that fit into `width` places.
    """
    line = ""
    for count in range(min(SHOWN, len(jobs)), 0, -1):
        some = f" (last {count} of {len(jobs)})" if len(jobs) > count else ""
        line = f"* what to ask for next time{some}: qgpu report {','.join(jobs[-count:])}"
        if width is None or len(line) <= width:
            break
    return line
