"""The daemon's arbiter port on the real arbiter.sock, through enforcer.arbiter_link."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from enforcer import arbiter_link as link
from enforcer.abi import AbiError
from enforcer.daemon.arbiter import ArbiterError, ArbiterRefusedError, Synced, Tenant
from enforcer.ledger import Sample
from gres.config import Config
from gres.grants import Grant

TIMEOUT_S = 1.0  # the arbiter answers within microseconds; one that does not is stuck


class _Link(link.ArbiterLink):
    def fileno(self) -> int | None:
        """The connection's descriptor, for a selector."""
        return None if self._sock is None else self._sock.fileno()


def card_settings(config: Config, uuid: str) -> link.CardSettings:
    """What qgpu.yaml says about every card."""
    settings = config.enforcer
    return link.CardSettings(
        uuid=uuid,
        idle_release_ms=settings.idle_release.ms,
        window_us=settings.window.us,
        slice_us=settings.slice.us,
        lease_ms=settings.lease.ms,
        grace_ms=settings.grace.ms,
        policy_online=config.classes["online"].policy,
        policy_offline=config.classes["offline"].policy,
        governed=settings.isolation == "governed",
    )


def sample_of(stats: link.TenantStats, boot_id: int) -> Sample:
    """A tenant's counters as the ledger takes them."""
    return Sample(
        job_id=stats.job_id,
        uuid=stats.uuid,
        boot_id=boot_id,
        tenant_since=stats.granted_ns,
        busy_ns=stats.busy_ns,
        launches=stats.launches,
        denied=stats.mem_denied,
        preemptions=stats.preemptions,
        closed_preempted_ns=stats.closed_preempted_ns,
        closed_share_ns=stats.closed_share_ns,
        mem_peak=stats.mem_peak,
        gate_close_max_ns=stats.gate_close_max_ns,
    )


class SocketArbiter:
    """Implements enforcer.daemon.arbiter.Arbiter. One thread only."""

    def __init__(self, run_dir: str, config: Config) -> None:
        self._link = _Link(run_dir, TIMEOUT_S)
        self._config = config

    def connect(self, uuids: Callable[[], Sequence[str]], grants: Sequence[Grant]) -> Synced:
        """Connect and hand over the full list; what the arbiter refuses does not stop the rest."""
        refused: dict[int, str] = {}
        cards_refused: list[str] = []
        try:
            self._link.close()
            boot_id = self._link.hello()
            told = tuple(uuids())
            for uuid in told:
                self._card(uuid, cards_refused)
            for grant in grants:
                try:
                    self.grant(grant)
                except ArbiterRefusedError as error:
                    refused[grant.job_id] = str(error)
            self._link.synced()
        except (link.ArbiterGone, link.ArbiterError, AbiError) as error:
            self._link.close()
            raise ArbiterError(str(error)) from None
        return Synced(boot_id, told, refused, tuple(cards_refused))

    def _card(self, uuid: str, refused: list[str]) -> None:
        try:
            self._link.card(card_settings(self._config, uuid))
        except (link.ArbiterError, AbiError) as error:
            refused.append(str(error))

    def grant(self, grant: Grant) -> None:
        """Add or update one grant."""
        try:
            self._link.grant(grant)
        except link.ArbiterGone as error:
            raise ArbiterError(str(error)) from None
        except (link.ArbiterError, AbiError) as error:
            raise ArbiterRefusedError(str(error)) from None

    def revoke(self, job_id: int) -> None:
        """The job ended."""
        try:
            self._link.revoke(job_id)
        except (link.ArbiterGone, link.ArbiterError) as error:
            self._link.close()
            raise ArbiterError(str(error)) from None

    def tenants(self) -> list[Tenant]:
        """All tenants now."""
        try:
            found = self._link.stats()
        except (link.ArbiterGone, AbiError) as error:
            self._link.close()
            raise ArbiterError(str(error)) from None
        return [Tenant(sample_of(stats, self._link.boot_id or 0), stats.procs) for stats in found]

    def fileno(self) -> int | None:
        """Descriptor of the connection."""
        return self._link.fileno()

    def close(self) -> None:
        """End the connection."""
        self._link.close()
