"""Shared by tests of NVIDIA's CUDA runtime on the simulated driver: which libraries and compilers
are here, and programs that answer each word with a line of JSON.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.harness.node import Rig

ROOT = Path(__file__).resolve().parents[3]
CALLS = Path(__file__).with_name("cudart_calls.py")
PROGRAMS = ROOT / "tests/native/programs/runtime"
ONLINE, OFFLINE = 1, 2
CAP_MIB = 4096


def libraries() -> list[Path]:
    """libcudart of each package that is installed, the oldest first."""
    packages = ROOT / ".venv"
    found = packages.glob("lib/python3*/site-packages/nvidia/cu*/lib/libcudart.so.*")
    return sorted(found, key=lambda path: int(path.suffix[1:]))


def compiler() -> str:
    """nvcc, or the test is skipped."""
    found = shutil.which("nvcc")
    if found is None:
        pytest.skip("nvcc is not installed")
    return found


def built(directory: Path, source: str, *options: str) -> Path:
    """A program of PROGRAMS, compiled by nvcc."""
    program = directory / source.removesuffix(".cu")
    argv = [compiler(), "-arch=sm_90", *options, "-o", program, PROGRAMS / source]
    subprocess.run(argv, check=True)
    return program


def answering() -> None:
    """Skip the test where the simulated driver was built without the answer to the runtime."""
    if b"built with SIM_RUNTIME=0" in (ROOT / "build/sim/libcuda.so.1").read_bytes():
        pytest.skip("the simulated driver was built with SIM_RUNTIME=0")


class Program:
    """A program that answers words; `job` is None for one without the shim."""

    def __init__(self, rig: Rig, argv: list[str | Path], job: int | None, **env: str) -> None:
        grant = rig.grants[job] if job else None
        self.process = rig.spawn(argv, grant, stdin=subprocess.PIPE, env=env)

    def send(self, word: str) -> None:
        """Ask, and do not wait."""
        assert self.process.stdin
        self.process.stdin.write(word + "\n")
        self.process.stdin.flush()

    def answer(self) -> Any:
        """The next line's JSON; the program's stderr if it ended."""
        assert self.process.stdout
        line = self.process.stdout.readline()
        assert line, self.process.communicate()
        return json.loads(line)

    def ask(self, word: str) -> Any:
        """Ask, and wait for the answer."""
        self.send(word)
        return self.answer()

    def end(self) -> str:
        """Close its input and wait; what it wrote to stderr."""
        _, said = self.process.communicate(timeout=60)
        assert self.process.returncode == 0, said
        return said


def cudart(rig: Rig, library: Path, job: int | None, **env: str) -> Program:
    """cudart_calls.py with this library."""
    return Program(rig, [sys.executable, CALLS, library], job, **env)
