"""Records the arbiter's reports on hardware preemption while jobs run: they end with the grants."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path

from enforcer.wire.link import ArbiterGone, ArbiterLink
from enforcer.wire.messages import HardwareTenant

POLL_S = 0.1  # seconds between two polls: reports end with the grant


class HardwareReports:
    """Polls while inside; keeps the last report on each (job, card)."""

    def __init__(self, run_dir: Path | str) -> None:
        self._run_dir, self._end = run_dir, threading.Event()
        self.tenants: dict[tuple[int, str], HardwareTenant] = {}

    def __enter__(self) -> HardwareReports:
        self._thread = threading.Thread(target=self._poll, daemon=True)
        self._thread.start()
        return self

    def _poll(self) -> None:
        with ArbiterLink(self._run_dir) as link:
            while not self._end.wait(POLL_S):
                with contextlib.suppress(ArbiterGone, OSError):
                    self.tenants |= {(t.job_id, t.uuid): t for t in link.hardware_tenants()}

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join(5)

    @property
    def stops(self) -> int:
        """Of all tenants."""
        return sum(tenant.stops for tenant in self.tenants.values())

    @property
    def failures(self) -> int:
        """Of all tenants."""
        return sum(tenant.failures for tenant in self.tenants.values())

    @property
    def failed(self) -> int:
        """Tenants that are left to gating alone."""
        return sum(tenant.state == "failed" for tenant in self.tenants.values())

    @property
    def usable(self) -> int:
        """Tenants whose self-test passed."""
        return sum(tenant.state in ("ready", "stopped") for tenant in self.tenants.values())

    @property
    def stop_max_us(self) -> float:
        """The slowest stop of any."""
        return max((tenant.stop_max_ns / 1000 for tenant in self.tenants.values()), default=0.0)

    def words(self) -> str:
        """Jobs that have groups, in one line."""
        return "; ".join(
            f"job {t.job_id} {t.state}, {t.method} through the {t.actor}, {t.stops} stops,"
            f" {t.failures} failures{': ' + t.why if t.why else ''}"
            for t in self.tenants.values()
            if t.state != "none"
        )
