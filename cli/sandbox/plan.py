"""What was chosen for one sandbox (ports, uids, device numbers) so that several can live side by
side.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import socket
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from cli.sandbox import cgroups, namespace, processes
from cli.sandbox.errors import SandboxError
from cli.sandbox.layout import Layout
from cli.sandbox.options import MAX_CARDS, MAX_NODES, Driver, Placement, SandboxOptions
from gres.config.site import Injection

FORMAT = 1
DATABASE = "slurm"  # slurmdbd's StorageLoc
# A slot is a block of ports, uids and device minors. Below the usual ephemeral range (32768) and
# above the ports of Slurm itself (6817 to 6819), of databases and of most services.
SLOTS = 100
_FIRST_PORT = 20000
_PORTS = 2 + MAX_NODES
_FIRST_UID = 58000
_MACHINE_LOCK = Path("/root")  # only root can open it, so no user can hold the lock


@dataclass(frozen=True)
class Plan:
    """The content of sandbox.json. Ports are TCP on 127.0.0.1; memory_mib is per card."""

    name: str
    nodes: list[str]
    cards: int
    memory_mib: int
    model: str
    product_name: str
    slot: int
    cgroup: str
    cgroup_why: str
    phase: str = "starting"
    format: int = FORMAT
    slurm: str = "unknown"  # version of its daemons
    native_gres: bool = False  # with our GRES plugins
    injection: Injection = "auto"
    multi_card: bool = False
    placement: Placement = "binpack"
    mig: int = 0
    cgroup_asked: bool = False  # by the user: then nothing takes its place
    cgroup_slice: str = ""  # on cgroup v2; empty: Slurm's own
    cgroup_names: cgroups.Names = "slurm"
    driver: Driver = "580"
    nvlinks: str = ""
    reclaimable: bool = False

    @property
    def cluster(self) -> str:
        """Slurm's ClusterName."""
        return f"qgpu-{self.name}"

    @property
    def port_dbd(self) -> int:
        return _FIRST_PORT + self.slot * _PORTS

    @property
    def port_ctld(self) -> int:
        return self.port_dbd + 1

    def port_slurmd(self, node: str) -> int:
        return self.port_dbd + 2 + self.nodes.index(node)

    @property
    def first_uid(self) -> int:
        """uid and gid of alice; bob's is one more."""
        return _FIRST_UID + self.slot * len(namespace.USERS)

    def minor_base(self, node: str) -> int:
        """First minor number of the node's card devices; unique among the
        sandboxes of the machine.
        """
        return (self.slot * MAX_NODES + self.nodes.index(node)) * MAX_CARDS

    def save(self, layout: Layout) -> None:
        """Write sandbox.json, whole or not at all."""
        temporary = layout.record_new
        temporary.write_text(json.dumps(asdict(self), indent=1) + "\n")
        temporary.replace(layout.record)

    def with_phase(self, phase: str) -> Plan:
        """The same in another phase: starting, up or failed."""
        return replace(self, phase=phase)

    def with_slurm(self, version: str) -> Plan:
        """The same with the version of Slurm that it runs."""
        return replace(self, slurm=version)

    def without_cgroups(self, why: str) -> Plan:
        """The same without task/cgroup."""
        return replace(self, cgroup="none", cgroup_why=why)


def load(layout: Layout) -> Plan | None:
    """The plan of an existing sandbox, None if the directory does not exist.

    Raises SandboxError if it is no sandbox, or if another user could have written it.
    """
    if not layout.state.exists():
        return None
    _check_owner(layout.state)
    try:
        text = layout.record.read_text()
    except FileNotFoundError:
        if all(entry.name == layout.record_new.name for entry in layout.state.iterdir()):
            return None
        raise SandboxError(
            f"{layout.state} is not a sandbox (it has no sandbox.json) and not empty: "
            "choose another --state-dir"
        ) from None
    try:
        raw = json.loads(text)
        if raw.get("format") != FORMAT:
            raise ValueError(f"format {raw.get('format')}, this qgpu knows {FORMAT}")
        return Plan(**raw)
    except (ValueError, TypeError, AttributeError) as error:
        raise SandboxError(
            f"{layout.record} cannot be read ({error}); end that sandbox with the qgpu that made it"
        ) from None


def _check_owner(state: Path) -> None:
    found = state.lstat()
    if not state.is_dir() or state.is_symlink():
        raise SandboxError(f"{state} is not a directory: choose another --state-dir")
    if found.st_uid not in (0, os.geteuid()) or found.st_mode & 0o022:
        raise SandboxError(
            f"{state} belongs to uid {found.st_uid} with mode {found.st_mode & 0o7777:o}: a sandbox"
            " directory must belong to root and be writable by root only; choose another"
            " --state-dir"
        )


@contextlib.contextmanager
def _lock(directory: Path, seconds: float, busy: str) -> Iterator[None]:
    """flock a directory, so that no lock file is left behind;
    SandboxError(busy) if it stays held.
    """
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        deadline = time.monotonic() + seconds
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise SandboxError(busy) from None
                time.sleep(0.05)
        yield
    finally:
        os.close(fd)


def machine_lock() -> contextlib.AbstractContextManager[None]:
    """Held while ports and names are chosen, until a process shows that they are taken; and by
    `down`.
    """
    return _lock(
        _MACHINE_LOCK,
        60,
        f"another `qgpu sandbox` command has held the lock on {_MACHINE_LOCK} for 60 s",
    )


@contextlib.contextmanager
def state_lock(layout: Layout, seconds: float = 0) -> Iterator[None]:
    """Held by the `up` that works on the sandbox; SandboxError if it is held for longer than that.

    Only root can open S/pids, so no job can hold it. As long as it does not exist, machine_lock()
    is held.
    """
    if not layout.pids.is_dir():
        yield
        return
    with _lock(
        layout.pids,
        seconds,
        f"another `qgpu sandbox up` is at work on {layout.state}; wait for its end",
    ):
        yield


def others(state: Path) -> dict[Path, Plan]:
    """The other sandboxes that have a process running."""
    found = {}
    for path in processes.live_states() - {state}:
        with contextlib.suppress(SandboxError, OSError):
            if (plan := load(Layout(path))) is not None:
                found[path] = plan
    return found


def choose(options: SandboxOptions) -> tuple[Plan, socket.socket]:
    """Choose what is free, with machine_lock() held. SandboxError if the node names are in use.

    The slot is the sandbox's for as long as a process has the socket open.
    """
    running = others(options.state)
    names = set(options.node_names)
    for path, plan in running.items():
        if same := sorted(names & set(plan.nodes)):
            raise SandboxError(
                f"the sandbox in {path} has nodes of the same names ({', '.join(same)}): "
                "choose another --name"
            )
    if cgroups.in_use(options.node_names):
        raise SandboxError(
            "another slurmd of this machine uses the cgroups of nodes with these names "
            f"({', '.join(options.node_names)}): choose another --name"
        )
    kind, why = cgroups.choose(options.node_names[0], options.cgroup)
    if kind != "v2" and (options.cgroup_slice or options.cgroup_names != "slurm"):
        raise SandboxError(
            "--cgroup-slice and --cgroup-names need version 2, but this sandbox would have"
            f" {kind}: add --cgroup v2"
        )
    plan = Plan(
        name=options.name,
        nodes=options.node_names,
        cards=options.cards,
        memory_mib=options.memory_mib,
        model=options.model,
        product_name=options.product_name,
        slot=0,
        cgroup=kind,
        cgroup_why=why,
        native_gres=options.native_gres,
        injection=options.injection,
        multi_card=options.multi_card,
        placement=options.placement,
        mig=options.mig,
        cgroup_asked=options.cgroup != "auto",
        cgroup_slice=options.cgroup_slice,
        cgroup_names=options.cgroup_names,
        driver=options.driver,
        nvlinks=options.nvlinks,
        reclaimable=options.reclaimable,
    )
    taken = {other.slot for other in running.values()}
    for slot in range(SLOTS):
        candidate = replace(plan, slot=slot)
        if slot in taken or (held := reserve(slot)) is None:
            continue
        if namespace.uids_free(candidate.first_uid) and _ports_free(candidate):
            return candidate, held
        held.close()
    raise SandboxError(
        f"no free block of {_PORTS} ports from {_FIRST_PORT} on: end another sandbox first"
    )


def reserve(slot: int) -> socket.socket | None:
    """Take the slot; None if a sandbox has it. It is free again once all have closed the socket.

    The name is known where the ports are: in the network namespace. Records and processes of other
    sandboxes may be out of sight: in a tree with a state directory of its own, in a container.
    """
    held = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        held.bind(f"\0qgpu-sandbox-slot-{slot}")
    except OSError as error:
        held.close()
        if error.errno != errno.EADDRINUSE:
            raise
        return None
    return held


def _ports_free(plan: Plan) -> bool:
    ports = [plan.port_dbd, plan.port_ctld, *(plan.port_slurmd(n) for n in plan.nodes)]
    return all(_port_free(port) for port in ports)


def _port_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
