"""Bringing a sandbox up, step by step; cluster.py decides when, and
what happens after a failure.
"""

from __future__ import annotations

import os
import re
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

from pydantic import ValidationError

from cli.program import program
from cli.sandbox import accounting, cgroups, files, namespace, nodes, services, usercli
from cli.sandbox.errors import SandboxError
from cli.sandbox.layout import Layout, check_length
from cli.sandbox.options import SandboxOptions
from cli.sandbox.plan import Plan
from cli.sandbox.services import Cluster
from cli.sandbox.versions import native_gres
from gres.config.site import SlurmSettings

Progress = Callable[[str], None]


def check_machine(layout: Layout, options: SandboxOptions) -> None:
    """SandboxError if the sandbox cannot be built here."""
    if os.geteuid() != 0:
        raise SandboxError(
            "a sandbox needs root: its daemons start jobs as other users and make device files"
        )
    services.check_programs()
    _check_slurm(options)
    files.check_products()
    if options.native_gres:
        # its first time takes a minute: not while other sandboxes wait for their ports
        native_gres.build()
    check_length(layout.state, options.node_names)
    _check_reachable(layout.state)


def _check_slurm(options: SandboxOptions) -> None:
    """Report what this Slurm cannot do before anything is made."""
    version = services.slurm_version()
    try:
        SlurmSettings(version=version, multi_card=options.multi_card, placement=options.placement)
    except ValidationError as error:
        why = str(error.errors()[0]["msg"]).removeprefix("Value error, ")
        raise SandboxError(f"{why}; other versions: {program()} sandbox up --slurm 24.11") from None
    _check_names(options, version)


def _check_names(options: SandboxOptions, version: str) -> None:
    """SandboxError for names of cgroups that this Slurm cannot give."""
    asked = {
        "--cgroup-slice": (options.cgroup_slice, "25.11"),
        "--cgroup-names": (options.cgroup_names.removeprefix("slurm"), "26.05"),
    }
    for option, (value, first) in asked.items():
        if value and version < first:
            raise SandboxError(
                f"{option} {value} needs Slurm {first} or later, and this is {version}; another"
                f" version: {program()} sandbox up --slurm 26.05"
            )


def _check_reachable(state: Path) -> None:
    """Users and MariaDB must be able to reach the directory."""
    for parent in state.parents:
        if parent.is_dir() and not parent.stat().st_mode & 0o001:
            raise SandboxError(
                f"the sandbox's users cannot pass {parent} (mode"
                f" {parent.stat().st_mode & 0o777:o}): choose a --state-dir whose parents all may"
                " be entered, for example below /var/tmp"
            )


def prepare(layout: Layout, chosen: Plan) -> None:
    """Make the state directory, with the record first, so that a crash at any later point can be
    cleaned.
    """
    old_umask = os.umask(0o022)
    try:
        layout.state.mkdir(parents=True, exist_ok=True)
        chosen.save(layout)
        files.make_directories(layout, chosen)
        files.install(layout)
        if chosen.native_gres:
            native_gres.install(layout)
        if chosen.cgroup == "v2":
            cgroups.make_scopes(chosen.nodes, chosen.cgroup_slice or cgroups.SLICE)
        slurmd = shutil.which("slurmd", path=services.PATH)
        if chosen.cgroup == "v2" and cgroups.hybrid() and slurmd is not None:
            files.wrap_slurmd(layout, slurmd)
        usercli.write(layout, chosen.nodes)
        namespace.write_accounts(layout, chosen.first_uid)
        files.write_munge_key(layout)
    finally:
        os.umask(old_umask)


def write_slurm(layout: Layout, chosen: Plan) -> None:
    """Slurm's configuration files."""
    files.write_slurm(layout, chosen, native_gres.search_path(layout) if chosen.native_gres else "")


def run(cluster: Cluster, progress: Progress) -> Cluster:
    """Start all parts, in the order of their dependencies."""
    constrained = "" if cluster.plan.cgroup != "none" else "NOT "
    progress(f"cards are {constrained}constrained: {cluster.plan.cgroup_why}")
    files.write_qgpu_yaml(cluster.layout, cluster.plan, services.slurm_version())
    write_slurm(cluster.layout, cluster.plan)
    with _Parallel(lambda stopped: _start_node_services(cluster, stopped)) as cards:
        progress("munge, MariaDB and slurmdbd")
        services.start_munge(cluster)
        services.prepare_database(cluster)
        services.start_database(cluster)
        services.start_slurmdbd(cluster)
        progress("accounts and QOS")
        accounting.set_up(cluster)
        progress("simulated cards, arbiters and qgpud")
        cards.result()
    progress("slurmctld and the slurmds")
    cluster = _start_slurm(cluster, progress)
    cluster.plan.with_phase("up").save(cluster.layout)
    return cluster


def _start_node_services(cluster: Cluster, stopped: threading.Event) -> None:
    for service in nodes.SERVICES[:-1]:
        for node in cluster.plan.nodes:
            if not stopped.is_set():
                nodes.start(cluster, node, service)


def _start_slurm(cluster: Cluster, progress: Progress) -> Cluster:
    try:
        _start_slurm_once(cluster)
        return cluster
    except SandboxError as error:
        complaint = _cgroup_complaint(cluster)
        if cluster.plan.cgroup == "none" or cluster.plan.cgroup_asked or complaint is None:
            raise error
        why = f"slurmd does not start with cgroup {cluster.plan.cgroup} here, it says: {complaint}"
        progress(f"cards are NOT constrained: {why}")
    for name in ("slurmctld", *(f"{n}.slurmd" for n in cluster.plan.nodes)):
        if cluster.daemons.running(name):
            cluster.daemons.kill(name)
    cluster = Cluster(cluster.plan.without_cgroups(why), cluster.layout, cluster.daemons)
    write_slurm(cluster.layout, cluster.plan)
    _start_slurm_once(cluster)
    return cluster


def _cgroup_complaint(cluster: Cluster) -> str | None:
    """The first error of a slurmd that is about cgroups."""
    for node in cluster.plan.nodes:
        log = cluster.layout.node(node).log("slurmd")
        for line in log.read_text(errors="replace").split("\n") if log.exists() else []:
            if re.search(r"\b(fatal|error):.*cgroup", line):
                return line.partition("] ")[2]
    return None


def _start_slurm_once(cluster: Cluster) -> None:
    services.start_slurmctld(cluster)
    for node in cluster.plan.nodes:
        nodes.start(cluster, node, "slurmd")
    services.await_nodes(cluster)


class _Parallel:
    """A function in a thread. Leaving the block waits for its end;
    result() raises its exception.
    """

    def __init__(self, work: Callable[[threading.Event], None]) -> None:
        self._error: BaseException | None = None
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._guard, args=(work,), daemon=True)

    def _guard(self, work: Callable[[threading.Event], None]) -> None:
        try:
            work(self._stopped)
        except BaseException as error:
            self._error = error

    def __enter__(self) -> _Parallel:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()

    def result(self) -> None:
        self._thread.join()
        if self._error is not None:
            raise self._error
