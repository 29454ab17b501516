"""What tenants used, from the arbiter and the driver into the ledger."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from enforcer.clock import Clock
from enforcer.daemon.arbiter.port import Arbiter, Tenant
from enforcer.daemon.log import emit
from enforcer.ledger.store import Ledger


@dataclass
class Sampler:
    """Writes the ledger. A ledger that fails is logged and never stops a job: it is for people to read."""

    ledger: Ledger
    arbiter: Arbiter
    clock: Clock
    tenants: list[Tenant] = field(default_factory=list)
    polled_ns: int = 0
    driver_memory: dict[tuple[int, str], int] = field(default_factory=dict)
    hardware: Callable[[], bool] = lambda: False  # whether it is worth to ask for
    hardware_off: Callable[[Mapping[str, int]], object] = lambda _: None  # cards where the arbiter gave it up

    def poll(self) -> None:
        """Take the tenants' counters into the ledger. Raises ArbiterError when the arbiter is gone."""
        self.tenants = self._with_hardware(self.arbiter.tenants())
        self.polled_ns = self.clock.monotonic_ns()
        samples = [tenant.sample for tenant in self.tenants]
        self.note(self.ledger.record, samples, self.clock.realtime_ns())

    def _with_hardware(self, tenants: list[Tenant]) -> list[Tenant]:
        if not self.hardware() or not tenants:
            return tenants
        told = self.arbiter.hardware_uses()
        if told.hung:
            self.hardware_off(told.hung)
        uses = {(use.job_id, use.uuid): use for use in told.uses}
        return [
            tenant._replace(hardware=uses[tenant.sample.job_id, tenant.sample.uuid])
            if (tenant.sample.job_id, tenant.sample.uuid) in uses
            else tenant
            for tenant in tenants
        ]

    def memory(self, memory: dict[tuple[int, str], int]) -> None:
        """Note memory per (job, card) as the driver counts it."""
        self.driver_memory = dict(memory)
        for (job_id, uuid), used in memory.items():
            self.note(self.ledger.record_memory, job_id, uuid, used)

    def note(self, action: Callable[..., object], *arguments: object) -> None:
        """Call one of the ledger's methods."""
        try:
            action(*arguments)
        except sqlite3.Error as error:
            emit(logging.ERROR, "ledger-failed", ledger=self.ledger.path, why=error)
