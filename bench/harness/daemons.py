"""qgpud beside a rig's arbiter, pressure on both, and what they cost in CPU time."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from bench.harness.node import BUILD, CARD_MIB, Rig, wait_for
from enforcer.wire import abi
from enforcer.wire.link import ArbiterLink, CardSettings
from gres.grant.store import GrantStore

READY = "serving"


def config_text(
    rig: Rig, nvml_interval_ms: int = 1000, ledger_interval_ms: int = 2000, metrics_port: int = 0
) -> str:
    """qgpu.yaml for this rig, with its settings of cards."""
    told: dict[str, Any] = rig.settings
    policy = {c: told.get(f"policy_{c}", "burst-share") for c in ("online", "offline")}
    reserves = {"online": "[compute, memory]", "offline": "[memory]"}
    classes = ", ".join(f"{c}: {{reserves: {reserves[c]}, policy: {policy[c]}}}" for c in policy)
    release = f"idle_release: {told.get('idle_release_ms', 100)}ms"
    if told.get("online_delay_us"):
        release = f"idle_release: auto, online_delay: {told['online_delay_us']}us"
    files = (
        f"{rig.sim_dir}/dev/qgpusim[0-{rig.cards - 1}]"
        if rig.cards > 1
        else f"{rig.sim_dir}/dev/qgpusim0"
    )
    return (
        f"version: 1\ncluster: rig\nrun_dir: {rig.run_dir}\nstate_dir: {rig.directory}/state\n"
        f"driver: {{libcuda: {rig.driver}, nvml: {BUILD}/sim/libnvidia-ml.so.1}}\n"
        f"shim: {rig.shim}\n"
        f"reports: {{metrics: {{port: {metrics_port}, job_labels: true}}}}\n"
        f"default_class: offline\nclasses: {{{classes}}}\n"
        f"models: {{sim: {{memory: {CARD_MIB}MiB, reserve: 0MiB}}}}\n"
        f"enforcer: {{{release}, "
        f"window: {told.get('window_us', CardSettings.window_us)}us, "
        f"slice: {told.get('slice_us', 2000)}us, nvml_interval: {nvml_interval_ms}ms, "
        f"ledger_interval: {ledger_interval_ms}ms, "
        f"hardware: {{enabled: {'off' if rig.hardware is None else 'on'}}}}}\n"
        f'nodes: [{{names: rig, model: sim, count: {rig.cards}, files: "{files}"}}]\n'
    )


def spawn_qgpud(rig: Rig, config: Path, log: Path) -> subprocess.Popen[bytes]:
    """qgpud with this configuration; it ends with the rig. It may not serve yet."""
    words = ["--config", str(config), "--node", "rig"]
    with log.open("ab") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "enforcer.daemon.main", *words],
            env=os.environ | {"QGPU_SIM_DIR": str(rig.sim_dir)},
            stdout=out,
            stderr=out,
            stdin=subprocess.DEVNULL,
        )
    rig.adopt(process)
    return process


def start_qgpud(rig: Rig, **intervals: int) -> subprocess.Popen[bytes]:
    """The real daemon on the rig's node. It finds the grants that exist now; later ones are not its
    own.
    """
    store = GrantStore(rig.run_dir / abi.GRANTS_DIR)
    for grant in rig.grants.values():
        store.write(grant)
    config = rig.directory / "qgpu.yaml"
    config.write_text(config_text(rig, **intervals), encoding="utf-8")
    log = rig.directory / "qgpud.log"
    process = spawn_qgpud(rig, config, log)

    def serves() -> bool:
        if process.poll() is not None:
            raise RuntimeError(f"qgpud ended: {log.read_text()[-2000:]}")
        return READY in log.read_text()

    wait_for("qgpud's first word", serves, 20)
    return process


@contextlib.contextmanager
def _again(each_s: float, act: Callable[[], int]) -> Iterator[Callable[[], int]]:
    """Repeat it in a thread; yields the sum of its results so far."""
    stop = threading.Event()
    total = 0

    def repeat() -> None:
        nonlocal total
        while not stop.wait(each_s):
            total += act()

    thread = threading.Thread(target=repeat)
    thread.start()
    try:
        yield lambda: total
    finally:
        stop.set()
        thread.join()


@contextlib.contextmanager
def polled(run_dir: Path, each_s: float) -> Iterator[Callable[[], int]]:
    """Ask the arbiter for all its figures again and again; yields how
    often it has answered so far.
    """
    with ArbiterLink(run_dir) as link:

        def poll() -> int:
            link.stats()
            return 1

        with _again(each_s, poll) as answers:
            yield answers


def free_port() -> int:
    """A free port of 127.0.0.1."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def scraped(port: int, each_s: float) -> contextlib.AbstractContextManager[Callable[[], int]]:
    """Read qgpud's metrics again and again, as Prometheus does; yields how many samples came so
    far.
    """

    def scrape() -> int:
        with (
            contextlib.suppress(OSError),
            urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as page,
        ):
            return int(page.read().count(b"\nqgpu_"))
        return 0

    return _again(each_s, scrape)


def cpu_ns(pid: int) -> int:
    """CPU time of all threads of a process so far, from the scheduler's own account."""
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError):
            total += int((task / "schedstat").read_text().split()[0])
    return total


def wakeups(pid: int) -> int:
    """How often threads of a process went to sleep so far."""
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found = re.search(
                r"^voluntary_ctxt_switches:\s+(\d+)", (task / "status").read_text(), re.MULTILINE
            )
            total += int(found[1]) if found else 0
    return total


def cpu_percent(pids: Sequence[int], seconds: float) -> list[float]:
    """Percent of one core that each process uses during the next seconds."""
    before = [cpu_ns(pid) for pid in pids]
    start = time.monotonic_ns()
    time.sleep(seconds)
    wall = time.monotonic_ns() - start
    return [100 * (cpu_ns(pid) - b) / wall for pid, b in zip(pids, before, strict=True)]
