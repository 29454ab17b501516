"""The node's cards: NVML's answer, or the last one while NVML hangs or fails briefly."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from enforcer.clock import Clock, SystemClock
from enforcer.daemon.granting.decide import Identify, Paths
from enforcer.daemon.granting.driver import BrokenNodeError, find_driver
from enforcer.daemon.injecting.fitted import FittedShim
from enforcer.daemon.log import emit
from enforcer.nvml.port import CardInfo, NvmlError, NvmlFaultError
from enforcer.nvml.worker import NvmlCaller, NvmlStuckError
from gres.config.site import Config, Node
from gres.grant.identity import IdentityError
from gres.grant.store import Grant
from gres.trusted import UntrustedError, require

# ns in which the last answer covers errors that may pass; then the node is broken
PASSING_NS = 300 * 10**9
RECENT_NS = 10**9  # age of an answer that is good enough for questions of any user


@dataclass
class CardView:
    """Cards of one node; `identify` maps Slurm's index to a place."""

    config: Config
    node: Node
    nvml: NvmlCaller
    identify: Identify
    clock: Clock = field(default_factory=SystemClock)
    fitted: FittedShim = field(init=False)
    _known: tuple[CardInfo, ...] = ()
    _indexes: dict[str, int] = field(default_factory=dict)
    _unknown: str = ""
    _stuck: bool = False
    _failing_since: int | None = None
    _recent: list[tuple[int, CardInfo]] | NvmlError | IdentityError | None = None
    _recent_ns: int = 0

    def __post_init__(self) -> None:
        shim = self.config.shim.replace("%n", self.node.name)
        self.fitted = FittedShim(Path(shim), Path(self.node.state_dir))

    def cards(self) -> tuple[CardInfo, ...]:
        """Cards that answer now; those of the last answer while the driver hangs or fails briefly.

        Raises NvmlError without such an answer, NvmlFaultError for a lasting fault.
        """
        try:
            self._known = self.nvml.call(lambda nvml: nvml.cards())
        except NvmlStuckError as error:
            if not self._stuck:
                emit(logging.ERROR, "nvml-stuck", why=error, known=len(self._known))
            self._stuck = True
            if not self._known:
                raise
        except NvmlFaultError:
            raise
        except NvmlError as error:
            self._bridge(error)
        else:
            self._stuck, self._failing_since = False, None
        return self._known

    def _bridge(self, error: NvmlError) -> None:
        """Use the cards of the last answer, or raise `error`."""
        now = self.clock.monotonic_ns()
        if self._failing_since is None:
            self._failing_since = now
            emit(logging.ERROR, "nvml-failing", why=error, known=len(self._known))
        if not self._known or now - self._failing_since > PASSING_NS:
            raise error

    def paths(self) -> Paths:
        """The paths that grants name on this node. Raises BrokenNodeError."""
        configured = self.config.driver.libcuda.replace("%n", self.node.name)
        driver = find_driver(configured, str(self.fitted.shim))
        self._trust(driver)
        return Paths(self.node.run_dir, driver, self.fitted.path(driver))

    def _trust(self, driver: str) -> None:
        """Check the files that root and Slurm load or run for jobs. Raises BrokenNodeError."""
        shim = self.fitted.shim
        files: dict[str, str | Path] = {
            "driver": driver,
            "shim": shim,
            "NVML shim": shim.with_name("libnvidia-ml.so.1"),
            "SPANK plugin": self.config.spank.replace("%n", self.node.name),
            "hook client": self.config.hook.client.replace("%n", self.node.name),
        }
        try:
            for what, path in files.items():
                require(path, f"the {what}")
        except UntrustedError as error:
            raise BrokenNodeError(str(error)) from None

    def uuids(self, grants: Iterable[Grant]) -> list[str]:
        """Cards of this node: those that qgpu.yaml names and NVML sees, and those of standing
        grants.
        """
        standing = {card.uuid: card.index for grant in grants for card in grant.cards}
        found: dict[str, int] = {}
        why = ""
        try:
            found = {info.uuid: index for index, info in self.configured()}
        except (NvmlError, IdentityError) as error:
            why = str(error)
        if why and why != self._unknown:
            emit(logging.WARNING, "cards-unknown", why=why)
        self._unknown = why
        self._indexes = {**standing, **found}
        return list(dict.fromkeys([*found, *standing]))

    def configured(self) -> list[tuple[int, CardInfo]]:
        """Index and driver's view of each configured card that answers. Raises NvmlError,
        IdentityError.
        """
        by_place = {info.place: info for info in self.cards()}
        named = self.identify(self.node, range(len(self.node.cards)))
        return [(card.spec.index, by_place[card.place]) for card in named if card.place in by_place]

    def recent(self) -> list[tuple[int, CardInfo]]:
        """`configured`, at most one second old: NVML stalls the loop, and any user may ask."""
        if self._recent is None or self.clock.monotonic_ns() - self._recent_ns >= RECENT_NS:
            try:
                self._recent = self.configured()
            except (NvmlError, IdentityError) as error:
                self._recent = error
            self._recent_ns = self.clock.monotonic_ns()
        if isinstance(self._recent, Exception):
            raise self._recent.with_traceback(None)
        return self._recent

    def index(self, uuid: str) -> int:
        """Slurm's index of a card that `uuids` returned; else 0."""
        return self._indexes.get(uuid, 0)
