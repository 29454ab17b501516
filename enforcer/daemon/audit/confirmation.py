"""When a finding counts: samples needed, and the exemption of processes that cannot register."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from enforcer.daemon.audit.findings import Finding

# Samples in a row before a finding counts. A process registers a moment after its context appears,
# and memory may be freed between two calls of NVML. `busy` was above the limit in two windows
# already.
SAMPLES_NEEDED = {
    "stranger": 3,
    "unregistered": 3,
    "ungranted": 3,
    "over": 2,
    "busy": 1,
    "unaccounted": 2,
}
# Kinds that a job could evade by replacing its processes, or by freeing memory now and then.
EVADABLE = ("unregistered", "ungranted", "over")
SUSPICION_LIMIT = 30  # ten samples with such a finding, 3 points each
Tenancy = tuple[int | None, str]  # job and card
Suspect = tuple[int | None, str, str]  # job, card and kind


class Confirmation:
    """Counts in how many samples in a row each finding was present.

    Samples come at random, some right after another. One less than `apart_ns` after the last that
    counted for a finding does not count for it: a process needs a moment to register.

    A job cannot evade by pauses: after about ten samples with some finding of a kind, each further
    one counts in its first sample.
    """

    def __init__(self, apart_ns: int = 0) -> None:
        self._apart_ns = apart_ns
        self._seen: dict[Finding, tuple[int, int]] = {}  # samples, and when the last one counted
        self._suspicion: dict[Suspect, int] = {}

    def due(
        self, findings: Iterable[Finding], unable: Collection[Finding] = (), now_ns: int = 0
    ) -> list[Finding]:
        """The findings that count now. `unable`: processes that cannot register; their count
        restarts.
        """
        before, self._seen = self._seen, {}
        for finding in findings:
            samples, counted_ns = before.get(finding, (0, now_ns - self._apart_ns))
            if now_ns - counted_ns >= self._apart_ns:
                samples, counted_ns = samples + 1, now_ns
            self._seen[finding] = (0 if finding in unable else samples), counted_ns
        self._suspect({_key(f) for f in self._seen if f.kind in EVADABLE and f not in unable})
        return [
            finding
            for finding, (samples, _) in self._seen.items()
            if samples >= self._needed(finding)
        ]

    def again(self, finding: Finding) -> None:
        """The finding was acted upon: processes that replace those need as many samples again."""
        if finding in self._seen:
            self._seen[finding] = 0, self._seen[finding][1]
        if finding.kind == "over":  # of all processes of the job: the next ones did nothing
            self._suspicion.pop(_key(finding), None)

    def ended(self, job_id: int) -> None:
        """The job's grant ended: the next job with this number starts without a history."""
        self._seen = {
            finding: count for finding, count in self._seen.items() if finding.job_id != job_id
        }
        self._suspicion = {key: score for key, score in self._suspicion.items() if key[0] != job_id}

    def _suspect(self, found: set[Suspect]) -> None:
        """A sample with such a finding counts three times as much as one without, so pauses do not
        help.
        """
        before = self._suspicion
        scores = {
            key: before.get(key, 0) + (3 if key in found else -1) for key in before.keys() | found
        }
        self._suspicion = {
            key: min(score, SUSPICION_LIMIT + 9) for key, score in scores.items() if score > 0
        }

    def _needed(self, finding: Finding) -> int:
        suspected = self._suspicion.get(_key(finding), 0) >= SUSPICION_LIMIT
        return 1 if suspected else SAMPLES_NEEDED[finding.kind]

    @property
    def pending(self) -> bool:
        """Whether a finding is present that does not count yet."""
        return any(samples < self._needed(finding) for finding, (samples, _) in self._seen.items())


def _key(finding: Finding) -> Suspect:
    return finding.job_id, finding.uuid, finding.kind


class Exemptions:
    """Exempts stopped or surplus processes without the shim, within a budget where NVML is blind.

    A stopped process, or one more than a job may have, is exempt while NVML shows no use of the
    card by it. Where NVML does not report utilisation (MIG), each such sample takes from a budget
    of the job on that card. Without a limit a job could stay exempt; with one per process it could
    replace the process.
    """

    def __init__(self, budget_ns: int) -> None:
        self._budget_ns = budget_ns
        self._spent: dict[Tenancy, int] = {}
        self._sampled_ns: int | None = None

    def begin(self, now_ns: int) -> int:
        """Start a sample; ns since the last one."""
        before, self._sampled_ns = self._sampled_ns, now_ns
        return 0 if before is None else now_ns - before

    def spend(self, blind: Iterable[Finding], took_ns: int) -> set[Finding]:
        """Those of `blind` that are still exempt after this sample."""
        asking = list(blind)
        for key in {(f.job_id, f.uuid) for f in asking}:
            self._spent[key] = self._spent.get(key, 0) + took_ns
        return {f for f in asking if self._spent[f.job_id, f.uuid] <= self._budget_ns}

    def renew(self, job_id: int | None = None) -> None:
        """Refill the budget: of all jobs under a new arbiter, where none could register yet; or of
        one job.
        """
        self._spent = {
            k: v for k, v in self._spent.items() if job_id is not None and k[0] != job_id
        }
