"""The sandbox as an object: what the commands, the demo, the benchmarks and the live tests use.

with Sandbox(SandboxOptions(name="test2")) as sandbox:
    job = sandbox.run(["sbatch", "--parsable", "--gres=qgpu:30", "job.sh"], user="alice").stdout
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType

from cli.program import program
from cli.sandbox import bringup, cgroups, namespace, nodes, plan, processes, services
from cli.sandbox.daemons import Daemons
from cli.sandbox.ended import Core
from cli.sandbox.errors import SandboxError
from cli.sandbox.layout import Layout, NodePaths
from cli.sandbox.options import DEFAULT_ROOT, SandboxOptions, state_of
from cli.sandbox.plan import Plan
from cli.sandbox.services import PATH, Cluster

Progress = Callable[[str], None]


def _silent(_: str) -> None:
    return


class Sandbox:
    """A private cluster, running or not. Methods raise SandboxError with a sentence."""

    def __init__(self, options: SandboxOptions | None = None, progress: Progress = _silent) -> None:
        self.options = options or SandboxOptions()
        self.layout = Layout(self.options.state)
        self.progress = progress
        self._daemons = Daemons(self.layout, {"PATH": PATH, "LANG": "C.UTF-8"})

    @classmethod
    def existing(cls, name: str = "default", state_dir: Path | None = None) -> Sandbox:
        """The sandbox in that directory, with the shape it was made with; SandboxError if there is
        none.
        """
        state = state_of(name, state_dir)
        found = plan.load(Layout(state))
        if found is None:
            raise SandboxError(
                f"there is no sandbox in {state}: start one with {program()} sandbox up"
            )
        options = SandboxOptions(
            found.name,
            len(found.nodes),
            found.cards,
            found.memory_mib,
            found.model,
            state,
            found.native_gres,
            found.injection,
            found.multi_card,
            found.placement,
            found.mig,
            cgroup_slice=found.cgroup_slice,
            cgroup_names=found.cgroup_names,
            driver=found.driver,
            nvlinks=found.nvlinks,
            reclaimable=found.reclaimable,
        )
        return cls(options)

    # -- whole ------------------------------------------------------------

    def up(self, keep_failed: bool = False) -> None:
        """Bring the cluster up and return when all nodes are idle.

        After a failure nothing is left, or with keep_failed all of it for reading the logs."""
        bringup.check_machine(self.layout, self.options)
        with plan.machine_lock():
            self._clear_old()
            chosen, slot = plan.choose(self.options)
            with slot:
                chosen = chosen.with_slurm(services.slurm_version())
                bringup.prepare(self.layout, chosen)
                held = self._hold_state()
                holder = namespace.start_holder(self.layout, chosen.cgroup, slot)
            self._daemons.remember("namespace", holder)
        with held:
            try:
                bringup.run(Cluster(chosen, self.layout, self._daemons), self.progress)
            except BaseException as error:
                self._after_failure(chosen, keep_failed, error)
                raise

    def _hold_state(self) -> contextlib.ExitStack:
        stack = contextlib.ExitStack()
        stack.enter_context(plan.state_lock(self.layout))
        return stack

    def _clear_old(self) -> None:
        """Remove what a crashed `up` left; refuse if the sandbox is up or just being made."""
        old = plan.load(self.layout)
        if old is None:
            return
        with plan.state_lock(self.layout):
            if old.phase == "up" and processes.members(self.layout.state):
                raise SandboxError(
                    f"the sandbox {old.name!r} is already up in {self.layout.state}; "
                    f"end it with: {program()} sandbox down{self.selector}"
                )
            self.progress(f"removing what an earlier `up` left in {self.layout.state}")
            self._remove(old)

    def _after_failure(self, chosen: Plan, keep: bool, error: BaseException) -> None:
        if keep:
            chosen.with_phase("failed").save(self.layout)
            self.progress(
                f"kept for reading: {self.layout.state}/log; end with: {program()} sandbox"
                f" down{self.selector}"
            )
            return
        if isinstance(error, SandboxError):
            self.progress("failed; removing everything again (--keep-failed leaves the logs)")
        with plan.machine_lock():
            self._remove(chosen)

    def down(self, wait_seconds: float = 60) -> bool:
        """End every process and remove everything, whatever state it is in; False if there was
        nothing.
        """
        if processes.inside(self.layout.state):
            raise SandboxError(
                "this shell runs inside the sandbox: leave it first, then end it from outside"
            )
        found = plan.load(self.layout)
        if found is None:
            return self._remove_remains()
        with plan.state_lock(self.layout, wait_seconds), plan.machine_lock():
            self._remove(found)
        return True

    def _remove_remains(self) -> bool:
        """What is there without a record: an `up` killed at its first step, or files removed by
        hand.
        """
        there = self.layout.state.is_dir()
        self.layout.record_new.unlink(missing_ok=True)
        strays = processes.end_all(self.layout.state)
        if there:
            self.layout.state.rmdir()
        self._remove_root()
        return there or strays > 0

    def _remove(self, chosen: Plan) -> None:
        processes.end_all(self.layout.state)
        self._daemons.reap()
        cgroups.remove(chosen.nodes)
        self._remove_directory()
        if left := cgroups.left_behind(chosen.nodes):
            raise SandboxError(
                f"the cgroup {left[0]} could not be removed: a process that is not ours is in it"
            )

    def _remove_directory(self) -> None:
        if self.layout.state.exists():
            shutil.rmtree(self.layout.state)
        self._remove_root()

    def _remove_root(self) -> None:
        if self.layout.state.parent == DEFAULT_ROOT:
            with contextlib.suppress(OSError):
                DEFAULT_ROOT.rmdir()

    def __enter__(self) -> Sandbox:
        self.up()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, *_: BaseException | TracebackType | None
    ) -> None:
        if kind is not None and (words := self.last_words()):
            print(words, file=sys.stderr)
        self.down()

    # -- inside ------------------------------------------------------------

    @property
    def plan(self) -> Plan:
        """What was chosen for the running sandbox."""
        found = plan.load(self.layout)
        if found is None:
            raise SandboxError(
                f"there is no sandbox in {self.layout.state}: start one with {program()} sandbox up"
            )
        return found

    @property
    def selector(self) -> str:
        """Options that name this sandbox on the command line, each after a blank; "" for the
        default.
        """
        words = "" if self.options.name == "default" else f" --name {self.options.name}"
        if self.options.state_dir is None or self.layout.state == DEFAULT_ROOT / self.options.name:
            return words
        return f"{words} --state-dir {self.layout.state}"

    @property
    def config(self) -> Path:
        """The sandbox's qgpu.yaml."""
        return self.layout.qgpu_yaml

    @property
    def node_names(self) -> list[str]:
        return self.plan.nodes

    def node(self, name: str) -> NodePaths:
        """The paths of a node: run_dir, sim_dir, ledger, trace, gates, log(service)."""
        if name not in self.plan.nodes:
            raise SandboxError(
                f"the sandbox has no node {name!r}; its nodes are {', '.join(self.plan.nodes)}"
            )
        return self.layout.node(name)

    def env(self, user: str | None = None) -> dict[str, str]:
        """The whole environment of a command inside the sandbox."""
        home = "/root" if user is None else str(self.layout.home(user))
        kept = {
            k: os.environ[k] for k in ("TERM", "COLUMNS", "LINES", "COLORTERM") if k in os.environ
        }
        return {
            **kept,
            "LANG": "C.UTF-8",
            "PATH": f"{self.layout.opt}/bin:{PATH}",
            "HOME": home,
            "USER": user or "root",
            "LOGNAME": user or "root",
            "SHELL": "/bin/bash",
            "SLURM_CONF": str(self.layout.slurm_conf),
            "QGPU_CONFIG": str(self.layout.qgpu_yaml),
            "QGPU_SANDBOX": str(self.layout.state),
        }

    def argv(
        self, command: Sequence[str], user: str | None = None, cwd: Path | str | None = None
    ) -> list[str]:
        """The command line that runs a command inside the sandbox; user is alice, bob or None for
        root.

        The working directory is the user's home, or for root the current one.
        """
        if user is not None and user not in namespace.USERS:
            raise SandboxError(
                f"the sandbox has no user {user!r}: its users are alice, bob and root"
            )
        where = cwd or (Path.cwd() if user is None else self.layout.home(user))
        return [*namespace.enter(self._daemons.anyone(), where, user), *command]

    def run(
        self,
        command: Sequence[str],
        user: str | None = None,
        check: bool = True,
        cwd: Path | str | None = None,
        env: Mapping[str, str] | None = None,
        input: str | None = None,
        timeout: float | None = 120,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command inside and return its output; SandboxError if it fails and check is set."""
        done = subprocess.run(
            self.argv(command, user, cwd),
            env={**self.env(user), **(env or {})},
            input=input,
            stdin=subprocess.DEVNULL if input is None else None,
            capture_output=True,
            text=True,
            errors="replace",  # names of jobs are any bytes
            timeout=timeout,
            check=False,
        )
        if check and done.returncode != 0:
            words = " ".join(command)
            dead = self.last_words()
            raise SandboxError(
                f"{words} ended with status {done.returncode}:"
                f" {(done.stderr or done.stdout).strip()}" + (f"\n{dead}" if dead else "")
            )
        return done

    def popen(self, command: Sequence[str], user: str | None = None) -> subprocess.Popen[str]:
        """The same without waiting; stdout and stderr are one pipe."""
        return subprocess.Popen(
            self.argv(command, user),
            env=self.env(user),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",  # names of jobs are any bytes
        )

    # -- single daemons ------------------------------------------------------------

    def services(self) -> dict[str, bool]:
        """Every daemon by name (slurmctld, n1.arbiter, ...) and whether it runs."""
        return {name: self._daemons.running(name) for name in self._daemons.names()}

    def last_words(self) -> str:
        """How each daemon ended that ended by itself, and what it said last; "" if all run."""
        return "\n".join(self._daemons.last_words(name) for name in self._daemons.dead())

    def cores(self) -> list[Core]:
        """The cores of these daemons, as far as they left one that can be found."""
        found = (self._daemons.core(name) for name in self._daemons.dead())
        return [core for core in found if core is not None]

    def pid(self, node: str, service: str) -> int:
        """Process id of a node's service: simgpu, arbiter, qgpud or slurmd."""
        who = self._daemons.find(self._service(node, service))
        if who is None or not who.alive():
            raise SandboxError(f"{service} of {node} does not run")
        return who.pid

    def kill(self, node: str, service: str, signum: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal to a node's service; returns after its end for SIGKILL and SIGTERM."""
        self._daemons.kill(self._service(node, service), signum)

    def start(self, node: str, service: str) -> None:
        """Start a node's service again, as `up` did, and wait until it is ready."""
        name = self._service(node, service)
        if self._daemons.running(name):
            raise SandboxError(f"{service} of {node} runs already")
        nodes.start(self._cluster(), node, service)

    def restart(self, service: str) -> None:
        """Kill a daemon of the cluster itself with SIGKILL and start it again; returns when it
        answers.
        """
        starts = {
            "mariadbd": services.start_database,
            "slurmdbd": services.start_slurmdbd,
            "slurmctld": services.start_slurmctld,
        }
        if service not in starts:
            raise SandboxError(f"{service!r} is not one of {', '.join(starts)}")
        self._daemons.kill(service, signal.SIGKILL)
        starts[service](self._cluster())
        if service == "slurmctld":
            services.await_registration(self._cluster())

    def restart_controller(self) -> None:
        """Restart slurmctld; returns when it has the nodes' cards."""
        self._daemons.kill("slurmctld", signal.SIGTERM)
        services.start_slurmctld(self._cluster())
        services.await_registration(self._cluster())

    def _cluster(self) -> Cluster:
        return Cluster(self.plan, self.layout, self._daemons)

    def _service(self, node: str, service: str) -> str:
        self.node(node)
        if service not in nodes.SERVICES:
            raise SandboxError(
                f"a node has no service {service!r}; its services are {', '.join(nodes.SERVICES)}"
            )
        return f"{node}.{service}"
