"""A whole node with invented cards and an invented arbiter: for tests, and to try qgpud without a
GPU.

`python -m simulator.fakes DIR` serves hook.sock in DIR/run until SIGTERM; `qgpu-hook prolog
--run-dir DIR/run ...` then behaves as on a real node (it needs root, as everywhere).
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

from enforcer.clock import Clock, FakeClock, SystemClock
from enforcer.daemon.arbiter.port import FakeArbiter
from enforcer.daemon.injecting.way import resolved
from enforcer.daemon.log import setup
from enforcer.daemon.node import NodeService
from enforcer.daemon.ports import Ports
from enforcer.daemon.server import Server
from enforcer.ledger.store import FILE_NAME, Ledger
from enforcer.wire.layout import GRANTS_DIR
from gres.config.site import Config, Node, parse_config
from gres.grant.identity import DeviceCard, IdentityError
from gres.grant.store import GrantStore
from simulator.nvml_fake import FakeNvml

GIB = 1 << 30
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
            job_of_pid=self.jobs_of_pids.get,
            boot_time_ns=lambda: self.booted_ns,
            boot_id=lambda: self.boot_id,
            on_tmpfs=lambda path: self.tmpfs,
            alive=lambda pid: pid not in self.dead_pids,
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
