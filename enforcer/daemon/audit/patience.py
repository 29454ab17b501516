"""When a finding counts: how many looks it needs, and how long one who cannot help it is excused."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from enforcer.daemon.audit.findings import Finding

# Looks in a row before a finding counts. A process registers a moment after its context appears, and memory
# may be freed between two of our own questions. `busy` was seen in two windows already.
PATIENCE = {"stranger": 3, "unregistered": 3, "ungranted": 3, "over": 2, "busy": 1, "unaccounted": 2}
SHIFTY = ("unregistered", "ungranted")  # what a job could get away with by changing its processes
SUSPICIOUS = 30  # ten looks at such processes, each for less than our patience
Tenancy = tuple[int | None, str]  # a job on a card


class Patience:
    """Counts in how many looks in a row each finding was there.

    A job that changes its processes is not given patience anew each time: once it had one or another without the
    shim in ten looks or so, each further one is found at first sight.
    """

    def __init__(self) -> None:
        self._seen: dict[Finding, int] = {}
        self._suspicion: dict[Tenancy, int] = {}

    def due(self, findings: Iterable[Finding], unable: Collection[Finding] = ()) -> list[Finding]:
        """Those that count now. `unable`: those who cannot help it; patience with them begins anew."""
        before = self._seen
        self._seen = {f: 0 if f in unable else before.get(f, 0) + 1 for f in findings}
        self._suspect({(f.job_id, f.uuid) for f in self._seen if f.kind in SHIFTY and f not in unable})
        return [finding for finding, looks in self._seen.items() if looks >= self._needed(finding)]

    def again(self, finding: Finding) -> None:
        """It was acted upon: who comes in the place of those processes is looked at as patiently as they were."""
        if finding in self._seen:
            self._seen[finding] = 0

    def ended(self, job_id: int) -> None:
        """The job's grant ended: the next one with this number is another."""
        self._seen = {finding: looks for finding, looks in self._seen.items() if finding.job_id != job_id}
        self._suspicion = {key: score for key, score in self._suspicion.items() if key[0] != job_id}

    def _suspect(self, found: set[Tenancy]) -> None:
        """A look with such a process counts three times as much as one without: pauses do not make up for it."""
        before = self._suspicion
        scores = {key: before.get(key, 0) + (3 if key in found else -1) for key in before.keys() | found}
        self._suspicion = {key: min(score, SUSPICIOUS + 9) for key, score in scores.items() if score > 0}

    def _needed(self, finding: Finding) -> int:
        suspicion = self._suspicion.get((finding.job_id, finding.uuid), 0)
        shifty = finding.kind in SHIFTY and suspicion >= SUSPICIOUS
        return 1 if shifty else PATIENCE[finding.kind]

    @property
    def pending(self) -> bool:
        """Whether something was seen that does not count yet."""
        return any(looks < self._needed(finding) for finding, looks in self._seen.items())


class Excuses:
    """How long processes without the shim are excused where nobody can tell that they do nothing.

    A stopped process, or one more than a job may have, is let be while NVML shows no use of the card by it. Where NVML
    does not tell (MIG), each look with such a process takes from a budget of its job on that card: for ever would be
    an invitation, and per process one to come again with another.
    """

    def __init__(self, budget_ns: int) -> None:
        self._budget_ns = budget_ns
        self._spent: dict[Tenancy, int] = {}
        self._looked_ns: int | None = None

    def begin(self, now_ns: int) -> int:
        """A look begins; how long the last one is ago."""
        before, self._looked_ns = self._looked_ns, now_ns
        return 0 if before is None else now_ns - before

    def spend(self, blind: Iterable[Finding], took_ns: int) -> set[Finding]:
        """Those of the unseen ones who are still excused after this look."""
        asking = list(blind)
        for key in {(f.job_id, f.uuid) for f in asking}:
            self._spent[key] = self._spent.get(key, 0) + took_ns
        return {f for f in asking if self._spent[f.job_id, f.uuid] <= self._budget_ns}

    def renew(self, job_id: int | None = None) -> None:
        """A new arbiter, with whom nobody could register yet; or the end of a job."""
        self._spent = {k: v for k, v in self._spent.items() if job_id is not None and k[0] != job_id}
