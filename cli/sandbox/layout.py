"""Where everything of one sandbox lies. All paths are below the state directory, which `down`
removes.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from cli.sandbox.errors import SandboxError

# sockaddr_un has 108 bytes with the final NUL.
MAX_SOCKET_PATH = 107


def machine_etc(state: Path) -> Path:
    """The copy of the machine's /etc in a sandbox's state directory."""
    return state / "machine" / "etc"


@dataclass(frozen=True)
class NodePaths:
    """The files of one simulated node."""

    name: str
    state: Path

    @property
    def run_dir(self) -> Path:
        """qgpu's run_dir of this node: sockets and grants."""
        return self.state / "run" / self.name

    @property
    def sim_dir(self) -> Path:
        """QGPU_SIM_DIR of this node: sim.sock, dev/, trace.bin."""
        return self.state / "sim" / self.name

    @property
    def state_dir(self) -> Path:
        """qgpu's state_dir of this node."""
        return self.state / "lib" / self.name

    @property
    def ledger(self) -> Path:
        """The usage ledger (SQLite)."""
        return self.state_dir / "ledger.sqlite"

    @property
    def trace(self) -> Path:
        """The simulator's record of executed intervals."""
        return self.sim_dir / "trace.bin"

    @property
    def gates(self) -> Path:
        """The arbiter's record of gate changes."""
        return self.state / "log" / f"{self.name}.gates.bin"

    def log(self, service: str) -> Path:
        """Log file of one of the node's services: simgpu, arbiter, qgpud or slurmd."""
        return self.state / "log" / f"{self.name}.{service}.log"


@dataclass(frozen=True)
class Layout:
    """The files of one sandbox."""

    state: Path

    @property
    def record(self) -> Path:
        """sandbox.json: what was built, and the proof that this directory is a sandbox."""
        return self.state / "sandbox.json"

    @property
    def record_new(self) -> Path:
        """sandbox.json while it is being written."""
        return self.state / "sandbox.new"

    @property
    def etc(self) -> Path:
        return self.state / "etc"

    @property
    def opt(self) -> Path:
        """The product as installed in the sandbox: bin, lib, shim, sim."""
        return self.state / "opt"

    @property
    def slurmd(self) -> Path:
        """What stands before Slurm's own slurmd where that cannot start by itself."""
        return self.opt / "bin/slurmd"

    @property
    def slurm_conf(self) -> Path:
        return self.etc / "slurm.conf"

    @property
    def qgpu_yaml(self) -> Path:
        return self.etc / "qgpu.yaml"

    @property
    def machine_etc(self) -> Path:
        """The sandbox's own /etc, a copy of the machine's with its accounts; the directory's inode
        identifies the sandbox's processes (processes.py).
        """
        return machine_etc(self.state)

    @property
    def munge_socket(self) -> Path:
        return self.state / "munge" / "munge.socket"

    @property
    def db_socket(self) -> Path:
        return self.state / "db" / "mysqld.sock"

    @property
    def pids(self) -> Path:
        return self.state / "pids"

    def log(self, service: str) -> Path:
        """Log file of one of the sandbox's own services, for example slurmctld."""
        return self.state / "log" / f"{service}.log"

    def core_dir(self, daemon: str) -> Path:
        """Working directory of a daemon, where a core lies that it leaves."""
        return self.state / "log" / "core" / daemon

    def home(self, user: str) -> Path:
        return self.state / "home" / user

    def node(self, name: str) -> NodePaths:
        return NodePaths(name, self.state)


def check_length(state: Path, nodes: list[str]) -> None:
    """SandboxError if a unix socket below the state directory would have too long a path."""
    longest = max(len(str(NodePaths(n, state).run_dir / "enforcer.sock")) for n in nodes)
    if longest > MAX_SOCKET_PATH:
        raise SandboxError(
            f"the state directory {state} is {longest - MAX_SOCKET_PATH} characters too long: unix"
            f" sockets below it may have at most {MAX_SOCKET_PATH}; choose a shorter one with"
            " --state-dir"
        )
