"""Shared by the tests of the simulated driver: starting it, and client code in its own
processes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

from simulator.sim import SimConfig, Simulator

ROOT = Path(__file__).resolve().parents[3]
# PYTHONPATH of programs that use these modules in processes of their own.
SUPPORT = os.pathsep.join(map(str, sorted((ROOT / "tests/support").glob("[!_]*/"))))
BUILD = ROOT / "build"
MIB = 1 << 20


def make(*targets: str) -> None:
    """Build files; one process at a time, else a worker starts what another one links anew."""
    argv = ["flock", "build/.native.lock", "make", "-s", *targets]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def start(directory: Path, **options: object) -> Simulator:
    return Simulator.start(SimConfig(directory, **{"node": "t1", **options}), BUILD)  # type: ignore[arg-type]


def client_env(sim: Simulator, **more: str) -> dict[str, str]:
    env = {**os.environ, **sim.env(), **more, "PYTHONPATH": SUPPORT}
    return {
        key: value for key, value in env.items() if key != "CUDA_VISIBLE_DEVICES" or key in more
    }


def spawn(sim: Simulator, code: str, **more: str) -> subprocess.Popen[str]:
    text = "import ctypes as c, os, sys, time\nfrom sim_client import Cuda\n" + textwrap.dedent(
        code
    )
    return subprocess.Popen(
        [sys.executable, "-c", text],
        env=client_env(sim, **more),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(sim: Simulator, code: str, **more: str) -> str:
    """Run client code to its end; its standard output. Fails the test when it fails."""
    process = spawn(sim, code, **more)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    return out


def nvml(sim: Simulator, code: str) -> str:
    """Run code with pynvml as n and the handle of card 0 as h; its standard output."""
    head = "import json, os, sys, pynvml as n\nn.nvmlInit(); h = n.nvmlDeviceGetHandleByIndex(0)\n"
    done = subprocess.run(
        [sys.executable, "-c", head + textwrap.dedent(code)],
        env=client_env(sim),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def until(condition: Callable[[], bool], seconds: float = 40.0) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.001)
    return condition()


def uuids(sim: Simulator) -> list[str]:
    """Of the simulated cards."""
    code = """
    handles = [n.nvmlDeviceGetHandleByIndex(i) for i in range(n.nvmlDeviceGetCount())]
    print(json.dumps([n.nvmlDeviceGetUUID(handle) for handle in handles]))
    """
    found: list[str] = json.loads(nvml(sim, code))
    return found
