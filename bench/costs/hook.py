"""What the prolog adds to the start of a job: from start to end of the script, with the real
qgpud.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import yaml

from bench.harness.daemons import spawn_qgpud
from bench.harness.figures import Figure
from bench.harness.node import BUILD, CARD_MIB, MEMORY_DIR, Rig, wait_for
from enforcer.wire import abi
from gres.config.site import load_config
from simulator.judge import evaluate as ev
from slurm_plugin.render import render

TAG = "qgpu/1 class=offline share=10 mem=1024"


def _config(rig: Rig, state_dir: str) -> Path:
    """qgpu.yaml of the rig's node."""
    settings = {
        "version": 1,
        "cluster": "bench",
        "run_dir": str(rig.run_dir),
        "state_dir": state_dir,
        "driver": {"libcuda": str(rig.driver), "nvml": str(BUILD / "sim/libnvidia-ml.so.1")},
        "shim": str(rig.shim),
        "spank": str(BUILD / "lib/qgpu_spank.so"),
        "hook": {"client": str(BUILD / "bin/qgpu-hook"), "drain_command": False},
        "qos": {"online": "online", "offline": "offline"},
        "models": {"h200": {"memory": f"{CARD_MIB}MiB", "reserve": "2GiB"}},
        "nodes": [
            {"names": "rig", "model": "h200", "count": 1, "files": f"{rig.sim_dir}/dev/qgpusim0"}
        ],
        "classes": {
            "online": {"reserves": ["compute", "memory"]},
            "offline": {"reserves": ["memory"], "overcommit": 400},
        },
    }
    path = rig.directory / "qgpu.yaml"
    path.write_text(yaml.safe_dump(settings))
    return path


def _environment(job_id: int) -> dict[str, str]:
    """What slurmd gives to a Prolog, as far as qgpu reads it."""
    return {
        "SLURM_JOB_ID": str(job_id),
        "SLURM_JOB_UID": str(os.getuid()),
        "SLURM_JOB_GID": str(os.getgid()),
        "SLURM_JOB_USER": "root",
        "SLURM_JOB_GPUS": "0",
        "SLURM_JOB_COMMENT": TAG,
        "SLURMD_NODENAME": "rig",
        "PATH": "/usr/bin:/bin",
    }


def _prove(run_dir: Path, job_id: int) -> None:
    """What slurmd has our SPANK plugin do before each Prolog; it costs a start of slurmstepd, which
    is not ours.
    """
    stage = [
        str(BUILD / "test/spank_stage"),
        str(BUILD / "lib/qgpu_spank.so"),
        "prolog",
        str(job_id),
        "0",
    ]
    subprocess.run(
        [*stage, f"run_dir={run_dir}", "--", "/bin/true"], env=_environment(job_id), check=True
    )


def _timed(script: Path, job_id: int) -> float:
    """Milliseconds of one run of a hook script; RuntimeError if it was not answered yes."""
    began = time.perf_counter()
    done = subprocess.run(
        [script], env=_environment(job_id), capture_output=True, text=True, check=False
    )
    took = (time.perf_counter() - began) * 1000
    if done.returncode:
        raise RuntimeError(
            f"{script.name} ended with status {done.returncode}: {done.stderr.strip()}"
        )
    return took


def _script(rig: Rig, name: str, config: Path) -> Path:
    path = rig.directory / name
    path.write_text(render(name, load_config(config)))
    path.chmod(0o755)
    return path


def figures(quick: bool) -> Iterator[Figure]:
    """p95 of the prolog's and the epilog's duration."""
    runs = 20 if quick else 100
    with (
        tempfile.TemporaryDirectory(prefix="qgpu-bench-", dir=MEMORY_DIR) as work,
        tempfile.TemporaryDirectory(prefix="qgpu-bench-") as state,  # the ledger is on the disk
        Rig(Path(work)) as rig,
    ):
        config = _config(rig, state)
        spawn_qgpud(rig, config, Path(work) / "qgpud.log")
        wait_for("qgpud's socket", lambda: (rig.run_dir / abi.SOCK_HOOK).exists())
        scripts = [_script(rig, name, config) for name in ("prolog", "epilog")]
        pairs = []
        for job in range(1, runs + 1):
            _prove(rig.run_dir, job)
            pairs.append([_timed(script, job) for script in scripts])
    for name, values in zip(
        ("prolog_ms_p95", "epilog_ms_p95"), zip(*pairs, strict=True), strict=True
    ):
        where = "in memory" if MEMORY_DIR else "on the disk"
        spread = (
            f"(median {statistics.median(values):.1f}, max {max(values):.1f} ms; run_dir {where})"
        )
        yield Figure(name, ev.percentile(values, 95), "ms", 20, "<=", runs, spread, simulated=False)
