"""The live state of a node for `qgpu top`, `jobs`, `cards` and the metrics.

Format: docs/specs/reporting/state.md. Pure, except for `write` and `read`. None means not measured;
0 means measured and zero.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from operator import attrgetter
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from enforcer.ledger.schema import Sample
from enforcer.reporting.privacy import Privacy
from enforcer.wire import layout
from gres.grant.store import Grant, GrantCard

VERSION = 1
FILE_NAME = "state.json"
MAX_BYTES = 4 << 20  # bytes read, so that a wrong file cannot exhaust memory
# Part of the sample's time below which a tenant counts as idle.
IDLE = 0.01


class StateError(ValueError):
    """There is no usable live state; the text is a sentence."""


@dataclass(frozen=True)
class TenantState:
    """One job on one card. Rates and `..._now` cover the time since the last sample."""

    job_id: int
    uid: int
    job_class: str | None
    state: str  # one of STATES
    share: int
    share_now: float | None
    mem_used: int | None
    mem_cap: int
    procs: int | None
    launches_per_s: float | None
    granted_at: float
    counters: dict[str, int] | None = None
    hardware: str | None = None  # none, ready, stopped or failed; null where it is not used
    held_now: float | None = None  # percent of the time that it was closed for online jobs


@dataclass(frozen=True)
class CardState:
    """One card with its tenants. `util` is the driver's figure for the whole card, `use` the sum
    of all tenants' use since the last sample, in percent.
    """

    uuid: str
    index: int | None
    name: str
    mem_total: int | None
    mem_used: int | None
    util: int | None
    driver_index: int | None = None
    tenants: tuple[TenantState, ...] = ()
    use: float | None = None

    @property
    def granted_online(self) -> int:
        """Percent granted to online jobs."""
        return sum(t.share for t in self.tenants if t.job_class == "online")


@dataclass(frozen=True)
class NodeState:
    """One node at `at` (seconds of CLOCK_REALTIME)."""

    node: str
    at: float
    arbiter: bool
    # what was taken back since qgpud started, and what is away now; None: no class is reclaimable
    reclaims: dict[str, int] | None = None
    cards: tuple[CardState, ...] = ()

    def to_json(self) -> str:
        """One line of JSON with the format's version."""
        return _compact({"version": VERSION, **vars(self)})

    @classmethod
    def from_json(cls, text: str | bytes) -> NodeState:
        """Parse a state; keys of a newer qgpu are ignored. Raises StateError."""
        try:
            data = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise StateError(f"the live state is not JSON: {error}") from None
        return cls.of(data)

    @classmethod
    def of(cls, data: object) -> NodeState:
        """The state of parsed JSON. Raises StateError."""
        try:
            if not isinstance(data, dict) or data.get("version") != VERSION:
                raise StateError(
                    f"the live state has not the version {VERSION} that this qgpu reads"
                )
            cards = tuple(
                CardState(
                    **_known(
                        CardState, card | {"tenants": tuple(_tenant(t) for t in card["tenants"])}
                    )
                )
                for card in data["cards"]
            )
            return cls(
                str(data["node"]),
                float(data["at"]),
                bool(data["arbiter"]),
                data.get("reclaims"),
                cards,
            )
        except StateError:
            raise
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise StateError(
                f"the live state cannot be read: {type(error).__name__}: {error}"
            ) from None

    def visible_to(self, viewer: int, privacy: Privacy) -> NodeState:
        """Without the tenants that the viewer may not see; whole cards stay."""
        cards = tuple(
            replace(
                card, tenants=tuple(t for t in card.tenants if privacy.sees_live(viewer, t.uid))
            )
            for card in self.cards
        )
        return replace(self, cards=cards)


class Encoder:
    """Encodes successive states; cards that are the same object are not encoded again."""

    def __init__(self) -> None:
        self._cards: tuple[CardState, ...] | None = None
        self._text = ""

    def text(self, state: NodeState) -> str:
        """The same as `state.to_json()`."""
        if state.cards is not self._cards:
            self._cards, self._text = state.cards, _compact(state.cards)
        head = _compact({"version": VERSION, **vars(state), "cards": 0})
        return f"{head.removesuffix('0}')}{self._text}}}"


# Made once; a state has no cycles, so the check for them is off.
_compact: Callable[[object], str] = json.JSONEncoder(
    separators=(",", ":"), default=vars, check_circular=False
).encode


def _known(kind: type, data: Mapping[str, Any]) -> dict[str, Any]:
    names = {f.name for f in fields(kind)}
    return {name: value for name, value in data.items() if name in names}


def _tenant(data: Mapping[str, Any]) -> TenantState:
    return TenantState(**_known(TenantState, data))


class Seen(NamedTuple):
    """One tenant by the arbiter, in one sample."""

    sample: Sample
    procs: int = 0
    gate: int = 0
    busy: bool = False
    suspended: bool = False
    hardware: str | None = None
    hardware_counters: Mapping[str, int] = MappingProxyType({})


@dataclass(frozen=True)
class Card:
    """One card by NVML, in one sample."""

    uuid: str
    index: int | None
    name: str = ""
    mem_total: int | None = None
    mem_used: int | None = None
    util: int | None = None
    driver_index: int | None = None  # NVML's order; `index` is Slurm's
    jobs: Mapping[int, int] = field(default_factory=dict)  # memory per job, as the driver counts


@dataclass
class Watcher:
    """Turns successive samples into states; keeps the last sample for rates."""

    _before: Mapping[tuple[int, str], Seen] = field(default_factory=dict)
    _before_ns: int = 0
    # Tenants unchanged over two samples keep their state.
    _steady: dict[tuple[int, str], tuple[tuple[Grant, Seen | None, int | None], TenantState]] = (
        field(default_factory=dict)
    )

    def same(self, monotonic_ns: int) -> None:
        """Note a sample without a change: the next rates start here."""
        self._before_ns = monotonic_ns

    def sample(
        self,
        node: str,
        grants: Iterable[Grant],
        tenants: Sequence[Seen] | None,
        cards: Sequence[Card],
        monotonic_ns: int,
        realtime_ns: int,
    ) -> NodeState:
        """The node's state now; `tenants` is None without an answer of the arbiter."""
        seen = {(t.sample.job_id, t.sample.uuid): t for t in tenants or ()}
        known = {card.uuid: card for card in cards}
        rows: dict[str, list[TenantState]] = {card.uuid: [] for card in cards}
        steady, passed_ns = {}, monotonic_ns - self._before_ns
        for grant in sorted(grants, key=lambda g: (g.job_class != "online", g.job_id)):
            for at in grant.cards if grant.state != "refused" else ():
                key = (grant.job_id, at.uuid)
                tenant, was = seen.get(key), self._before.get(key)
                before = None if was is None else was.sample
                card = known.get(at.uuid)
                if card is None:
                    card = known[at.uuid] = Card(at.uuid, at.index, mem_total=at.mem_total)
                    rows[at.uuid] = []
                basis = (grant, tenant, card.jobs.get(grant.job_id))
                kept = self._steady.get(key)
                if kept is not None and kept[0][0] is grant and kept[0][1:] == basis[1:]:
                    state = kept[1]
                else:
                    state = tenant_state(grant, at, tenant, before, passed_ns, basis[2])
                if tenant is not None and before == tenant.sample:
                    steady[key] = (basis, state)
                rows[at.uuid].append(state)
        self._steady, self._before, self._before_ns = steady, seen, monotonic_ns
        order = sorted(known.values(), key=lambda c: (c.index is None, c.index or 0, c.uuid))
        found = tuple(
            CardState(
                c.uuid,
                c.index,
                c.name,
                c.mem_total,
                c.mem_used,
                c.util,
                c.driver_index,
                tuple(rows[c.uuid]),
                None if tenants is None else _use(rows[c.uuid]),
            )
            for c in order
        )
        return NodeState(node, realtime_ns / 1e9, tenants is not None, cards=found)


def _use(tenants: Sequence[TenantState]) -> float | None:
    """Percent of the card that its tenants used; None where none of them was measured."""
    measured = [tenant.share_now for tenant in tenants if tenant.share_now is not None]
    return min(100.0, sum(measured)) if measured or not tenants else None


def tenant_state(
    grant: Grant,
    card: GrantCard,
    seen: Seen | None,
    before: Sample | None,
    passed_ns: int,
    driver_bytes: int | None,
) -> TenantState:
    """The state of one job on one card; `before` is its last sample, `passed_ns` ago."""
    if seen is None or grant.state != "active":
        gained = counters = procs = hardware = None
        word, used = ("whole", driver_bytes) if grant.state == "whole" else ("unknown", None)
    else:
        sample, procs, hardware = seen.sample, seen.procs, seen.hardware
        gained = _since(sample, before, passed_ns)
        word, used = _word(seen, gained), sample.mem_used
        counters = dict(zip(SHOWN, _SHOWN(sample), strict=True))
        if sample.closed_idle_ns is not None:
            counters["closed_idle_ns"] = sample.closed_idle_ns
        counters.update(seen.hardware_counters)
    return TenantState(
        grant.job_id,
        grant.uid,
        grant.job_class,
        word,
        card.share,
        None if gained is None else min(100.0, 100 * gained[0]),
        used,
        card.mem_cap,
        procs,
        None if gained is None else gained[-1] * 1e9,
        grant.created_ns / 1e9,
        counters,
        hardware,
        None if gained is None else min(100.0, 100 * gained[1]),
    )


SHOWN = (
    "busy_ns",
    "launches",
    "denied",
    "preemptions",
    "closed_preempted_ns",
    "closed_share_ns",
    "mem_peak",
)
_SHOWN = attrgetter(*SHOWN)
# All words of TenantState.state.
STATES = (
    "running",
    "preempted",
    "stopped",
    "throttled",
    "suspended",
    "checkpointed",
    "idle",
    "waiting",
    "whole",
    "unknown",
)
# What a tenant mostly does if that time grew most; launches come last.
WORDS = ("running", "preempted", "throttled")
_RATED = attrgetter("busy_ns", "closed_preempted_ns", "closed_share_ns", "launches")


def _since(sample: Sample, before: Sample | None, passed_ns: int) -> list[float] | None:
    """Gains of the times of WORDS and of launches, per ns; None without a last sample."""
    if before is None or passed_ns <= 0:
        return None
    if before.boot_id != sample.boot_id or before.tenant_since != sample.tenant_since:
        return None
    gained = [new - old for new, old in zip(_RATED(sample), _RATED(before), strict=True)]
    return None if min(gained) < 0 else [value / passed_ns for value in gained]


def _word(seen: Seen, gained: list[float] | None) -> str:
    """What the tenant mostly did since the last sample; a quantum is shorter than that."""
    if seen.gate & layout.GATE_WHY_MEMORY:
        return "checkpointed"
    if seen.suspended:
        return "suspended"
    if seen.procs == 0:
        return "waiting"
    if gained is not None:
        most = max(gained[: len(WORDS)])
        word = WORDS[gained.index(most)]
        if most >= IDLE:
            return "stopped" if word == "preempted" and seen.hardware == "stopped" else word
    if seen.hardware == "stopped":
        return "stopped"
    if seen.gate & layout.GATE_CLOSED and seen.busy:
        return "preempted" if seen.gate & layout.GATE_WHY_PREEMPTED else "throttled"
    return "running" if seen.busy and gained is None else "idle"


def write(path: Path, text: str, mode: int) -> None:
    """Replace a file in one step, so readers see it whole. No fsync: a boot removes it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        fd = os.open(temporary, flags, 0o600)
    except FileExistsError:  # left by a process killed while writing
        temporary.unlink(missing_ok=True)
        fd = os.open(temporary, flags, 0o600)
    try:
        try:
            os.fchmod(fd, mode)
            data = text.encode()
            while data:
                data = data[os.write(fd, data) :]
        finally:
            os.close(fd)
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            temporary.unlink()
        raise


def read(path: Path) -> NodeState:
    """The live state in a file. Raises StateError; PermissionError if only qgpud may read it."""
    try:
        with path.open("rb") as file:
            return NodeState.from_json(file.read(MAX_BYTES))
    except PermissionError:
        raise
    except OSError as error:
        raise StateError(
            f"{path}: no live state: {error.strerror}; is qgpud running on this node?"
        ) from None
