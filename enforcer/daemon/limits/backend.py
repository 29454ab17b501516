"""Sets the driver's memory limits per cgroup, beside the shim's allocation table (driver 615,
NVML).

The shim counts and refuses, but a program can bypass it. Where the driver has
nvmlDeviceSetMemoryLimits_v1 and cgroups are version 2, the kernel refuses too, for every process of
the job. The limit is on the job's cgroup and on each leaf below: the driver shows the cap as the
card's size only to a cgroup with a limit of its own. The soft limit, which reserves memory, is
never raised: it would leak into the ancestors if its cgroup were removed.

A limit counts once the driver has taken it. A refused one is tried again, ever more rarely, while
its cgroup exists; until then job, card and node report `cooperative`.

Written from NVIDIA's documentation and bindings (nvidia-ml-py 13.615); tested with fakes, not with
a 615 driver.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from enforcer.daemon.audit.steps import Steps
from enforcer.daemon.limits.cgroups import JobCgroups
from enforcer.daemon.limits.probe import Probe, probe
from enforcer.daemon.limits.unfound import Unfound
from enforcer.daemon.log import emit
from enforcer.nvml.port import CardLostError, Nvml, NvmlError
from enforcer.nvml.worker import NvmlCaller, NvmlStuckError
from gres.grant.store import RUN_BASE, Grant, GrantCard

Setting = Literal["auto", "ledger", "nvml"]
Strength = Literal["hard", "cooperative"]

# period at most in which a Prolog asks a card that took no limits again
PROBE_AGAIN_NS = 60 * 10**9
FIRST_WAIT_NS = 500 * 10**6  # wait after the first refusal of a limit; doubled each time
LONGEST_WAIT_NS = 60 * 10**9  # upper bound of that wait, since a refusal may end
# refusals in a row of one limit (about 8 s) after which the card counts as one without limits
STUBBORN = 5
MAX_ROWS = 128  # rows of `describe`, about 15 KiB: a message of qgpud.sock has 64 KiB
OF_RUNS = "a program of qgpu run stays in its user's cgroup, which is not qgpud's to limit"


@dataclass(frozen=True)
class _Limit:
    job_id: int
    uuid: str
    cgroup: Path


class _HoldsMoreError(NvmlError):
    """The refused limit is below what the cgroup holds: this is no fault of the card."""


@dataclass
class _Held:
    """One limit as the driver has it: the value before ours (`before`) and ours (`now`).

    None: not set by this daemon; a former one may have set it.
    """

    before: int | None = None
    now: int | None = None
    asked: bool = False
    refusals: int = 0
    due_ns: int = 0
    why: str = ""


@dataclass(frozen=True)
class _Settled:
    """The inputs of a job's limits. While each is the same object, no limit changes."""

    cgroups: tuple[Path, ...]
    cards: tuple[GrantCard, ...]
    probe: Probe

    def holds(self, cgroups: tuple[Path, ...], cards: tuple[GrantCard, ...], probe: Probe) -> bool:
        return self.cgroups is cgroups and self.probe is probe and self.cards == cards


@dataclass
class MemoryBackend:
    """Keeps the driver's limits equal to the grants; without support it gives the reason."""

    setting: Setting
    nvml: NvmlCaller
    root: Path | None
    steps: Steps
    clock: Callable[[], int] = time.monotonic_ns
    started: Callable[[int], bool | None] = lambda job: None  # whether a task of it has
    _probe: Probe | None = None
    _jobs: JobCgroups | None = None
    _probe_due_ns: int = 0
    _held: dict[int, dict[_Limit, _Held]] = field(default_factory=dict)  # by job
    _settled: dict[int, _Settled] = field(default_factory=dict)  # jobs with all limits in place
    # jobs with logged refusals: no other job has any
    _failing: set[int] = field(default_factory=set)
    _unfound: Unfound = field(default_factory=Unfound)
    _stubborn: dict[str, str] = field(
        default_factory=dict
    )  # cards that refused a real limit to the end

    # ---- what this node offers ------------------------------------------------------------------

    def check(self, uuids: Iterable[str] = (), patient: bool = False) -> Probe:
        """What this node offers. It is asked again if the driver was absent or cards took no
        limits.

        `patient`: at most once a minute, as any user can cause it.
        """
        if self.setting == "ledger":
            return Probe("enforcer.memory_backend is ledger")
        known, now = self._probe, self.clock()
        due = now >= self._probe_due_ns
        soon = self.setting == "nvml" or due  # a node is drained only after a fresh answer
        later = known is not None and known.later and (due or not patient)
        if known is None or later or (soon and not known.knows(uuids)):
            self._probe_due_ns = now + PROBE_AGAIN_NS
            self._ask_node()
        assert self._probe is not None
        return self._probe

    def _ask_node(self) -> None:
        old = self._probe
        try:
            self._probe = self.nvml.call(lambda nvml: probe(nvml, self.root))
        except NvmlError as error:
            # Else the last result stays: a refused limit is seen by itself.
            if old is None or old.later:
                self._probe = Probe(str(error), later=True)
        if self._probe != old and self._probe is not None:
            name = "nvml" if self._probe.anywhere else "ledger"
            why = self._probe.refusal or None
            emit(logging.INFO, "memory-backend", name=name, strength=self.strength, why=why)

    @property
    def strength(self) -> Strength:
        """How caps hold on this node: hard (the kernel refuses) only if
        each card takes all limits.
        """
        return "cooperative" if self._probe is None or self.why else "hard"

    @property
    def why(self) -> str:
        """Why this node's caps are not hard; empty if they are."""
        if self.setting == "ledger":
            return self.check().nowhere
        refusal = self._probe.refusal if self._probe is not None else "the driver was not asked yet"
        lasting = next(iter(self._stubborn.values()), "") or self._unfound.why()
        return refusal or lasting or next(self._refused(), "")

    def _refused(self, job_id: int | None = None, uuid: str | None = None) -> Iterator[str]:
        """Sentences about the limits that are refused now, of all jobs and cards or of one."""
        jobs = sorted(self._failing) if job_id is None else [job_id]
        for limit, held in (pair for job in jobs for pair in self._held.get(job, {}).items()):
            if held.why and uuid in (None, limit.uuid):
                yield f"the limit of job {limit.job_id} on card {limit.uuid} is refused: {held.why}"

    def fault(self, uuids: Iterable[str]) -> str:
        """Why no job may start on these cards; empty if it may. The configuration may demand hard
        limits.
        """
        cards = list(uuids)
        found = self.check(cards)
        if self.setting != "nvml":
            return ""
        reasons = (found.why(uuid) or self._stubborn.get(uuid) for uuid in cards)
        why = next((reason for reason in reasons if reason), "") or self._unfound.why()
        return why and f"enforcer.memory_backend is nvml, but {why}"

    def run_fault(self) -> str:
        """Why no program of `qgpu run` may start; empty if it may."""
        demanded = self.setting == "nvml"
        return (
            f"enforcer.memory_backend is nvml, but {OF_RUNS}: submit it as a job"
            if demanded
            else ""
        )

    def _by_card(self, job_id: int) -> dict[str, list[_Held]]:
        found: dict[str, list[_Held]] = {}
        for limit, held in self._held.get(job_id, {}).items():
            found.setdefault(limit.uuid, []).append(held)
        return found

    def _strength(self, grant: Grant, card: GrantCard, mine: list[_Held]) -> tuple[Strength, str]:
        if self.setting == "ledger" or self._probe is None:
            return "cooperative", self.why
        why = self._probe.why(card.uuid)
        if not why and any(held.why for held in mine):
            why = next(self._refused(grant.job_id, card.uuid), "")
        if not why and grant.job_id >= RUN_BASE:
            why = OF_RUNS
        why = why or self._unfound.why(grant.job_id)
        if not why and (not mine or any(held.now != card.mem_cap for held in mine)):
            why = "the driver has not taken the limit yet"
        return ("cooperative" if why else "hard"), why

    def describe(self, grants: Iterable[Grant]) -> dict[str, object]:
        """How caps hold on this node, and the running jobs whose caps hold otherwise.

        At most MAX_ROWS rows, each with the number of its reason, and the number of further jobs.
        """
        usual, left = self.strength, 0
        rows: list[dict[str, object]] = []
        reasons: dict[str, int] = {}
        for grant in grants:
            found = self._otherwise(grant, usual) if grant.state == "active" else []
            if not found:
                continue
            if left or len(rows) + len(found) > MAX_ROWS:
                left += 1
                continue
            for uuid, strength, why in found:
                number = reasons.setdefault(why, len(reasons)) if why else None
                rows.append(
                    {"job": grant.job_id, "card": uuid, "strength": strength, "why": number}
                )
        shown = {"memory_jobs": rows, "memory_reasons": list(reasons), "memory_jobs_left": left}
        return {"memory": usual, "memory_why": self.why, **shown}

    def _otherwise(self, grant: Grant, usual: Strength) -> list[tuple[str, Strength, str]]:
        capped = [card for card in grant.cards if card.mem_cap < card.mem_total]
        limits = self._by_card(grant.job_id) if capped else {}
        held = [
            (card.uuid, *self._strength(grant, card, limits.get(card.uuid, []))) for card in capped
        ]
        return [row for row in held if row[1] != usual]

    # ---- limits of jobs -------------------------------------------------------------------------

    def wanted(self, grants: Mapping[int, Grant]) -> bool:
        """Whether `apply` can have an effect with these grants."""
        return (
            self.root is not None
            and self._probe is not None
            and self._probe.anywhere
            and bool(grants)
        )

    def apply(self, grants: Iterable[Grant]) -> None:
        """Set missing limits: of new cgroups, or refused before. Cheap when nothing is missing."""
        if self.root is None or self._probe is None or not self._probe.anywhere:
            return
        # A `qgpu run` program stays in its user's cgroup, which qgpud must not limit.
        jobs = [grant for grant in grants if grant.state == "active" and grant.job_id < RUN_BASE]
        self._jobs = self._jobs or JobCgroups(self.root)
        places = self.steps.unified(grant.job_id for grant in jobs)
        there = self._jobs.scan({job: paths or () for job, paths in places.items()})
        for grant in jobs:
            cgroups, settled = there.get(grant.job_id, ()), self._settled.get(grant.job_id)
            self._unfound.note(grant.job_id, bool(cgroups), places[grant.job_id], self.started)
            if settled is None or not settled.holds(cgroups, grant.cards, self._probe):
                self._settle(grant, cgroups, self._probe)

    def _settle(self, grant: Grant, cgroups: tuple[Path, ...], probe: Probe) -> None:
        self._forget_removed(grant.job_id, cgroups)
        # A cgroup that was a leaf once has a limit too.
        held = [limit.cgroup for limit in self._held.get(grant.job_id, {})]
        done = True
        for cgroup in dict.fromkeys((*cgroups, *held)):
            for card in grant.cards:
                if card.mem_cap < card.mem_total and not probe.why(card.uuid):
                    done &= self._keep(_Limit(grant.job_id, card.uuid, cgroup), card)
        if done:
            self._settled[grant.job_id] = _Settled(cgroups, grant.cards, probe)
        else:
            self._settled.pop(grant.job_id, None)

    def _forget_removed(self, job_id: int, there: tuple[Path, ...]) -> None:
        """Drop limits of removed cgroups (their step ended): the driver drops them too."""
        held, present = self._held.get(job_id, {}), set(there)
        for limit in [limit for limit in held if limit.cgroup not in present]:
            if not limit.cgroup.exists():
                del held[limit]

    def _keep(self, limit: _Limit, card: GrantCard) -> bool:
        """Ask for the limit when due; whether it is in place already."""
        held = self._held.setdefault(limit.job_id, {}).setdefault(limit, _Held())
        if held.now == card.mem_cap:
            return not held.asked  # a call under way may ask for an older cap
        if not held.asked and self.clock() >= held.due_ns:
            self._ask(limit, held, card.mem_cap, card.mem_total)
        return False

    def _now(self, limit: _Limit) -> _Held | None:
        return self._held.get(limit.job_id, {}).get(limit)

    def _ask(self, limit: _Limit, held: _Held, cap: int, whole: int) -> None:
        """Set `cap`, and note the limit before it."""
        held.asked, before = True, held.before

        def work(nvml: Nvml) -> int | NvmlError:
            # An error is returned: if raised, the library would be closed and opened again for each
            # limit.
            used = 0
            try:
                found = nvml.memory_limits(limit.uuid, str(limit.cgroup))
                used, back = found.used, found.hard if before is None else before
                if before is None and back == cap:
                    back = whole  # ours already, from before a restart
                nvml.set_memory_limits(limit.uuid, str(limit.cgroup), 0, cap)
            except NvmlError as error:
                return _HoldsMoreError(str(error)) if used > cap else error
            return back

        self.nvml.start(work, lambda result: self._answered(limit, held, cap, result))

    def _answered(self, limit: _Limit, held: _Held, cap: int, result: int | NvmlError) -> None:
        held.asked = False
        if isinstance(result, NvmlStuckError):
            return  # logged elsewhere; tried again by the next call of `apply`
        if isinstance(result, NvmlError):
            self._note_refusal(limit, held, result)
            return
        if self._now(limit) is not held:  # its job ended meanwhile
            if limit.cgroup.exists():
                self._clear(limit, result)
            return
        held.before, held.now, held.why, held.refusals = result, cap, "", 0
        self._stubborn.pop(limit.uuid, None)
        emit(
            logging.DEBUG,
            "memory-limit",
            job=limit.job_id,
            card=limit.uuid,
            cgroup=limit.cgroup,
            cap=cap,
        )
        if limit.job_id in self._failing and not any(self._refused(limit.job_id)):
            self._failing.discard(limit.job_id)
            emit(logging.INFO, "memory-limit-late", job=limit.job_id, card=limit.uuid)

    def _note_refusal(self, limit: _Limit, held: _Held, error: NvmlError) -> None:
        if self._now(limit) is not held or not limit.cgroup.exists():
            return
        wait = min(FIRST_WAIT_NS << min(held.refusals, 10), LONGEST_WAIT_NS)
        held.refusals, held.due_ns, held.why = held.refusals + 1, self.clock() + wait, str(error)
        if limit.job_id not in self._failing:
            self._failing.add(limit.job_id)
            text = (
                f"{error}; the shim alone holds this job to its cap until the driver takes the"
                " limit"
            )
            emit(logging.ERROR, "memory-limit-failed", job=limit.job_id, card=limit.uuid, why=text)
        fit = isinstance(error, (_HoldsMoreError, CardLostError)) or limit.uuid in self._stubborn
        if held.refusals >= STUBBORN and not fit:
            self._give_up(limit, str(error))

    def _give_up(self, limit: _Limit, why: str) -> None:
        """Count the card as one without limits until it takes one, since it keeps refusing."""
        text = f"card {limit.uuid} refused the limit of job {limit.job_id} {STUBBORN} times: {why}"
        self._stubborn[limit.uuid] = f"{text}; repair it and restart qgpud"
        if self.setting == "nvml":
            text += "; enforcer.memory_backend is nvml, so no other job starts there"
        emit(logging.ERROR, "memory-limit-missing", job=limit.job_id, card=limit.uuid, why=text)

    def release(self, job_id: int) -> None:
        """Take the job's limits away before slurmd removes its cgroups."""
        self._failing.discard(job_id)
        self._unfound.drop(job_id)
        self._settled.pop(job_id, None)
        for limit, held in self._held.pop(job_id, {}).items():
            if held.now is not None and held.before is not None and limit.cgroup.exists():
                self._clear(limit, held.before)

    def _clear(self, limit: _Limit, before: int) -> None:
        def work(nvml: Nvml) -> bool:
            nvml.set_memory_limits(limit.uuid, str(limit.cgroup), 0, before)
            return True

        def done(result: bool | NvmlError) -> None:
            if isinstance(result, NvmlError) and limit.cgroup.exists():
                emit(
                    logging.WARNING,
                    "memory-limit-left",
                    job=limit.job_id,
                    card=limit.uuid,
                    why=result,
                )

        self.nvml.start(work, done)
