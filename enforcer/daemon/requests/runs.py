"""Grants without Slurm: what `qgpu run` may have (pure), and whether its program still runs.

The process that asks becomes the command, so the grant ends with the command. Processes that the
command left on a card keep it until the last of them ends. Job numbers begin at 2^40, above all of
Slurm's.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from enforcer.daemon.audit.procs import start_ticks
from enforcer.daemon.granting.decide import Paths
from enforcer.daemon.log import emit
from enforcer.nvml.port import CardInfo
from gres.config.site import Config, JobClass, Node
from gres.grant.store import RUN_BASE, Grant, GrantCard, GrantError
from gres.units import MIB, format_mib

RETURN_NS = 1500 * 10**6  # ns until processes are back at a new arbiter: they take 0.4 s at most


class RunRefusedError(RuntimeError):
    """The request cannot be granted; the text is a sentence with what would work."""


@dataclass(frozen=True)
class RunRequest:
    """A request. `mem` is MiB (None: share of usable memory), `card` an index or a UUID."""

    share: int
    job_class: JobClass
    mem: int | None
    card: str | None
    uid: int
    gid: int


@dataclass(frozen=True)
class Offer:
    """One card of the node: its index, the driver's view, and MiB that jobs can share."""

    index: int
    info: CardInfo
    usable: int


@dataclass(frozen=True)
class Room:
    """What is left of a card."""

    mem: int
    share: int
    whole: bool
    grants: int


def is_run(job_id: int) -> bool:
    """Whether a job number belongs to `qgpu run`."""
    return job_id >= RUN_BASE


def next_job_id(now_ns: int, used: Iterable[int]) -> int:
    """A new job number: by the date in ms, so that the ledger never has one twice."""
    return max([RUN_BASE + now_ns // 10**6, *(job + 1 for job in used if is_run(job))])


Governed = Callable[[Offer, JobClass], bool]  # whether gate and cap hold for a class on a card


def room(offer: Offer, grants: Iterable[Grant], config: Config, governed: Governed) -> Room:
    """What the grants on a card leave: MiB of memory, and percent for classes that reserve compute.

    A grant without isolation books no memory, as its cap is the card's. Nor does a reclaimable one,
    which leaves the card when a run needs its memory.
    """
    mem, share, whole, count = offer.usable, 100, False, 0
    for grant in grants:
        for card in grant.cards:
            if card.uuid != offer.info.uuid:
                continue
            count += 1
            whole = whole or grant.state == "whole"
            if card.governed and not grant.reclaimable:
                mem -= -(-card.mem_cap // MIB)
            if (
                grant.job_class is not None
                and "compute" in config.classes[grant.job_class].reserves
            ):
                share -= card.share
    return Room(max(0, mem), max(0, share), whole, count)


def admit(
    request: RunRequest,
    config: Config,
    node: Node,
    offers: list[Offer],
    grants: list[Grant],
    governed: Governed,
    paths: Paths,
    now_ns: int,
) -> Grant:
    """The grant for a request. Raises RunRefusedError."""
    least = config.least_mem(node.model)
    _check_limits(request, config, least)
    found = _choose(request, config, offers, grants, governed, least)
    total = found.info.mem_total
    isolated = governed(found, request.job_class)
    if isolated and _mem(request, found) < least:
        raise RunRefusedError(
            f"--share {request.share} comes with {format_mib(_mem(request, found))} of memory, but"
            f" the least is {format_mib(least)}; write for example --mem {format_mib(least)}"
        )
    cap = min(_mem(request, found) * MIB, total) if isolated else total
    card = GrantCard(
        found.info.uuid, found.info.minor, found.index, request.share, cap, total, isolated
    )
    try:
        return Grant(
            job_id=next_job_id(now_ns, [grant.job_id for grant in grants]),
            uid=request.uid,
            gid=request.gid,
            node=node.name,
            state="active",
            job_class=request.job_class,
            created_ns=now_ns,
            cards=(card,),
            run_dir=paths.run_dir,
            driver_path=paths.driver,
            shim_path=paths.shim,
        )
    except GrantError as error:
        raise RunRefusedError(f"the grant cannot be made: {error}") from None


def _check_limits(request: RunRequest, config: Config, least: int) -> None:
    limits = config.limits
    if not limits.min_share <= request.share <= limits.max_share:
        raise RunRefusedError(
            f"--share {request.share} is outside {limits.min_share} to {limits.max_share} percent;"
            f" write for example --share {min(max(30, limits.min_share), limits.max_share)}"
        )
    if request.mem is not None and request.mem < least:
        raise RunRefusedError(
            f"--mem {format_mib(request.mem)} is below the least, {format_mib(least)};"
            f" write for example --mem {format_mib(least)}"
        )


def _mem(request: RunRequest, offer: Offer) -> int:
    return offer.usable * request.share // 100 if request.mem is None else request.mem


def _booked(request: RunRequest, offer: Offer, governed: Governed) -> int:
    """MiB that the request would take from a card."""
    return _mem(request, offer) if governed(offer, request.job_class) else 0


def _choose(
    request: RunRequest,
    config: Config,
    offers: list[Offer],
    grants: list[Grant],
    governed: Governed,
    least: int,
) -> Offer:
    named = [o for o in offers if request.card in (None, str(o.index), o.info.uuid)]
    if not named:
        known = ", ".join(f"{o.index} ({o.info.uuid})" for o in offers) or "none that answers"
        raise RunRefusedError(
            f"--card {str(request.card)[:60]} is no card of this node; it has {known}"
        )
    rooms = [(room(offer, grants, config, governed), offer) for offer in named]
    fitting = [pair for pair in rooms if _fits(request, config, governed, *pair)]
    if not fitting:
        raise RunRefusedError(_no_room(request, config, governed, rooms, least))
    return max(fitting, key=lambda pair: (pair[0].mem, -pair[1].index))[1]


def _fits(
    request: RunRequest, config: Config, governed: Governed, left: Room, offer: Offer
) -> bool:
    reserves = "compute" in config.classes[request.job_class].reserves
    return (
        not left.whole
        and _booked(request, offer, governed) <= left.mem
        and (not reserves or request.share <= left.share)
    )


def _no_room(
    request: RunRequest,
    config: Config,
    governed: Governed,
    rooms: list[tuple[Room, Offer]],
    least: int,
) -> str:
    """Why no card fits, for the card with most room."""
    left, offer = max(rooms, key=lambda pair: (not pair[0].whole, pair[0].mem))
    name = f"card {offer.index}"
    if left.whole:
        return (
            f"{name} belongs to a job as a whole; name another with --card, or wait until it ends"
        )
    want = _booked(request, offer, governed)
    if want > left.mem:
        advice = f"write --mem {format_mib(left.mem)} or less" if left.mem >= least else "wait"
        return (
            f"{format_mib(want)} of memory do not fit: {name} has {format_mib(left.mem)} of"
            f" {format_mib(offer.usable)} left beside {left.grants} grant(s); {advice}"
        )
    advice = (
        f"write --share {left.share} or less" if left.share >= config.limits.min_share else "wait"
    )
    return (
        f"--share {request.share} does not fit: {name} has {left.share} percent left for"
        f" {request.job_class} beside {left.grants} grant(s); {advice}, or use --class offline"
    )


_RUN = re.compile(r"([1-9][0-9]{0,15})\.run")


class RunWatch:
    """The programs with such grants. JOBID.run beside the grant names one for the next start of
    qgpud.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.pidfds: dict[int, int] = {}
        self.pids: dict[int, int] = {}
        self.left: set[int] = set()  # jobs whose command has ended

    def hold(self, job_id: int, pid: int, pidfd: int) -> None:
        """Watch a program; owns `pidfd`. Raises OSError if it cannot be recorded."""
        self.pidfds[job_id], self.pids[job_id] = pidfd, pid
        body = json.dumps({"pid": pid, "start": start_ticks(pid)})
        (self._directory / f"{job_id}.run").write_text(body)

    def resume(self, grants: Mapping[int, Grant]) -> None:
        """After a restart: watch the programs that still run; the commands of the others have
        ended.
        """
        for job_id in [job for job in grants if is_run(job)]:
            if not self._resumed(job_id):
                self.left.add(job_id)
        for path in self._directory.glob("*.run"):
            match = _RUN.fullmatch(path.name)
            if match and int(match[1]) not in grants:
                path.unlink(missing_ok=True)

    def _resumed(self, job_id: int) -> bool:
        try:
            data = json.loads((self._directory / f"{job_id}.run").read_text())
            pid = int(data["pid"])
            pidfd = os.pidfd_open(pid)
        except (OSError, ValueError, KeyError, TypeError):
            return False
        if start_ticks(pid) != data["start"]:
            os.close(pidfd)
            return False
        self.pidfds[job_id], self.pids[job_id] = pidfd, pid
        return True

    def leave(self, job_id: int) -> None:
        """The command has ended; processes that it left may be on the card."""
        self._forget(job_id)
        self.left.add(job_id)

    def _forget(self, job_id: int) -> None:
        self.pids.pop(job_id, None)
        pidfd = self.pidfds.pop(job_id, None)
        if pidfd is not None:
            os.close(pidfd)

    def drop(self, job_id: int) -> None:
        """Stop watching."""
        self._forget(job_id)
        self.left.discard(job_id)
        with contextlib.suppress(OSError):
            (self._directory / f"{job_id}.run").unlink(missing_ok=True)

    def job_of(self, chain: list[int]) -> int | None:
        """The job of a process, given it and its ancestors."""
        by_pid = {pid: job_id for job_id, pid in self.pids.items()}
        return next((by_pid[pid] for pid in chain if pid in by_pid), None)


def may_run(uid: int, gids: Iterable[int], users: set[int], groups: set[int]) -> bool:
    """Whether the configuration allows a user to run programs without Slurm."""
    return uid == 0 or uid in users or not groups.isdisjoint(gids)


def allowed_ids(names: Iterable[str], lookup: Callable[[str], int], what: str) -> set[int]:
    """Numbers of configured names; one unknown on this machine is logged and left out."""
    found: set[int] = set()
    for name in names:
        try:
            found.add(lookup(name))
        except KeyError:
            emit(logging.WARNING, "run-unknown", what=what, name=name)
    return found
