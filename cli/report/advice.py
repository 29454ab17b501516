"""Advice on jobs: sentences that name the flag or the setting to change. Pure."""

from __future__ import annotations

from cli.report.absences import away_sentences
from cli.report.model import GIB, GrantReport, JobReport
from cli.report.request import SHORT_S, cards_of, last_run, ran_long, request_advice

LEAST_IDLE_S, LEAST_IDLE = 1.0, 0.05  # seconds, and part of the time granted; less is not said


def advice(job: JobReport) -> list[str]:
    """Sentences that name the flag to change; empty if nothing is remarkable."""
    return [
        *_limit_advice(job),
        *away_sentences(job),
        *_idle_advice(job),
        *_use_advice(job),
    ]


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


def _idle_advice(job: JobReport) -> list[str]:
    """What idle_release cost, by card."""
    of_card: dict[tuple[str, int], list[GrantReport]] = {}
    for grant in job.grants:
        of_card.setdefault((grant.node, grant.card), []).append(grant)
    lines = []
    for (node, card), grants in of_card.items():
        idle = idle_percent(
            sum(one.suspended_idle_s or 0 for one in grants),
            sum(one.suspended_s or 0 for one in grants),
            sum(one.granted_s for one in grants),
        )
        if idle is not None:
            lines.append(
                f"the card was idle {idle:.0f} % of the time that job {job.job_id} waited:"
                f" idle_release. {use_auto(card, node)}"
            )
    return lines


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
    return [
        *dict.fromkeys(unfetched),
        *(_unused(job) or request_advice(job)),
        *_suspended(job),
    ]


def _unused(job: JobReport) -> list[str]:
    """It launched nothing and held nothing, on none of its cards."""
    taken = [one for one in job.grants if one.state == "active" and one.fetched is not False]
    unused = all(one.launches == 0 and not one.mem_peak and not one.denied for one in taken)
    if not (taken and unused and ran_long(job)) or sum(one.granted_s for one in taken) < SHORT_S:
        return []
    return [
        f"job {job.job_id}: it never used its card. Leave out --gres=qgpu if it does not need one."
    ]


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
