"""Writes what tenants used, by the arbiter and the driver, to the ledger."""

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
    """Writes the ledger. A failing ledger is logged and never stops a job."""

    ledger: Ledger
    arbiter: Arbiter
    clock: Clock
    tenants: list[Tenant] = field(default_factory=list)
    polled_ns: int = 0
    driver_memory: dict[tuple[int, str], int] = field(default_factory=dict)
    # whether hardware preemption is ordered on any card
    hardware: Callable[[], bool] = lambda: False
    # called with cards where the arbiter gave it up
    hardware_off: Callable[[Mapping[str, int]], object] = lambda _: None

    def poll(self) -> None:
        """Write the tenants' counters to the ledger. Raises ArbiterError
        when the arbiter is gone.
        """
        self.tenants = self._with_hardware(self.arbiter.tenants())
        self.polled_ns = self.clock.monotonic_ns()
        samples = [tenant.sample for tenant in self.tenants]
        self.note(self.ledger.record, samples, self.clock.realtime_ns())

    def _with_hardware(self, tenants: list[Tenant]) -> list[Tenant]:
        if not self.hardware() or not tenants:
            return tenants
        report = self.arbiter.hardware_uses()
        if report.hung:
            self.hardware_off(report.hung)
        uses = {(use.job_id, use.uuid): use for use in report.uses}
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
        """Call a method of the ledger; an error is logged."""
        try:
            action(*arguments)
        except sqlite3.Error as error:
            emit(logging.ERROR, "ledger-failed", ledger=self.ledger.path, why=error)
