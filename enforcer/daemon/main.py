"""qgpud: `python -m enforcer.daemon.main --config qgpu.yaml --node NAME`. README.md is the map of
its code.

For its administrator: docs/admins.md and the man page qgpud(8).
"""

from __future__ import annotations

import fcntl
import gc
import logging
import os
import socket
import sys
from pathlib import Path

import click

from enforcer.clock import SystemClock
from enforcer.daemon.arbiter.client import SocketArbiter
from enforcer.daemon.granting.jobshere import JobsHere
from enforcer.daemon.injecting.start import make_ready
from enforcer.daemon.injecting.way import keep, probe, resolved
from enforcer.daemon.jobnotes import JobNotes
from enforcer.daemon.log import emit, setup
from enforcer.daemon.node import NodeService
from enforcer.daemon.packets import ServerError
from enforcer.daemon.ports import Ports
from enforcer.daemon.reclaim.slurm import SlurmQueue
from enforcer.daemon.server import Server
from enforcer.ledger.store import FILE_NAME, Ledger, LedgerError
from enforcer.nvml.driver import PynvmlNvml
from enforcer.nvml.port import Nvml
from enforcer.nvml.worker import NvmlThread
from enforcer.reporting.attach import NodeObserver
from enforcer.wire.layout import GRANTS_DIR
from gres.config.site import Config, ConfigError, digest_of, load_config
from gres.grant.store import GrantError, GrantStore
from gres.paths import PATHS
from gres.trusted import UntrustedError, require
from gres.version import VERSION


class StartError(RuntimeError):
    """The daemon cannot start; the text is a sentence."""


def prepare_directory(path: str) -> Path:
    """Make a directory that only root can change. Raises StartError if others can."""
    directory = Path(path)
    try:
        directory.mkdir(mode=0o755, parents=True, exist_ok=True)
        info = directory.stat()
    except OSError as error:
        raise StartError(f"{directory} cannot be made: {error.strerror}") from None
    if info.st_uid != os.geteuid() or info.st_mode & 0o022:
        raise StartError(
            f"{directory} must belong to uid {os.geteuid()} and be writable by it alone"
        )
    try:
        require(directory, "the directory")
    except UntrustedError as error:
        raise StartError(str(error)) from None
    return directory


def only_one(run_dir: Path) -> int:
    """Lock run_dir for this process's life. Raises StartError when another qgpud holds it."""
    fd = os.open(
        run_dir / "qgpud.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600
    )
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        raise StartError(f"another qgpud serves {run_dir} already: stop it first") from None
    return fd


def node_name(given: str | None) -> str:
    """The node's name: as given, as slurmd would call it, or the host's short name."""
    return given or os.environ.get("SLURMD_NODENAME") or socket.gethostname().partition(".")[0]


def open_nvml(config: Config) -> Nvml:
    """The driver's NVML. Raises NvmlError."""
    return PynvmlNvml(config.driver.nvml)


def build(config: Config, name: str) -> Server:
    """Everything of one node, wired. Raises StartError, GrantError, LedgerError."""
    node = resolved(config.node(name))
    run_dir = prepare_directory(node.run_dir)
    state_dir = prepare_directory(node.state_dir)
    clock = SystemClock()
    arbiter = SocketArbiter(str(run_dir), config)
    # At most a third of the hook's deadline: a Prolog must be answered while the driver hangs.
    deadline = min(config.enforcer.nvml_deadline.seconds, config.hook.deadline.seconds / 3)
    ports = Ports(
        open_nvml=lambda: open_nvml(config),
        arbiter=arbiter,
        clock=clock,
        caller=lambda opener: NvmlThread(opener, deadline),
        controller=JobsHere(config.hook.scontrol, name),
        queue=SlurmQueue(config.hook.scontrol, clock),
    )
    store = GrantStore(run_dir / GRANTS_DIR)
    service = NodeService(config, node, store, Ledger(state_dir / FILE_NAME), ports)
    notes = JobNotes(config.hook.scontrol)
    service.reclaimer.moves.tell = notes.tell
    if config.enforcer.audit.notify:
        service.inspector.enforcer.notify = notes.notify
    return Server(service, clock)


def try_injection(config_path: str, name: str) -> None:
    """Try how tasks can get the shim here, for the next start of qgpud.
    Raises what `main` prints.
    """
    config = load_config(config_path, name)
    node = config.node(name)
    run_dir = prepare_directory(node.run_dir)
    if node.injection == "auto":
        keep(probe(config, node), run_dir)


def serve(config_path: str, name: str) -> None:
    """Run qgpud until it is stopped. Raises one of the errors that `main` prints."""
    config, digest = load_config(config_path, name, trusted=True), digest_of(config_path)
    setup(config.logging.level)
    lock = only_one(prepare_directory(config.node(name).run_dir))
    os.umask(0o022)
    server = build(config, name)
    server.service.config_digest = digest
    server.service.start()
    make_ready(server.service)
    observer = NodeObserver.of(server.service, server.clock)
    observer.start()
    server.observe = observer.tick
    gc.collect()
    gc.freeze()  # modules and configuration stay for good: no later collection needs to scan them
    server.run(lambda: emit(logging.INFO, "serving", node=name, socket=server.path))
    observer.close()
    server.service.ledger.close()
    os.close(lock)


@click.command(name="qgpud")
@click.option(
    "--config", default=PATHS.config_file, show_default=True, help="qgpu.yaml of the cluster."
)
@click.option("--node", help="Name of this node in Slurm. Default: the host's short name.")
@click.option(
    "--foreground", is_flag=True, help="Accepted for clarity: qgpud never leaves the foreground."
)
@click.option(
    "--probe-injection",
    is_flag=True,
    help=(
        "Try how tasks can get the shim on this node, note it for the qgpud that starts next, and"
        " end."
    ),
)
@click.version_option(VERSION, prog_name="qgpud", message="%(prog)s %(version)s")
def main(config: str, node: str | None, foreground: bool, probe_injection: bool) -> None:
    """Serve the grants of one node: answer Prolog and Epilog, inform the
    arbiter, keep the ledger.
    """
    del foreground
    if os.geteuid() != 0:
        click.echo("qgpud: it must run as root, because it decides what jobs may do", err=True)
        sys.exit(1)
    try:
        (try_injection if probe_injection else serve)(config, node_name(node))
    except (ConfigError, StartError, GrantError, LedgerError, ServerError) as error:
        click.echo(f"qgpud: {error}", err=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
