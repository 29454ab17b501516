"""What the driver says of cards: free memory, and what each process holds."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from enforcer.clock import Clock
from enforcer.daemon.audit.procs import PROC, uids_of
from enforcer.nvml.port import CardLostError, GpuProcess, Nvml, NvmlError
from enforcer.nvml.worker import NvmlStuckError

OWNER_NS = 10**9  # for how long the job of a process is not asked for again


@dataclass(frozen=True)
class CardSeen:
    """One card: free bytes, and its processes."""

    free: int
    processes: tuple[GpuProcess, ...]


@dataclass
class MemoryQuestion:
    """Asks for these cards, in NVML's thread. A card that does not answer is left out.

    Raises the last error if none answers.
    """

    uuids: Collection[str]

    def __call__(self, nvml: Nvml) -> dict[str, CardSeen]:
        """Ask."""
        found: dict[str, CardSeen] = {}
        failed: NvmlError | None = None
        for uuid in self.uuids:
            try:
                found[uuid] = CardSeen(nvml.free(uuid), nvml.processes(uuid))
            except NvmlStuckError:
                raise
            except CardLostError:
                continue
            except NvmlError as error:
                failed = error
        if failed is not None and not found:
            raise failed
        return found


@dataclass
class Owners:
    """The jobs of processes; each is asked for once a second."""

    job_of: Callable[[int], int | None]
    clock: Clock
    _known: dict[int, tuple[int | None, int]] = field(default_factory=dict)

    def of(self, pid: int) -> int | None:
        """The job of a process."""
        now = self.clock.monotonic_ns()
        known = self._known.get(pid)
        if known is None or known[1] <= now:
            if len(self._known) > 4096:
                self._known.clear()
            known = self._known[pid] = (self.job_of(pid), now + OWNER_NS)
        return known[0]


def pids_of(uids: Collection[int], job_of: Callable[[int], int | None]) -> dict[int, list[int]]:
    """All processes of these users that belong to a job, by job. It reads all of /proc."""
    found: dict[int, list[int]] = {}
    for path in PROC.glob("[0-9]*"):
        pid = int(path.name)
        if (uids_of(pid) or {-1}) <= set(uids) and (job := job_of(pid)) is not None:
            found.setdefault(job, []).append(pid)
    return found


# bytes by card and process, by job
Uses = dict[int, dict[int, dict[str, int]]]


def uses_of(
    cards: Mapping[str, CardSeen],
    owners: Owners,
    known: Callable[[int, str], int | None],
) -> Uses:
    """What each process of a job holds: job -> pid -> card -> bytes.

    Where the driver does not tell, `known` does for the job on the card; its first process has it.
    """
    found: Uses = {}
    for uuid, card in cards.items():
        guessed: set[int] = set()
        for process in card.processes:
            job = owners.of(process.pid)
            if job is None:
                continue
            held = process.mem_used
            if held is None:
                held = 0 if job in guessed else known(job, uuid) or 0
                guessed.add(job)
            found.setdefault(job, {}).setdefault(process.pid, {})[uuid] = held
    return found


def on_card(uses: Uses, job: int, uuid: str) -> int:
    """What the job holds on the card."""
    return sum(held.get(uuid, 0) for held in uses.get(job, {}).values())
