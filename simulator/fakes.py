"""Fake cards, and a whole node of them with a fake arbiter: for tests, and to try qgpud without a
GPU.

`python -m simulator.fakes DIR` serves hook.sock in DIR/run until SIGTERM; `qgpu-hook prolog
--run-dir DIR/run ...` then behaves as on a real node (it needs root, as everywhere).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from enforcer.clock import Clock, FakeClock, SystemClock
from enforcer.daemon.arbiter.port import FakeArbiter
from enforcer.daemon.audit.steps import Step, Steps
from enforcer.daemon.devices.port import Device, FakeDevices
from enforcer.daemon.granting.jobshere import Controller
from enforcer.daemon.injecting.way import resolved
from enforcer.daemon.log import setup
from enforcer.daemon.node import NodeService
from enforcer.daemon.ports import Ports
from enforcer.daemon.reclaim.slurm import Queue
from enforcer.daemon.server import Server
from enforcer.ledger.store import FILE_NAME, Ledger
from enforcer.nvml.port import (
    CardInfo,
    CardLoad,
    CardLostError,
    CardUsage,
    GpuProcess,
    MemoryLimits,
    NvmlError,
    NvmlFaultError,
)
from enforcer.wire.layout import GRANTS_DIR
from gres.config.site import Config, Node, parse_config
from gres.grant.identity import DeviceCard, IdentityError
from gres.grant.store import GrantStore

GIB = 1 << 30
UNLIMITED = 2**64 - 1  # the fakes' NVML_DEVICE_MEMORY_LIMIT_MAX; a real driver reports its own
CONFIG = """
version: 1
cluster: fake
run_dir: {directory}/run
state_dir: {directory}/state
driver: {{libcuda: {directory}/libcuda.so.1}}
shim: /usr/lib/qgpu/1/libcuda.so.1
hook: {{deadline: {deadline}}}
qos: {{online: online, offline: offline}}
default_class: offline
models: {{h200: {{memory: 80GiB, reserve: 2GiB}}}}
nodes:
  - {{names: n1, model: h200, count: 2, files: "/dev/qgpufake[0-1]"}}
enforcer: {{nvml_interval: 100ms, ledger_interval: 100ms}}
"""


class FakeNvml:
    """Fake cards. Tests place processes, and remove cards or the whole driver."""

    def __init__(self, cards: Iterable[CardInfo] = ()) -> None:
        self._cards = {card.uuid: card for card in cards}
        self._processes: dict[str, tuple[GpuProcess, ...]] = {}
        self._used: dict[str, int] = {}
        self._busy: dict[str, dict[int, int]] = {}
        self.tells_busy = True  # False: as with MIG
        self.loads: dict[str, CardLoad] = {}
        self._lost: set[str] = set()
        self.failure: str | None = None
        self.fault: str | None = None  # the same, of the kind that does not pass
        self.version = "580.65.06"
        self.limits: dict[tuple[str, str], tuple[int, int]] = {}
        # runs in every call: tests hang or count here
        self.before: Callable[[], object] = lambda: None

    @classmethod
    def with_cards(
        cls, count: int, mem_total: int, first_minor: int = 0, name: str = "fake"
    ) -> FakeNvml:
        """`count` cards whose UUIDs end in their minor number."""
        minors = range(first_minor, first_minor + count)
        return cls(
            CardInfo(f"GPU-fa4e0000-0000-0000-0000-{m:012d}", m, name, mem_total) for m in minors
        )

    def lose(self, uuid: str) -> None:
        """From now on the card does not answer."""
        self._lost.add(uuid)

    def put(
        self,
        uuid: str,
        *processes: GpuProcess,
        used: int | None = None,
        busy: dict[int, int] | None = None,
    ) -> None:
        """Replace the processes on a card; `used` is their sum by default."""
        self._processes[uuid] = processes
        self._used[uuid] = sum(p.mem_used or 0 for p in processes) if used is None else used
        self._busy[uuid] = busy or {}

    def cards(self) -> tuple[CardInfo, ...]:
        """All cards that are not lost."""
        self._check()
        return tuple(card for card in self._cards.values() if card.uuid not in self._lost)

    def processes(self, uuid: str) -> tuple[GpuProcess, ...]:
        """What `put` said last."""
        self._check()
        if uuid in self._lost or uuid not in self._cards:
            raise CardLostError(f"card {uuid} does not answer: GPU is lost")
        return self._processes.get(uuid, ())

    def usage(self, uuid: str, busy: bool = True) -> CardUsage:
        """What `put` said last."""
        did = self._busy.get(uuid, {}) if busy and self.tells_busy else None
        return CardUsage(self.processes(uuid), self._used.get(uuid, 0), did)

    def load(self, uuid: str) -> CardLoad:
        """The load in `loads`; else the memory of `put`."""
        self.processes(uuid)
        return self.loads.get(uuid, CardLoad(None, self._used.get(uuid, 0)))

    def free(self, uuid: str) -> int:
        """What `put` left of the card."""
        self.processes(uuid)
        return self._cards[uuid].mem_total - self._used.get(uuid, 0)

    def driver_version(self) -> str:
        """The value of `version`."""
        self._check()
        return self.version

    def memory_limits(self, uuid: str, cgroup: str) -> MemoryLimits:
        """What was set, on a driver that has limits."""
        self._check_limits(uuid, cgroup)
        soft, hard = self.limits.get((uuid, cgroup), (0, UNLIMITED))
        return MemoryLimits(soft, hard, 0)

    def set_memory_limits(self, uuid: str, cgroup: str, soft: int, hard: int) -> None:
        """Remember them; the cgroup must exist."""
        self._check_limits(uuid, cgroup)
        if (soft, hard) == (0, UNLIMITED):
            self.limits.pop((uuid, cgroup), None)
        else:
            self.limits[uuid, cgroup] = (soft, hard)

    def _check_limits(self, uuid: str, cgroup: str) -> None:
        self._check()
        if int(self.version.partition(".")[0]) < 615:
            raise NvmlError("the NVIDIA driver does not answer through NVML: Function Not Found")
        if uuid not in self._cards or not Path(cgroup).is_dir():
            raise NvmlError("the NVIDIA driver does not answer through NVML: Invalid Argument")

    def close(self) -> None:
        """Nothing to release."""

    def _check(self) -> None:
        self.before()
        if self.failure is not None:
            raise NvmlError(self.failure)
        if self.fault is not None:
            raise NvmlFaultError(self.fault)


def fake_identify(node: Node, indexes: Iterable[int]) -> tuple[DeviceCard, ...]:
    """Card i has minor i; indexes beyond the configured cards are refused as the real function
    does.
    """
    wanted = list(indexes)
    for index in wanted:
        if not 0 <= index < len(node.cards):
            raise IdentityError(
                f"Slurm gave card {index}, but qgpu.yaml names {len(node.cards)} card(s) for"
                f" {node.name}"
            )
    return tuple(DeviceCard(node.cards[index], 245, index) for index in wanted)


class FakeSteps(Steps):
    """Records that a test sets, of slurmstepds that do not run."""

    def __init__(self, directory: Path, node: FakeNode) -> None:
        super().__init__(directory)
        self._node = node

    def job_of(self, pid: int) -> int | None:
        """As the test says."""
        return self._node.jobs_of_pids.get(pid)

    def of(self, job: int) -> list[Step]:
        """One, if the test says so."""
        return [Step(job, 1, 1, ())] if job in self._node.jobs_with_step else []

    def unified(self, jobs: Iterable[int]) -> dict[int, tuple[str, ...] | None]:
        """As the test says, or none."""
        return {job: self._node.job_cgroups.get(job) for job in jobs}

    def adopt(self, jobs: Iterable[int]) -> list[int]:
        """None: no slurmstepd runs for a fake node."""
        return []


class FakeNode:
    """Everything of one fake node under one directory; the parts are public so that tests can move
    them.
    """

    def __init__(self, directory: Path, deadline: str = "10s", clock: Clock | None = None) -> None:
        self.directory = directory
        (directory / "libcuda.so.1").touch()
        for name in ("run", "state"):
            (directory / name).mkdir(mode=0o755, exist_ok=True)
        self.config: Config = parse_config(CONFIG.format(directory=directory, deadline=deadline))
        self.nvml = FakeNvml.with_cards(2, 80 * GIB)
        self.arbiter = FakeArbiter()
        self.clock: Clock = clock or FakeClock()
        self.jobs_of_pids: dict[int, int] = {}
        self.job_cgroups: dict[int, tuple[str, ...]] = {}  # of jobs with a slurmstepd on record
        self.jobs_with_step: set[int] = set()
        self.controller: Controller | None = None
        self.queue: Queue | None = None
        self.devices = FakeDevices()
        self.owners_of_pids: dict[int, int] = {}
        self.booted_ns: int | None = None
        self.boot_id: str | None = None
        self.tmpfs = False  # whether run_dir is taken for one
        self.dead_pids: set[int] = set()  # all others live
        self._services: list[NodeService] = []

    def service(self) -> NodeService:
        """A new daemon on the same directory, as after a restart."""
        ports = Ports(
            open_nvml=lambda: self.nvml,
            arbiter=self.arbiter,
            clock=self.clock,
            identify=fake_identify,
            steps=lambda directory: FakeSteps(directory, self),
            boot_time_ns=lambda: self.booted_ns,
            boot_id=lambda: self.boot_id,
            on_tmpfs=lambda path: self.tmpfs,
            alive=lambda pid: pid not in self.dead_pids,
            controller=self.controller,
            queue=self.queue,
            devices=lambda steps: self.devices,
            devices_of=lambda card: frozenset({Device(195, card.index)}),
            owner_of_pid=lambda pid: self.owners_of_pids.get(pid, 1000),
        )
        store = GrantStore(self.directory / "run" / GRANTS_DIR)
        ledger = Ledger(self.directory / "state" / FILE_NAME)
        self._services.append(
            NodeService(self.config, resolved(self.config.node("n1")), store, ledger, ports)
        )
        return self._services[-1]

    def retire(self, service: NodeService) -> None:
        """Give back what a daemon of this node holds open; in the thread that made it, as its
        ledger demands.
        """
        self._services.remove(service)
        for job_id in list(service.runs.pidfds):
            service.runs.drop(job_id)
        service.ledger.close()

    def close(self) -> None:
        """The same for all that are left."""
        for service in list(self._services):
            self.retire(service)


def main() -> None:
    """Serve a fake node until SIGTERM."""
    setup("info")
    node = FakeNode(Path(sys.argv[1]).absolute(), clock=SystemClock())
    service = node.service()
    service.start()
    Server(service, node.clock).run(lambda: print("ready", flush=True))


if __name__ == "__main__":
    main()
