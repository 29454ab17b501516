"""The section `enforcer` of qgpu.yaml: settings of qgpud, the audit and the arbiter."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from gres.config.schema import (
    AbsPath,
    BusyWindow,
    Exemption,
    Grace,
    HardwareActor,
    HardwareMethod,
    IdleRelease,
    Isolation,
    Lease,
    Managed,
    MibUp,
    OnlineDelay,
    OnlineShare,
    OnOff,
    Section,
    Slice,
    Time,
    Window,
)
from gres.paths import PATHS
from gres.units import Duration


class AuditSettings(Section):
    """Actions of the audit.

    * `action`: after a finding: a process without the shim, a job above its cap plus `slack` (MiB),
      or GPU time beyond the booked by `busy_slack` percent of a `busy_window`
    * `notify`: tell the job's user of a process without the shim
    * `excuse`: exemption of stopped or surplus processes where NVML reports no utilisation
    """

    action: Literal["log", "stop", "kill"] = "log"
    notify: bool = True
    slack: MibUp = 512
    busy_window: BusyWindow = Duration(10 * 10**9)
    busy_slack: int = Field(default=5, ge=1, le=100)
    excuse: Exemption = Duration(300 * 10**9)


class HardwareSettings(Section):
    """Preemption by the driver's control calls (docs/specs/hardware.md).

    `auto`: only simulated cards, until the experiments ran on a real one. `weights`: shares by the
    groups' time slices, in place of quanta.
    """

    enabled: OnOff = "auto"
    method: HardwareMethod = "auto"
    actor: HardwareActor = "auto"
    weights: bool = False


class EnforcerSettings(Section):
    """What qgpud and the arbiter do on a node."""

    idle_release: IdleRelease = Duration(100 * 10**6)
    online_delay: OnlineDelay = Duration(10**6)  # of idle_release: auto
    online_share: OnlineShare = "off"  # the same
    # Chosen on the simulator: a wider window raises online's p99, a narrower one lowers offline's
    # harvest (docs/measurements/README.md). A request of 5 ms that finds offline waits for 5.5 % of
    # its time at most.
    window: Window = Duration(275 * 10**3)
    slice: Slice = Duration(2 * 10**6)
    lease: Lease = Duration(10 * 10**9)
    grace: Grace = Duration(2 * 10**9)
    arbiter: AbsPath = PATHS.arbiter
    nvml_interval: Time = Duration(10**9)
    nvml_deadline: Time = Duration(2 * 10**9)
    ledger_interval: Time = Duration(2 * 10**9)
    isolation: Isolation = "governed"
    suspend_together: bool = True
    audit: AuditSettings = AuditSettings()
    memory_backend: Literal["auto", "ledger", "nvml"] = "auto"
    managed: Managed = "full"
    hardware: HardwareSettings = HardwareSettings()
