"""This machine's card under qgpu without Slurm: both daemons, and programs started three ways.

`plain`: as if qgpu were not there, so the driver's time slices alone share the card. `qgpu`: by
`qgpu run`. `mps`: as clients of an MPS daemon of our own (its own pipe directory; nothing of the
card is set). Only processes that were started here are ever touched.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from bench.gpu.place import BUILD, ROOT, Place, loaded_driver
from bench.harness.node import end
from enforcer.nvml.driver import PynvmlNvml
from enforcer.wire.link import ArbiterGone, ArbiterLink, ProcessStats, TenantStats

Way = Literal["plain", "qgpu", "mps"]
NAME = "local"
READY_S = 30.0


class NodeError(RuntimeError):
    """Something of the node did not start or answer; the text is a sentence."""


def wait_for(what: str, condition: Callable[[], object], seconds: float = READY_S) -> None:
    """Wait until it is true; NodeError names what did not come."""
    limit = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > limit:
            raise NodeError(f"{what} did not happen within {seconds:g} s")
        time.sleep(0.01)


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(1, int(signal.SIGKILL), 0, 0, 0)


class Node:
    """The daemons, the card, and what runs on it. Ends all that it started."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self._stack = contextlib.ExitStack()
        self._mps: Path | None = None
        self.running: list[subprocess.Popen[str]] = []

    def __enter__(self) -> Node:
        base = "/run" if os.access("/run", os.W_OK) else None
        self.directory = Path(tempfile.mkdtemp(prefix="qgpu-gpu-", dir=base))
        self._stack.callback(shutil.rmtree, self.directory, ignore_errors=True)
        try:
            self._open()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.end_programs()
        self._stack.close()

    def _open(self) -> None:
        self.directory.chmod(0o755)
        (self.directory / "run").mkdir(mode=0o755)
        if self.place.simulated:
            self._start_simulator()
        self.libcuda = str(BUILD / "sim/libcuda.so.1") if self.place.simulated else loaded_driver()
        if not self.libcuda:
            raise NodeError(
                "libcuda.so.1 cannot be loaded: there is no NVIDIA driver here; try SIM=1"
            )
        self.nvml = PynvmlNvml(
            str(BUILD / "sim/libnvidia-ml.so.1") if self.place.simulated else "auto"
        )
        self._stack.callback(self.nvml.close)
        cards = self.nvml.cards()
        if not cards:
            raise NodeError("the driver sees no card")
        self.card = cards[0]
        self.driver = self.nvml.driver_version()
        self.config = self.directory / "qgpu.yaml"
        self.config.write_text(self._config_text(), encoding="utf-8")
        self.start_arbiter()
        self.start_qgpud()

    def _start_simulator(self) -> None:
        sim = self.directory / "sim"
        sim.mkdir(mode=0o755)
        os.environ["QGPU_SIM_DIR"] = str(sim)
        self._stack.callback(os.environ.pop, "QGPU_SIM_DIR", None)
        self.simulator = self._ready_daemon(
            [str(BUILD / "bin/qgpu-simgpu"), "--dir", str(sim), "--node", NAME, "--cards", "1"],
            "simgpu.log",
        )

    def _config_text(self) -> str:
        files = (
            f"{self.directory}/sim/dev/qgpusim0"
            if self.place.simulated
            else f"/dev/nvidia{self.card.minor}"
        )
        nvml = f"{BUILD}/sim/libnvidia-ml.so.1" if self.place.simulated else "auto"
        return (
            f"version: 1\ncluster: local\nrun_dir: {self.directory}/run\n"
            f"state_dir: {self.directory}/state\n"
            f"driver: {{libcuda: {self.libcuda}, nvml: {nvml}}}\nshim: {BUILD}/shim/libcuda.so.1\n"
            f"qos: {{}}\ndefault_class: offline\n"
            f"models: {{card: {{memory: {self.card.mem_total >> 20}MiB, reserve: 512MiB}}}}\n"
            f'nodes: [{{names: {NAME}, model: card, count: 1, files: "{files}"}}]\n'
            f"enforcer: {{arbiter: {BUILD}/bin/qgpu-arbiter, ledger_interval: 500ms,"
            " hardware: {enabled: off}}\n"
        )

    # ---- daemons --------------------------------------------------------------------------------

    def _adopt(self, process: subprocess.Popen[bytes]) -> None:
        self._stack.callback(end, process)

    def _ready_daemon(self, command: Sequence[str], log: str) -> subprocess.Popen[bytes]:
        reader, writer = os.pipe()
        with (self.directory / log).open("ab") as out:
            process = subprocess.Popen(
                [*command, "--ready-fd", str(writer)],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                pass_fds=[writer],
                preexec_fn=_die_with_parent,
            )
        os.close(writer)
        self._adopt(process)
        with os.fdopen(reader, "rb") as pipe:
            if not pipe.read(1):
                raise NodeError(f"{command[0]} ended before it was ready: {self.log(log)[-600:]}")
        return process

    def start_arbiter(self) -> None:
        """Start the arbiter, or start it again after its end."""
        command = [str(BUILD / "bin/qgpu-arbiter"), "--run-dir", f"{self.directory}/run"]
        self.arbiter = self._ready_daemon(command, "arbiter.log")

    def start_qgpud(self) -> None:
        """Start qgpud, or start it again after its end; returns when it serves."""
        said = self.log("qgpud.log").count("event=serving")
        command = [
            sys.executable,
            "-m",
            "enforcer.daemon.main",
            "--config",
            str(self.config),
            "--node",
            NAME,
        ]
        with (self.directory / "qgpud.log").open("ab") as out:
            self.qgpud = subprocess.Popen(
                command,
                env=self._own_env(),
                stdout=out,
                stderr=out,
                stdin=subprocess.DEVNULL,
                cwd=ROOT,
                preexec_fn=_die_with_parent,
            )
        self._adopt(self.qgpud)

        def serves() -> bool:
            if self.qgpud.poll() is not None:
                raise NodeError(f"qgpud ended: {self.log('qgpud.log')[-800:]}")
            return self.log("qgpud.log").count("event=serving") > said

        wait_for("qgpud's first word", serves)
        wait_for(
            "qgpud's meeting with the arbiter",
            lambda: "event=arbiter-synced" in self.log("qgpud.log"),
        )

    def log(self, name: str) -> str:
        """What a daemon wrote so far."""
        path = self.directory / name
        return path.read_text(errors="replace") if path.exists() else ""

    # ---- what qgpu says -------------------------------------------------------------------------

    def _own_env(self) -> dict[str, str]:
        """For our own commands: this checkout's packages, then what else was given to us."""
        path = [str(ROOT), *os.environ.get("PYTHONPATH", "").split(":")]
        return os.environ | {"PYTHONPATH": ":".join(filter(None, path))}

    def qgpu(self, *words: str) -> str:
        """A qgpu command; its output. NodeError with its words where it fails."""
        command = [sys.executable, "-m", "cli.main", *words]
        env = self._own_env() | {"QGPU_CONFIG": str(self.config)}
        done = subprocess.run(
            command, env=env, capture_output=True, text=True, timeout=60, cwd=ROOT
        )
        if done.returncode:
            raise NodeError(f"qgpu {' '.join(words)}: {done.stderr.strip()}")
        return done.stdout

    def policy(self, name: str) -> None:
        """How offline tenants share from now on."""
        self.qgpu("card", "set", "0", f"policy.offline={name}")

    def tenants(self) -> list[TenantStats]:
        """The arbiter's report on each job."""
        with ArbiterLink(f"{self.directory}/run") as link:
            return list(link.stats())

    def ledger(self) -> list[ProcessStats]:
        """The arbiter's report on each process."""
        with ArbiterLink(f"{self.directory}/run") as link:
            return link.processes()

    def no_tenants(self) -> bool:
        """Whether the last job's grant is gone. An arbiter that is away has none."""
        try:
            return not self.tenants()
        except (ArbiterGone, OSError):
            return True

    def card_memory(self) -> int:
        """Bytes in use on the card by NVML."""
        return self.nvml.load(self.card.uuid).mem_used or 0

    # ---- programs -------------------------------------------------------------------------------

    def env(self) -> dict[str, str]:
        """Environment of a program without qgpu."""
        env = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "LD_PRELOAD")}
        env |= {"CUDA_VISIBLE_DEVICES": self.card.uuid, "CUDA_MODULE_LOADING": "LAZY"}
        if self.place.simulated:
            env["LD_LIBRARY_PATH"] = ":".join(
                filter(None, [str(BUILD / "sim"), env.get("LD_LIBRARY_PATH", "")])
            )
        return env

    def start(
        self,
        argv: Sequence[object],
        way: Way = "plain",
        *,
        share: int = 50,
        job_class: str = "offline",
        mem: str = "8G",
        env: Mapping[str, str] | None = None,
    ) -> subprocess.Popen[str]:
        """Start a program in one of the ways."""
        words = [str(word) for word in argv]
        environment = self.env() | (dict(env) if env else {})
        if way == "qgpu":
            words = [
                sys.executable,
                "-m",
                "cli.main",
                "run",
                "--config",
                str(self.config),
                "--node",
                NAME,
                "--share",
                str(share),
                "--class",
                job_class,
                "--mem",
                mem,
                "--card",
                "0",
                "--",
                *words,
            ]
            environment |= {"PYTHONPATH": self._own_env()["PYTHONPATH"]}
        elif way == "mps":
            environment |= self._mps_env(share, job_class)
        process = subprocess.Popen(
            words,
            env=environment,
            cwd=self.place.work,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=_die_with_parent,
        )
        self.running.append(process)
        return process

    def told(
        self, process: subprocess.Popen[str], seconds: float = 120, status: int | None = 0
    ) -> dict[str, Any]:
        """Wait for a program and return its last JSON line; NodeError with its words if it ended
        otherwise.
        """
        try:
            out, err = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
            raise NodeError(
                f"{process.args!r} did not end within {seconds:g} s: {err[-400:]}"
            ) from None
        lines = [line for line in out.splitlines() if line.startswith("{")]
        if (status is not None and process.returncode != status) or (status == 0 and not lines):
            raise NodeError(
                f"status {process.returncode}: {out.strip()[-300:]} {err.strip()[-700:]}"
            )
        told: dict[str, Any] = json.loads(lines[-1]) if lines else {}
        return told | {"status": process.returncode}

    def run(
        self, argv: Sequence[object], way: Way = "plain", seconds: float = 120, **more: Any
    ) -> dict[str, Any]:
        """Start and wait."""
        return self.told(self.start(argv, way, **more), seconds)

    def end_programs(self) -> None:
        """End what is still running."""
        for process in self.running:
            if process.poll() is None:
                process.kill()
            process.communicate()
        self.running.clear()

    # ---- MPS ------------------------------------------------------------------------------------

    def _mps_env(self, share: int, job_class: str) -> dict[str, str]:
        low = "1" if job_class == "offline" else "0"
        return self._mps_place() | {
            "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(share),
            "CUDA_MPS_CLIENT_PRIORITY": low,
        }

    def _mps_place(self) -> dict[str, str]:
        assert self._mps is not None, "inside `with node.mps()` only"
        return {
            "CUDA_MPS_PIPE_DIRECTORY": f"{self._mps}/pipe",
            "CUDA_MPS_LOG_DIRECTORY": f"{self._mps}/log",
        }

    @contextlib.contextmanager
    def mps(self) -> Iterator[None]:
        """An MPS daemon of our own while inside. NodeError where it does not start."""
        control = self.place.mps
        if not control:
            raise NodeError("nvidia-cuda-mps-control is not on this machine")
        self._mps = self.directory / "mps"
        for name in ("pipe", "log"):
            (self._mps / name).mkdir(parents=True, exist_ok=True)
        env = self.env() | self._mps_place()
        daemon = subprocess.Popen(
            [control, "-f"],
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            preexec_fn=_die_with_parent,
        )
        try:
            wait_for("MPS's control pipe", (self._mps / "pipe/control").exists, 15)
            yield
        finally:
            self.end_programs()
            with contextlib.suppress(subprocess.TimeoutExpired, OSError):
                subprocess.run(
                    [control],
                    env=env,
                    input="quit -t 5\n",
                    text=True,
                    capture_output=True,
                    timeout=15,
                )
            daemon.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                daemon.wait(10)
            daemon.kill()
            daemon.wait()
            self._mps = None
