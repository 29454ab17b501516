"""The node's cards as the daemon knows them: NVML's answer, or the last one while NVML does not answer in time."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field

from enforcer.daemon.decide import Identify, Paths
from enforcer.daemon.driver import find_driver
from enforcer.daemon.log import emit
from enforcer.daemon.nvmlworker import NvmlCaller, NvmlStuckError
from enforcer.nvml import CardInfo, NvmlError
from gres.config import Config, Node
from gres.grants import Grant
from gres.identity import IdentityError


@dataclass
class CardView:
    """Cards of one node; `identify` maps Slurm's index to a minor number."""

    config: Config
    node: Node
    nvml: NvmlCaller
    identify: Identify
    _known: tuple[CardInfo, ...] = ()
    _indexes: dict[str, int] = field(default_factory=dict)
    _unknown: str = ""
    _stuck: bool = False

    def cards(self) -> tuple[CardInfo, ...]:
        """Cards that answer now; those of the last answer while the driver hangs. Raises NvmlError."""
        try:
            self._known = self.nvml.call(lambda nvml: nvml.cards())
        except NvmlStuckError as error:
            if not self._stuck:
                emit(logging.ERROR, "nvml-stuck", why=error, known=len(self._known))
            self._stuck = True
            if not self._known:
                raise
        else:
            self._stuck = False
        return self._known

    def paths(self) -> Paths:
        """What grants say about this node. Raises BrokenNodeError."""
        shim = self.config.shim.replace("%n", self.node.name)
        configured = self.config.driver.libcuda.replace("%n", self.node.name)
        return Paths(self.node.run_dir, find_driver(configured, shim), shim)

    def uuids(self, grants: Iterable[Grant]) -> list[str]:
        """Cards of this node: those that qgpu.yaml names and NVML sees, and those of standing grants."""
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
        """Index and driver's view of each configured card that answers. Raises NvmlError, IdentityError."""
        by_minor = {info.minor: info for info in self.cards()}
        named = self.identify(self.node, range(len(self.node.cards)))
        return [(card.spec.index, by_minor[card.minor]) for card in named if card.minor in by_minor]

    def index(self, uuid: str) -> int:
        """Slurm's index of a card that `uuids` named; 0 for one that it did not."""
        return self._indexes.get(uuid, 0)
