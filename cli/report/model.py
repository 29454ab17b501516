"""The report as data: jobs of sacct joined with rows of the ledgers. Pure.

None means not measured everywhere, 0 measured and zero. Seconds are floats, memory is bytes, shares
are percent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace

from cli.report.limits import Limits, limits_of
from enforcer.ledger.reclaims import Reclaim
from enforcer.ledger.schema import FINE_S
from enforcer.ledger.store import Usage
from gres.config.site import Config
from gres.grant.extension import Given
from gres.units import UnitError, parse_size
from slurm_plugin.accounting.sacct import Detail, SacctJob, parse_memory

GIB = 1 << 30
# What the driver takes for contexts and modules besides the job's own allocations; more than this
# is not explained.
UNEXPLAINED = 1 * GIB


@dataclass(frozen=True)
class ReclaimReport:
    """One interval in which the memory of a job was away from a card."""

    left_at: float
    back_at: float | None
    mem: int | None
    leave_s: float | None
    return_s: float | None
    why: str
    result: str | None


@dataclass(frozen=True)
class GrantReport:
    """One grant of a job on one card. `reached` is busy time as percent of the time granted."""

    node: str
    card: int
    uuid: str
    job_class: str | None
    state: str
    share: int
    mem_cap: int
    granted_s: float
    busy_s: float | None
    reached: float | None
    launches: int | None
    mem_peak: int | None
    nvml_mem_peak: int | None
    denied: int | None
    preempted: int | None
    suspended_s: float | None
    share_wait_s: float | None
    ended: bool
    escaped: bool
    held_s: float | None = None  # online: busy and idle_release
    harvest_s: float | None = None  # offline: beside a standing online grant
    suspended_together_s: float | None = None  # of suspended_s, for another card of the job
    suspended_idle_s: float | None = None  # of suspended_s, without work on the card
    mem_mean: int | None = None
    gate_close_max_s: float | None = None
    granted_at: float = 0.0
    ended_at: float | None = None
    latency: dict[int, int] | None = None  # closings of the gate in less than 2^k microseconds
    fetched: bool | None = (
        None  # whether a task fetched the grant; None while it stands or if unknown
    )
    reclaimed_s: float | None = None  # its memory was away for other jobs
    reclaims: tuple[ReclaimReport, ...] = ()
    mem_refused: int | None = (
        None  # most that it would have held with a refused allocation; 0: none
    )
    reached_most: float | None = None  # as `reached`, of the busiest FINE_S seconds
    mem_total: int = 0


@dataclass(frozen=True)
class JobReport:
    """One job with its grants, oldest first. Without grants, class,
    share and memory are Slurm's.
    """

    job_id: str
    raw_id: int
    user: str
    name: str
    state: str
    qos: str
    elapsed_s: int | None
    nodes: tuple[str, ...]
    job_class: str | None
    share: int | None
    mem: int | None
    grants: tuple[GrantReport, ...]
    account: str = ""
    # Seconds by which `qgpu extend` lengthened the last run, and its number of requeues; None: it
    # never handled the job.
    extended_s: int | None = None
    requeued: int | None = None
    start: int | None = None
    end: int | None = None
    cards: float | None = None  # booked, or asked for by a job that waits; 50 % of a card is 0.5
    gpu_hours: float | None = None  # equivalent: 50 % of a card for two hours is one
    cpus: int | None = None
    cpu_s: float | None = None  # of the processors, like the two below; None while it runs
    host_mem: int | None = None
    host_mem_peak: int | None = None
    parts: frozenset[str] = frozenset()  # TRES that steps named for themselves; not in JSON
    limits: Limits = field(default_factory=Limits)  # of requests for such a card; not in JSON

    @property
    def cpu_percent(self) -> float | None:
        """Time of the processors as percent of what was booked, as seff has it."""
        booked = (self.cpus or 0) * (self.elapsed_s or 0)
        return None if self.cpu_s is None or not booked else 100 * self.cpu_s / booked

    @property
    def host_mem_percent(self) -> float | None:
        """Peak of the host's memory as percent of what was booked."""
        if self.host_mem_peak is None or not self.host_mem:
            return None
        return 100 * self.host_mem_peak / self.host_mem

    def as_json(self) -> dict[str, object]:
        """Plain values for JSON."""
        more = {"cpu_percent": self.cpu_percent, "host_mem_percent": self.host_mem_percent}
        found = asdict(self) | more
        del found["limits"], found["parts"]
        return found


def _seconds(nanoseconds: int | None) -> float | None:
    return None if nanoseconds is None else nanoseconds / 1e9


def _percent(most_ns: int | None) -> float | None:
    """The busiest FINE_S seconds as percent of the card."""
    return None if most_ns is None else 100 * most_ns / (FINE_S * 10**9)


def reclaim_report(row: Reclaim) -> ReclaimReport:
    """One interval, in the report's units."""
    return ReclaimReport(
        row.left_at / 1e9,
        _seconds(row.back_at),
        row.bytes,
        _seconds(row.leave_ns),
        _seconds(row.return_ns),
        row.why,
        row.result,
    )


def grant_report(
    row: Usage,
    now_ns: int,
    latency: dict[int, int] | None = None,
    reclaims: Iterable[Reclaim] = (),
) -> GrantReport:
    """One row of a ledger, in the report's units."""
    wall = row.wall_ns(now_ns)
    escaped = _escaped(row)
    blind = escaped and not row.launches
    busy = None if blind else row.busy_ns
    reached = None if busy is None or wall == 0 else 100 * busy / wall
    return GrantReport(
        node=row.node,
        card=row.card_index,
        uuid=row.uuid,
        job_class=row.job_class,
        state=row.state,
        share=row.share,
        mem_cap=row.mem_cap,
        granted_s=wall / 1e9,
        busy_s=_seconds(busy),
        reached=reached,
        launches=None if blind else row.launches,
        mem_peak=None if blind else row.mem_peak,
        nvml_mem_peak=row.nvml_mem_peak,
        denied=row.denied,
        preempted=row.preemptions,
        suspended_s=_seconds(row.closed_preempted_ns),
        share_wait_s=_seconds(row.closed_share_ns),
        ended=row.ended_at is not None,
        escaped=escaped,
        held_s=_seconds(row.held_ns) if row.job_class == "online" else None,
        harvest_s=_seconds(row.harvest_ns),
        suspended_together_s=_seconds(row.closed_suspended_ns),
        suspended_idle_s=_seconds(row.closed_idle_ns),
        mem_mean=None if blind else row.mem_mean,
        gate_close_max_s=_seconds(row.gate_close_max_ns),
        granted_at=row.granted_at / 1e9,
        ended_at=_seconds(row.ended_at),
        latency=latency,
        fetched=None if row.fetched is None else bool(row.fetched),
        reclaimed_s=_seconds(row.reclaimed_ns),
        reclaims=tuple(map(reclaim_report, reclaims)),
        mem_refused=row.mem_refused,
        reached_most=None if blind else _percent(row.busy_most_ns),
        mem_total=row.mem_total,
    )


def _escaped(row: Usage) -> bool:
    """Whether the driver saw memory of the job that its library never counted: something ran
    without it.
    """
    if row.state != "active" or row.nvml_mem_peak is None:
        return False
    counted = row.mem_cap if row.launches or row.mem_peak else 0
    return row.nvml_mem_peak > counted + UNEXPLAINED


Latencies = dict[tuple[int, str, int], dict[int, int] | None]
Reclaims = Mapping[tuple[int, str, int], Sequence[Reclaim]]


def build(
    jobs: Iterable[SacctJob],
    rows: Sequence[Usage],
    now_ns: int,
    latencies: Latencies | None = None,
    given: Mapping[int, Given] | None = None,
    reclaims: Reclaims | None = None,
    details: Mapping[int, Detail] | None = None,
    config: Config | None = None,
) -> list[JobReport]:
    """Reports in sacct's order. `now_ns` is CLOCK_REALTIME, for grants that still stand. With
    `config` the advice keeps to the limits of requests.
    """
    of_job: dict[int, list[Usage]] = {}
    for row in rows:
        of_job.setdefault(row.job_id, []).append(row)
    more = (latencies or {}, reclaims or {})
    seen = details or {}
    found = [
        _job(job, of_job.get(job.raw_id, []), now_ns, *more, seen.get(job.raw_id, Detail()))
        for job in jobs
    ]
    if config is not None:
        found = _with_limits(found, config)
    return [_with_given(job, (given or {}).get(job.raw_id)) for job in found]


def _with_limits(jobs: Sequence[JobReport], config: Config) -> list[JobReport]:
    """With those of the card where each job was last."""
    nodes = {job.grants[-1].node for job in jobs if job.grants} & set(config.node_names())
    limits = {node: limits_of(config, node) for node in nodes}
    return [
        replace(job, limits=limits.get(job.grants[-1].node, Limits())) if job.grants else job
        for job in jobs
    ]


def _with_given(job: JobReport, given: Given | None) -> JobReport:
    return job if given is None else replace(job, extended_s=given.given_s, requeued=given.requeued)


def _job(
    job: SacctJob,
    rows: Sequence[Usage],
    now_ns: int,
    latencies: Latencies,
    reclaims: Reclaims,
    detail: Detail,
) -> JobReport:
    ordered = sorted(rows, key=lambda r: (r.granted_at, r.node))
    grants = tuple(
        grant_report(row, now_ns, latencies.get(row.key), reclaims.get(row.key, ()))
        for row in ordered
    )
    tres = job.tres or detail.asked
    booked = booked_class(tres)
    ended = job.end is not None  # Slurm sums up a step when it has ended
    return JobReport(
        job_id=job.job_id,
        raw_id=job.raw_id,
        user=job.user,
        name=job.name,
        state=job.state,
        qos=job.qos,
        elapsed_s=job.elapsed_s,
        nodes=job.nodes,
        job_class=grants[-1].job_class if grants else booked,
        share=grants[-1].share if grants else _count(tres, f"gres/qgpu:{booked}"),
        mem=grants[-1].mem_cap if grants else _size(tres.get("gres/vram")),
        grants=grants,
        account=job.account,
        start=job.start,
        end=job.end,
        cards=granted_cards(tres) or None,
        gpu_hours=_gpu_hours(job, grants),
        cpus=_count(tres, "cpu"),
        cpu_s=detail.cpu_s if ended else None,
        host_mem=parse_memory(tres.get("mem", "")) or None,
        host_mem_peak=detail.mem_peak if ended else None,
        parts=detail.parts,
    )


def _gpu_hours(job: SacctJob, grants: Sequence[GrantReport]) -> float | None:
    """What Slurm booked; where it booked no cards by name, what the nodes granted."""
    cards = granted_cards(job.tres)
    if cards:
        return cards * (job.elapsed_s or 0) / 3600
    return sum(grant.share * grant.granted_s for grant in grants) / 360_000 if grants else None


def granted_cards(tres: Mapping[str, str]) -> float:
    """Cards that Slurm booked: whole cards as 1, else percent of a card; none if pending.

    A job with gres/gpu has no shares, and its gres/qgpu counts the same cards again. Before 23.02 a
    job with --exclusive has all counts of its node there.
    """
    return whole_cards(tres) or (_count(tres, "gres/qgpu") or 0) / 100


def whole_cards(tres: Mapping[str, str]) -> int:
    """Whole cards that Slurm booked as gres/gpu."""
    return _count(tres, "gres/gpu") or 0


def booked_class(tres: Mapping[str, str]) -> str | None:
    """The class that Slurm booked a job under."""
    return next((name for name in ("online", "offline") if f"gres/qgpu:{name}" in tres), None)


def _count(tres: Mapping[str, str], name: str) -> int | None:
    text = tres.get(name, "")
    return int(text) if text.isdigit() else None


def _size(text: str | None) -> int | None:
    try:
        return None if text is None else parse_size(text)
    except UnitError:
        return None
