"""First of all: what this machine allows. Reads and asks; changes nothing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from bench.costs.overhead import launch_overhead
from bench.gpu.items import Item, Yield, figure
from bench.gpu.node import Node
from bench.gpu.place import Place


def machine(node: Node) -> Iterator[Yield]:
    """qgpu doctor's words, the daemons' scheduling, the tools that are here."""
    place = node.place
    command = [
        sys.executable,
        "-m",
        "cli.main",
        "doctor",
        "--config",
        str(node.config),
        "--node",
        "local",
    ]
    done = subprocess.run(command, env=node._own_env(), capture_output=True, text=True, timeout=60)
    yield from (
        f"doctor: {line}" for line in (done.stdout + done.stderr).splitlines() if line.strip()
    )
    policies = [line for line in node.log("arbiter.log").splitlines() if "policy" in line]
    yield f"arbiter: {policies[0] if policies else 'says nothing of its scheduling'}"
    tools = {"nvcc": place.nvcc, "gcc": shutil.which("gcc"), "mps": place.mps}
    yield "tools: " + ", ".join(f"{name} {path or 'missing'}" for name, path in tools.items())
    yield (
        f"python {place.python}:"
        f" {', '.join(sorted(place.modules)) or 'none of torch, jax, cupy, triton'}"
    )
    yield f"pidfd_open: {'there' if pidfd() else 'refused'}"


def pidfd() -> bool:
    """Whether the kernel gives descriptors of processes."""
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError:
        return False
    return True


def card(node: Node) -> Iterator[Yield]:
    """The card's description of itself, before any program runs on it."""
    smi = shutil.which("nvidia-smi")
    if smi:
        fields = (
            "name,driver_version,compute_mode,persistence_mode,mig.mode.current,clocks.sm,"
            "memory.used"
        )
        done = subprocess.run(
            [smi, f"--query-gpu={fields}", "--format=csv"],
            capture_output=True,
            text=True,
            timeout=30,
        )
        yield from (f"nvidia-smi: {line}" for line in done.stdout.splitlines())
    yield figure(node, "card_memory_used_at_start", node.card_memory() / 2**20, "MiB")
    listed = node.nvml.processes(node.card.uuid)
    yield f"NVML lists {len(listed)} processes, pids {[process.pid for process in listed]}"


def job_page(node: Node) -> Iterator[Yield]:
    """The card writes markers into the page that a job shares with the arbiter: can the driver pin
    such memory?
    """
    told = node.run([sys.executable, Path(__file__).parent / "programs/job_page.py"], seconds=60)
    for kind in ("array", "file"):
        came = told[kind]["word"] == 4711
        yield f"job page, {kind}: {told[kind]}"
        yield figure(node, f"job_page_{kind}_written", float(came), "", 1, ">=")


def stub(node: Node) -> Iterator[Yield]:
    """The launch path of the shim over a driver whose calls return at once: needs no card."""
    yield from launch_overhead(1 if node.place.quick else 5)


def items(place: Place) -> Iterator[Item]:
    """The first part."""
    yield Item("probe/machine", 10, machine)
    yield Item("probe/card", 5, card)
    yield Item("probe/job_page", 5, job_page)
    if not place.quick:
        yield Item("probe/launch_path", 40, stub)
