"""Where things are on this machine, found once: the card's driver, compilers, a Python with
PyTorch.
"""

from __future__ import annotations

import functools
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("QGPU_BUILD", ROOT / "build")).resolve()
PROGRAMS = Path(__file__).resolve().parent / "programs"
NVCC_FLAGS = ("-O2", "-std=c++17")
PREBUILT = BUILD / "gpu-bundle/programs"
SHARED = "-shared"
VARIANTS: dict[str, tuple[str, ...]] = {
    "": (),
    SHARED: ("-cudart", "shared"),
    "-perthread": ("--default-stream", "per-thread"),
}
BUILDS = [("tenant", ""), ("memory", ""), *(("features", variant) for variant in VARIANTS)]
ASK = "import importlib.util as u, sys; print(*[m for m in sys.argv[1:] if u.find_spec(m)])"


def loaded_driver() -> str | None:
    """Path of the libcuda.so.1 that the loader of this process finds."""
    ask = "import ctypes; ctypes.CDLL('libcuda.so.1'); print(open('/proc/self/maps').read())"
    done = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True)
    found = re.search(r"(/\S*libcuda\.so[.0-9]*)$", done.stdout, re.MULTILINE)
    return found[1] if found else None


@dataclass(frozen=True)
class Place:
    """This machine. `simulated`: the card is a model, and what needs a real one is left out."""

    simulated: bool
    results: Path
    quick: bool = False
    python: str = field(default_factory=lambda: os.environ.get("QGPU_PYTHON", "python3"))

    @property
    def work(self) -> Path:
        """For what is not kept: compiled programs, raw stamps, logs."""
        path = BUILD / "gpu-work"
        path.mkdir(parents=True, exist_ok=True)
        return path

    @functools.cached_property
    def nvcc(self) -> str | None:
        """NVIDIA's compiler."""
        usual = Path("/usr/local/cuda/bin/nvcc")
        return shutil.which("nvcc") or (str(usual) if usual.exists() else None)

    @functools.cached_property
    def modules(self) -> frozenset[str]:
        """Which of the libraries the programs' Python has. Looked up, not imported."""
        env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
        done = subprocess.run(
            [self.python, "-c", ASK, "torch", "jax", "cupy", "triton"],
            capture_output=True,
            text=True,
            env=env,
        )
        return frozenset(done.stdout.split())

    @functools.cached_property
    def mps(self) -> str | None:
        """The control program of MPS."""
        usual = Path("/usr/local/nvidia/bin/nvidia-cuda-mps-control")
        return shutil.which("nvidia-cuda-mps-control") or (str(usual) if usual.exists() else None)

    def has(self, need: str) -> bool:
        """Whether a need is met: card, nvcc (or its products), toolkit (nvcc and libcudart), torch,
        jax, cupy, mps.
        """
        if need == "card":
            return not self.simulated
        if self.simulated:
            return False
        if need in ("mps", "toolkit"):
            return bool(self.mps if need == "mps" else self.nvcc)
        return (bool(self.nvcc) or PREBUILT.exists()) if need == "nvcc" else need in self.modules

    def program(self, name: str, variant: str = "") -> Path:
        """A compiled program, compiled now where missing or old; without nvcc the bundle's.
        RuntimeError.
        """
        source, made = PROGRAMS / f"{name}.cu", self.work / f"{name}{variant}"
        newest = max(source.stat().st_mtime, (PROGRAMS / "common.cuh").stat().st_mtime)
        if made.exists() and made.stat().st_mtime > newest:
            return made
        if not self.nvcc:
            return PREBUILT / made.name
        return self._compile(source, made, (*VARIANTS[variant], "-arch=native"))

    def _compile(self, source: Path, made: Path, flags: Sequence[str]) -> Path:
        fresh = made.with_suffix(".new")
        command = [str(self.nvcc), *NVCC_FLAGS, *flags, str(source), "-o", str(fresh)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()[-1500:]}")
        return fresh.rename(made)

    def compile_all(self, into: Path, flags: Sequence[str]) -> list[Path]:
        """All programs that need no shared runtime, at the same time, for another machine."""
        with ThreadPoolExecutor() as pool:
            made = [
                pool.submit(
                    self._compile, PROGRAMS / f"{n}.cu", into / f"{n}{v}", (*VARIANTS[v], *flags)
                )
                for n, v in BUILDS
                if v != SHARED
            ]
        return [one.result() for one in made]

    def prepare(self) -> None:
        """Compile at once what items will ask for, rather than each within an item's time."""
        if self.nvcc and not self.simulated:
            with ThreadPoolExecutor() as pool:
                list(pool.map(lambda build: self.program(*build), BUILDS))

    def runtime_env(self, variant: str) -> dict[str, str]:
        """What a program with the shared runtime needs to find it."""
        if variant != SHARED or not self.nvcc:
            return {}
        near = Path(self.nvcc).resolve().parent.parent / "lib64"
        path = [str(near), "/usr/local/cuda/lib64", os.environ.get("LD_LIBRARY_PATH", "")]
        return {"LD_LIBRARY_PATH": ":".join(filter(None, path))}

    def script(self, name: str) -> list[str]:
        """Command of one of the Python programs, free of qgpu's own packages."""
        return ["env", "-u", "PYTHONPATH", self.python, str(PROGRAMS / f"{name}.py")]

    @staticmethod
    def machine() -> str:
        """The machine in words, without names."""
        return (
            f"{os.cpu_count()} cores, Linux {platform.release()}, Python"
            f" {platform.python_version()}"
        )
