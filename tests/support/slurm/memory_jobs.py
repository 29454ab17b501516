"""Jobs that hold memory with known contents on live Slurm, and what became of it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psutil
from jobs_support import Live, work

from enforcer.ledger.read import reading, usage_of_jobs
from enforcer.ledger.reclaims import Reclaim, reclaims_of

GIB = 1 << 30
OFFLINE = ("--qos=offline", "--gres=qgpu:30,vram:60G", "--requeue")
ONLINE = ("--qos=online", "--gres=qgpu:30,vram:50G")


def log(live: Live) -> str:
    return live.paths(live.nodes[0]).log("qgpud").read_text()


def steps(live: Live, job: int) -> list[str]:
    """What happened to the memory of the job, by the log."""
    found = re.findall(rf"event=reclaim step=(\S+) job={job}\b.*", log(live))
    return [step for step in found if step not in ("claim", "ready")]


def await_step(live: Live, job: int, step: str, count: int = 1) -> None:
    live.until(lambda: steps(live, job).count(step) >= count, 30, f"{step} of job {job}")


def rows(live: Live, job: int) -> list[Reclaim]:
    with reading(live.paths(live.nodes[0]).state_dir / "ledger.sqlite") as database:
        usages = [usage for _, usage in usage_of_jobs(database, [job])]
        return [row for usage in usages for row in reclaims_of(database, usage.key)]


def resident(live: Live, *options: str, gib: int = 58, script: str = "") -> int:
    """An offline job that holds so much with known contents, and works."""
    script = script or f"exec {work('--pattern', f'{gib}G', '--length', '600', '--json')}"
    job = live.submit(script, *(options or OFFLINE))
    live.until(lambda: held(live, job) >= gib * GIB, 30, f"the memory of job {job}")
    return job


def tenants(live: Live) -> dict[int, dict[str, Any]]:
    state = json.loads((live.paths(live.nodes[0]).run_dir / "state.json").read_text())
    return {t["job_id"]: t for card in state["cards"] for t in card["tenants"]}


def held(live: Live, job: int) -> int:
    try:
        return int(tenants(live).get(job, {}).get("mem_used") or 0)
    except (OSError, ValueError):
        return 0


def returned(live: Live, job: int) -> str:
    """What an offline job wrote that is ended once its memory is back."""
    await_step(live, job, "back")
    live.run("scancel", "--signal=TERM", "--full", str(job))
    return live.finish(job)[0]


def online(live: Live, seconds: int = 3) -> int:
    return live.submit(work("--pattern", "48G", "--length", str(seconds), "--json"), *ONLINE)


def intact(output: str) -> bool:
    """Whether the workload ended with all of its memory as it was."""
    return re.search(r'"pattern": \{"pages": [1-9]\d*, "wrong": 0\}', output) is not None


@contextmanager
def settings(live: Live, text: str) -> Iterator[None]:
    """qgpud of the node with another `reclaim` section."""
    path, node = live.sandbox.layout.qgpu_yaml, live.nodes[0]
    before = path.read_text()
    changed, found = re.subn(r"(?m)^reclaim: \{(.*)\}$", rf"reclaim: {{\1, {text}}}", before)
    assert found == 1
    try:
        path.write_text(changed)
        live.stop_qgpud(node)
        live.sandbox.start(node, "qgpud")
        yield
    finally:
        path.write_text(before)
        live.stop_qgpud(node)
        live.sandbox.start(node, "qgpud")


def program(live: Live, job: int) -> psutil.Process:
    """The workload of the job; other sandboxes of this machine have jobs of the same number."""
    mine = {"SLURM_JOB_ID": str(job), "SLURM_CLUSTER_NAME": live.sandbox.plan.cluster}
    for process in psutil.process_iter(["name"]):
        if process.info["name"] == "qgpu-workload":
            try:
                if mine.items() <= process.environ().items():
                    return process
            except psutil.Error:
                continue
    raise AssertionError(f"job {job} has no workload")


def moving(live: Live, action: str) -> bool:
    """Whether a helper of this sandbox runs that does that."""
    program = str(live.sandbox.layout.opt / "bin/qgpu-checkpoint")
    found = (process.info["cmdline"] or () for process in psutil.process_iter(["cmdline"]))
    return any(program in words and action in words for words in found)
