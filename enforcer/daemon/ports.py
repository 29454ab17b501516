"""What the node's service uses of its surroundings; tests put fakes here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from enforcer.clock import Clock
from enforcer.daemon.arbiter.port import Arbiter
from enforcer.daemon.audit.procs import alive, boot_id, boot_time_ns, on_tmpfs, owner_of
from enforcer.daemon.audit.steps import Steps
from enforcer.daemon.devices.control import JobDevices
from enforcer.daemon.devices.port import Device, Devices, devices_of
from enforcer.daemon.granting.decide import Identify
from enforcer.daemon.granting.jobshere import Controller
from enforcer.daemon.reclaim.slurm import Queue
from enforcer.nvml.port import Nvml
from enforcer.nvml.worker import NvmlCaller, NvmlInline
from gres.config.node import CardSpec
from gres.grant.identity import identify


@dataclass
class Ports:
    """The node's surroundings."""

    open_nvml: Callable[[], Nvml]
    arbiter: Arbiter
    clock: Clock
    identify: Identify = identify
    steps: Callable[[Path], Steps] = Steps  # those recorded in a directory
    devices: Callable[[Steps], Devices] = JobDevices  # of the jobs of these steps
    devices_of: Callable[[CardSpec], frozenset[Device]] = devices_of
    boot_time_ns: Callable[[], int | None] = boot_time_ns
    boot_id: Callable[[], str | None] = boot_id
    on_tmpfs: Callable[[Path], bool] = on_tmpfs
    caller: Callable[[Callable[[], Nvml]], NvmlCaller] = NvmlInline
    alive: Callable[[int], bool] = alive
    owner_of_pid: Callable[[int], int | None] = owner_of
    controller: Controller | None = None  # None: slurmctld is not asked
    queue: Queue | None = None  # the same: no job is requeued
