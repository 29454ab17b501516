"""Advice on jobs: sentences that name the flag or the setting to change. Pure."""

from __future__ import annotations

from datetime import datetime

from cli.report.model import GIB, GrantReport, JobReport

SHOWN_RECLAIMS = 10  # intervals of one grant that are listed, the last ones; --json has all
LEAST_IDLE_S, LEAST_IDLE = 1.0, 0.05  # seconds, and part of the time granted; less is not said


def _gib(count: float) -> str:
    return f"{count / GIB:.1f} GiB"


def _more_memory(cap: int) -> str:
    """The next whole GiB that is at least an eighth more."""
    return f"{-(-cap * 9 // (8 * GIB))}G"


def advice(job: JobReport) -> list[str]:
    """Sentences that name the flag to change; empty if nothing is remarkable."""
    return [
        *_limit_advice(job),
        *(line for grant in job.grants for line in _grant_advice(job, grant)),
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


def _reclaim_advice(job: JobReport, grant: GrantReport) -> list[str]:
    """Where its memory was, interval by interval."""
    if not grant.reclaims:
        return []
    times = len(grant.reclaims)
    lines = [
        f"job {job.job_id}: its memory was away from card {grant.card} of {grant.node} {times}"
        f" time(s), {grant.reclaimed_s or 0:.0f} s in all."
    ]
    for one in grant.reclaims[-SHOWN_RECLAIMS:]:
        when = datetime.fromtimestamp(one.left_at).strftime("%Y-%m-%dT%H:%M:%S")
        back = "it is away" if one.back_at is None else f"{one.back_at - one.left_at:.1f} s"
        took = [
            f"{name} {seconds:.1f} s"
            for name, seconds in (("leaving", one.leave_s), ("returning", one.return_s))
            if seconds is not None
        ]
        more = f" ({', '.join(took)})" if took else ""
        result = "" if one.result in (None, "returned") else f", {one.result}"
        lines.append(
            f"job {job.job_id}: {_gib(one.mem or 0)} left at {when} for {one.why}:"
            f" {back}{more}{result}."
        )
    return lines


def _grant_advice(job: JobReport, grant: GrantReport) -> list[str]:
    return [*_reclaim_advice(job, grant), *_idle_advice(job, grant), *_use_advice(job, grant)]


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


def _idle_advice(job: JobReport, grant: GrantReport) -> list[str]:
    """What idle_release cost."""
    idle = idle_percent(grant.suspended_idle_s, grant.suspended_s, grant.granted_s)
    if idle is None:
        return []
    return [
        f"the card was idle {idle:.0f} % of the time that job {job.job_id} waited: idle_release."
        f" {use_auto(grant.card, grant.node)}"
    ]


def _use_advice(job: JobReport, grant: GrantReport) -> list[str]:
    if grant.fetched is False:
        return [_unfetched(job, grant)]
    if grant.escaped:
        return [
            f"job {job.job_id}: the driver saw {_gib(grant.nvml_mem_peak or 0)} held by a program"
            " that ran without qgpu's library (LD_PRELOAD was emptied?). Its use is not in these"
            " figures."
        ]
    return [*_memory_advice(job, grant), *_time_advice(job, grant)]


def _memory_advice(job: JobReport, grant: GrantReport) -> list[str]:
    if grant.state != "active":
        return []
    if grant.denied:
        return [
            f"job {job.job_id}: {grant.denied} allocation(s) were refused at its cap of"
            f" {_gib(grant.mem_cap)}. Ask for more with"
            f" --gres=qgpu:{grant.share},vram:{_more_memory(grant.mem_cap)}."
        ]
    # A running job may yet need its memory, and one without launches shows nothing.
    if (
        not grant.ended
        or not grant.mem_peak
        or grant.mem_cap < 4 * GIB
        or grant.mem_peak * 3 > grant.mem_cap
    ):
        return []
    enough = max(1, -(-grant.mem_peak * 5 // (4 * GIB)))
    return [
        f"job {job.job_id}: it used at most {_gib(grant.mem_peak)} of {_gib(grant.mem_cap)}."
        f" --gres=qgpu:{grant.share},vram:{enough}G would have been enough, and may start"
        " earlier."
    ]


def _time_advice(job: JobReport, grant: GrantReport) -> list[str]:
    if grant.state != "active" or grant.reached is None or grant.granted_s < 10:
        return []
    if grant.denied:
        return []  # its use of time follows from the memory that it lacked
    if grant.launches == 0:
        return [
            f"job {job.job_id}: it never used its card. Leave out --gres=qgpu if it does not need"
            " one."
        ]
    suspended = (grant.suspended_s or 0) / grant.granted_s
    if grant.job_class == "offline" and suspended > 0.25:
        return [
            f"job {job.job_id}: online jobs suspended it for {suspended:.0%} of its time."
            " If it must not wait, ask for an online QOS with --qos."
        ]
    waited = (grant.share_wait_s or 0) / grant.granted_s
    if waited > 0.25 and grant.reached >= 0.8 * grant.share:
        more = min(100, -(-grant.share * 3 // 2))
        return [
            f"job {job.job_id}: it used its share and waited {waited:.0%} of its time for more."
            f" Ask for more with --gres=qgpu:{more}."
        ]
    if grant.job_class == "online" and grant.reached * 3 < grant.share and grant.share >= 10:
        less = max(1, -(-int(grant.reached * 5) // 4))
        return [
            f"job {job.job_id}: it reached {grant.reached:.0f} % of the card, with {grant.share} %"
            f" granted. --gres=qgpu:{less} would do on average; keep more if its bursts must be"
            " fast."
        ]
    return []
