"""One simulated node without Slurm: the card, the real arbiter, the real shim, and workloads under
grants.

What the benchmarks and the native tests share. Everything is started in a directory of its own and
ends with the `with` block. Needs root (the simulator makes device nodes, and only root can seal a
grant).
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from enforcer.nvml.driver import PynvmlNvml
from enforcer.wire import abi
from enforcer.wire.link import ArbiterLink, CardSettings
from enforcer.wire.messages import HardwareSettings
from gres.config.site import JobClass
from gres.grant.store import Grant, GrantCard
from simulator.judge.gatetrace import Gate, read_gates
from simulator.sim import Interval, SimConfig, Simulator, control_device, read_trace

BUILD = Path(__file__).resolve().parents[2] / "build"
MIB = 1 << 20
# run_dir is /run/qgpu by default, which is in memory.
MEMORY_DIR = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
CARD_MIB = 81_920
DRIVER = 580  # generation that the simulator plays
SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW


SLACK = 4  # times the deadline of an idle machine, for a busy one


def end(process: subprocess.Popen[Any]) -> None:
    """SIGTERM, and SIGKILL where the process has not ended 5 s later."""
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(5)
    if process.poll() is None:
        process.kill()
        process.wait()


def wait_for(
    what: str, condition: Callable[[], bool], seconds: float = 10.0, slack: float = SLACK
) -> None:
    """Poll a condition each 5 ms until it holds; TimeoutError names what did not come."""
    seconds *= slack
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what} did not happen within {seconds:g} s")
        time.sleep(0.005)


@dataclass
class Rig:
    """A node with simulated cards and an arbiter. `governed=False` is the
    control: gates stay open.
    """

    directory: Path
    cards: int = 1
    governed: bool = True
    settings: dict[str, Any] = field(default_factory=dict)
    card_settings: dict[int, dict[str, Any]] = field(default_factory=dict)
    sim_options: Sequence[str] = ()
    hardware: Mapping[str, Any] | None = None  # settings of hardware preemption; None: gating alone
    traced: bool = True  # the arbiter's gate trace, an instrument: it is written 20 times a second
    arbiter_binary: Path = BUILD / "bin/qgpu-arbiter"
    arbiter_options: Sequence[str] = ()
    _running: list[subprocess.Popen[Any]] = field(default_factory=list)
    _sim_before: str | None = field(
        default_factory=lambda: os.environ.get("QGPU_SIM_DIR")
    )  # nvml() sets it

    @property
    def sim_dir(self) -> Path:
        return self.directory / "sim"

    @property
    def run_dir(self) -> Path:
        return self.directory / "run"

    @property
    def driver(self) -> Path:
        return BUILD / "sim/libcuda.so.1"

    @property
    def shim(self) -> Path:
        return BUILD / "shim/libcuda.so.1"

    def __enter__(self) -> Rig:
        self.run_dir.mkdir(parents=True, exist_ok=True, mode=0o755)
        (self.run_dir / abi.GRANTS_DIR).mkdir(exist_ok=True, mode=0o755)
        try:
            self.start_card()
            self.uuids = self._uuids()
            self.start_arbiter()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        if self._sim_before is None:
            os.environ.pop("QGPU_SIM_DIR", None)
        else:
            os.environ["QGPU_SIM_DIR"] = self._sim_before
        for process in reversed(self._running):
            end(process)

    def _daemon(self, argv: Sequence[str | Path], log: str) -> subprocess.Popen[bytes]:
        """Start a daemon and wait for its ready descriptor."""
        ready, ready_end = os.pipe()
        with (self.directory / log).open("ab") as out:
            process = subprocess.Popen(
                [*map(str, argv), "--ready-fd", str(ready_end)],
                stdout=out,
                stderr=out,
                stdin=subprocess.DEVNULL,
                pass_fds=[ready_end],
            )
        self._running.append(process)
        os.close(ready_end)
        said = os.read(ready, 64)
        os.close(ready)
        if not said:
            raise RuntimeError(f"{argv[0]} ended before it was ready; read {self.directory / log}")
        return process

    def adopt(self, process: subprocess.Popen[Any]) -> None:
        """End this process with the rig."""
        self._running.append(process)

    def start_card(self) -> None:
        """Start the device side of all cards."""
        argv: list[str | Path] = [BUILD / "bin/qgpu-simgpu", "--dir", self.sim_dir, "--node", "rig"]
        argv += ["--cards", str(self.cards), "--memory", str(CARD_MIB), *self.sim_options]
        self.card_process = self._daemon(argv, "simgpu.log")

    def start_arbiter(self, told: bool = True) -> None:
        """Start the arbiter and send it cards and grants; a second start is a restart after a
        crash.
        """
        argv: list[str | Path] = [
            self.arbiter_binary,
            "--run-dir",
            self.run_dir,
            *self.arbiter_options,
        ]
        if self.traced:
            argv += ["--trace", self.directory / "gates.bin"]
        self.arbiter = self._daemon(argv, "arbiter.log")
        self.link = ArbiterLink(self.run_dir)
        self.grants: dict[int, Grant] = getattr(self, "grants", {})
        if told:
            self.sync()

    def fault(self, command: str) -> int:
        """A fault of the simulated driver on demand (docs/specs/simulator.md)."""
        return Simulator(SimConfig(self.sim_dir, "rig"), BUILD, self.card_process).control(command)

    def scheduling_policy(self) -> str:
        """The scheduling policy that the arbiter's card threads obtained, as it logged it."""
        found = re.search(
            r"thread runs with policy ([A-Z_]+(?: \d+)?)",
            (self.directory / "arbiter.log").read_text(),
        )
        return found[1] if found else "unknown"

    def sync(self) -> None:
        """Push the settings of all cards and all grants."""
        own = (self.settings | self.card_settings.get(i, {}) for i in range(self.cards))
        cards = [
            CardSettings(u, governed=self.governed, **s)
            for u, s in zip(self.uuids, own, strict=True)
        ]
        self.link.sync(cards, self.grants.values())
        if self.hardware is not None:
            self.order_hardware(**self.hardware)

    def order_hardware(self, **settings: Any) -> None:
        """Hardware preemption on all cards, as qgpud orders it. RuntimeError where the simulator
        offers none.
        """
        device = control_device(self.sim_dir)
        if device is None:
            raise RuntimeError(
                "the simulator offers no control device here: no hardware preemption"
            )
        common = {
            "enabled": True,
            "driver_major": DRIVER,
            "ctl_dev": device[0],
            "ctl_ino": device[1],
        }
        for uuid in self.uuids:
            self.link.hardware(HardwareSettings(uuid, **(common | settings)))

    def nvml(self) -> PynvmlNvml:
        """NVML of this node's simulated driver; close it when done."""
        os.environ["QGPU_SIM_DIR"] = str(self.sim_dir)
        return PynvmlNvml(str(BUILD / "sim/libnvidia-ml.so.1"))

    def _uuids(self) -> list[str]:
        """UUIDs of the cards in order of their minor numbers, by the driver."""
        with contextlib.closing(self.nvml()) as nvml:
            return [card.uuid for card in sorted(nvml.cards(), key=lambda card: card.minor)]

    def grant(
        self,
        job_id: int,
        job_class: JobClass,
        share: int = 50,
        mem_mib: int = 8192,
        card: int | Sequence[int] = 0,
    ) -> Grant:
        """Grant a share of a card (or of each of several) to a job of root, known to the arbiter
        and as JOBID.grant.
        """
        total = CARD_MIB * MIB
        chosen = (card,) if isinstance(card, int) else tuple(card)
        cards = tuple(GrantCard(self.uuids[c], c, c, share, mem_mib * MIB, total) for c in chosen)
        grant = Grant(
            job_id,
            os.getuid(),
            os.getgid(),
            "rig",
            "active",
            job_class,
            time.time_ns(),
            cards=cards,
            run_dir=str(self.run_dir),
            driver_path=str(self.driver),
            shim_path=str(self.shim),
        )
        self.grants[job_id] = grant
        self.link.grant(grant)
        path = self.grant_path(job_id)
        path.write_bytes(abi.pack_grant(grant))
        path.chmod(0o644)
        return grant

    def grant_path(self, job_id: int) -> Path:
        """Where JOBID.grant is."""
        return self.run_dir / abi.GRANTS_DIR / f"{job_id}.grant"

    def sealed(self, grant: Grant) -> int:
        """A sealed memfd of the grant, as SPANK makes it."""
        fd = os.memfd_create("qgpu-grant", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
        os.write(fd, abi.pack_grant(grant))
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, SEALS)
        return fd

    def env(self, grant: Grant | None) -> dict[str, str]:
        """Environment of a task: the driver of this node, and for a grant
        the shim in front of it.
        """
        env = {"PATH": "/usr/bin:/bin", "QGPU_SIM_DIR": str(self.sim_dir)}
        env["LD_LIBRARY_PATH"] = str(self.driver.parent)
        if grant:
            env |= {"LD_PRELOAD": str(self.shim), "QGPU_GRANT": str(self.grant_path(grant.job_id))}
        return env

    def spawn(
        self, argv: Sequence[str | Path], grant: Grant | None, **options: Any
    ) -> subprocess.Popen[str]:
        """Start a program as a task of the job (grant=None: ungoverned, no shim)."""
        env = self.env(grant) | options.pop("env", {})
        fds: list[int] = []
        if grant:
            fds = [self.sealed(grant)]
            env["QGPU_GRANT_FD"] = str(fds[0])
        try:
            process = subprocess.Popen(
                [*map(str, argv)],
                env=env,
                pass_fds=fds,
                text=True,
                stdin=options.pop("stdin", subprocess.DEVNULL),
                stdout=options.pop("stdout", subprocess.PIPE),
                stderr=options.pop("stderr", subprocess.PIPE),
                **options,
            )
        finally:
            for fd in fds:
                os.close(fd)
        self.adopt(process)
        return process

    def workload(self, grant: Grant | None, *args: str, **options: Any) -> subprocess.Popen[str]:
        """Start the workload program with a JSON summary on its standard output."""
        return self.spawn([BUILD / "bin/qgpu-workload", "--json", *args], grant, **options)

    @staticmethod
    def summary(process: subprocess.Popen[str], seconds: float = 120) -> dict[str, Any]:
        """Wait for a workload and return its summary; RuntimeError with
        its own words if it failed.
        """
        out, err = process.communicate(timeout=seconds)
        if process.returncode:
            raise RuntimeError(
                f"the workload ended with status {process.returncode}: {err.strip()}"
            )
        summary: dict[str, Any] = json.loads(out.strip().splitlines()[-1])
        return summary

    @staticmethod
    def summaries(process: subprocess.Popen[str], seconds: float = 120) -> list[dict[str, Any]]:
        """The same for a workload of several processes (--procs): one summary of each."""
        out, err = process.communicate(timeout=seconds)
        if process.returncode:
            raise RuntimeError(
                f"the workload ended with status {process.returncode}: {err.strip()}"
            )
        return [json.loads(line) for line in out.splitlines() if line.startswith("{")]

    def logged(self, name: str) -> list[dict[str, Any]]:
        """The lines of a workload's log in the rig's directory."""
        return [json.loads(line) for line in (self.directory / name).read_text().splitlines()]

    def trace(self) -> list[Interval]:
        """Everything that the cards executed so far; of a device that ended, all that it wrote."""
        if self.card_process.poll() is None:
            self.fault("flush")
        return list(read_trace(self.sim_dir / "trace.bin"))

    def gates(self) -> list[Gate]:
        """Everything that the arbiter did to gates so far."""
        return read_gates(self.directory / "gates.bin")
