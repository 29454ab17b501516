"""`qgpu doctor --probe`: a one-second job of a small share, to check that it is governed and
accounted.
"""

from __future__ import annotations

import contextlib
import json
import shlex
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from cli.doctor.examine import read_config
from cli.doctor.host import Host
from cli.doctor.known import Known
from cli.doctor.probe_task import POINTS
from cli.doctor.result import Check, Status
from gres.config.site import Config
from gres.paths import PATHS
from slurm_plugin.records import Columns, SlurmError

NAME = "qgpu-doctor"
LEAST_MIB = 600  # one context of a real card takes most of it
ACCOUNTED_S = 15.0  # seconds to wait for sacct: slurmctld sends to slurmdbd in batches
MAX_OUTPUT = 1 << 16  # bytes read of the job's output: it prints one line
NOT_FOUND = 126  # and above: the shell did not find qgpu on the node, or a signal ended the job
TODO = {
    "grant": (
        "look at spank, hooks and job_submit of qgpu doctor on the controller and on that node"
    ),
    "driver": "look at driver, shim and cards of qgpu doctor on that node",
    "cap": "the shim is not in the job: look at shim and spank of qgpu doctor on that node",
    "registered": "look at qgpud and arbiter of qgpu doctor on that node",
    "devices": "write ConstrainDevices=yes in cgroup.conf and TaskPlugin=task/cgroup in slurm.conf",
    "ledger": "look at state_dir of qgpu doctor on that node, and at qgpud's journal",
    "config": "copy qgpu.yaml to all hosts, run qgpu setup and restart qgpud there",
}
REASONS = {
    "Resources": "no card has a free share: wait, or name another --partition or --node",
    "Priority": "other jobs come first: try again with a longer --timeout",
    "PartitionConfig": "the partition does not have such nodes: name another --partition",
    "AssocGrpGRES": "an account's limit is reached: name another --account or --qos",
    "QOSGrpGRES": "a QOS limit is reached: name another --qos",
}


@dataclass(frozen=True)
class Wanted:
    """Options of the probe. `timeout` is in seconds, from the submission to the job's end."""

    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    node: str | None = None
    timeout: float = 60.0

    def options(self) -> list[str]:
        """For sbatch."""
        named = {
            "partition": self.partition,
            "account": self.account,
            "qos": self.qos,
            "nodelist": self.node,
        }
        return [f"--{name}={value}" for name, value in named.items() if value]


@dataclass
class Probe:
    """One job and what became of it."""

    known: Known
    wanted: Wanted
    job: str = ""
    status: int | None = None
    output: str = ""
    errors: list[str] = field(default_factory=list)

    @property
    def host(self) -> Host:
        """Where the commands run."""
        return self.known.host

    def checks(self) -> Iterator[Check]:
        """Submit, wait, and yield each point. The job is removed in any case."""
        folder = Path.home()  # it is on every node, so that the job can write there
        process = self._submit(folder)
        if process is None:
            yield Check(
                "submit",
                "fail",
                self._said(),
                "look at job_submit and qos of qgpu doctor on the controller",
            )
            return
        yield Check("submit", "ok", f"job {self.job}")
        try:
            self.status = process.wait(self.wanted.timeout)
        except subprocess.TimeoutExpired:
            # sbatch --wait does not hear of the end where slurmctld was exchanged meanwhile.
            if self._ended("")[0] != "COMPLETED":
                yield self._late()
                return
            self.status = 0
        finally:
            self._end(process)
        self.output = self._read(folder)
        points = list(self._points())
        yield from points
        if points[0].name != "job":
            yield self._accounted()

    def _submit(self, folder: Path) -> subprocess.Popen[str] | None:
        sbatch = self.host.program("sbatch")
        if sbatch is None:
            self.errors.append("sbatch is not installed here")
            return None
        command = [
            sbatch,
            "--wait",
            "--parsable",
            f"--job-name={NAME}",
            "--ntasks=1",
            "--time=2",
            f"--chdir={folder}",
            f"--output={folder}/.{NAME}-%j.out",
            f"--gres={gres_of(self.known.need)}",
            *self.wanted.options(),
        ]
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=dict(self.host.environ),
        )
        assert (
            process.stdin is not None and process.stdout is not None and process.stderr is not None
        )
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(script(self.known.path, self.known.digest))
            process.stdin.close()
        self.job = process.stdout.readline().strip().partition(";")[0]
        if self.job.isdigit():
            return process
        self.errors = [line for line in process.stderr.read().split("\n") if line.strip()]
        self._end(process)
        return None

    def _end(self, process: subprocess.Popen[str]) -> None:
        """Nothing of the probe stays: neither the waiting sbatch nor the job."""
        if self.status is None and self.job.isdigit():
            self.host.said("scancel", self.job)
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                stream.close()

    def _said(self) -> str:
        """The sentence of a refusal: ours if there is one, else sbatch's last."""
        ours = [line for line in self.errors if "qgpu: " in line]
        return (ours or self.errors or ["sbatch said nothing"])[-1]

    def _late(self) -> Check:
        state, reason, _ = self._ended("")
        why = f" ({reason})" if reason else ""
        text = f"job {self.job} is {state or 'not done'} after {self.wanted.timeout:.0f} s{why}"
        todo = REASONS.get(reason, "sinfo and scontrol show job say more; --timeout waits longer")
        return Check("job", "fail", text, todo)

    def _read(self, folder: Path) -> str:
        """What the job wrote, if this host sees it; the file is removed."""
        path = folder / f".{NAME}-{self.job}.out"
        try:
            with path.open(errors="replace") as file:
                return file.read(MAX_OUTPUT)
        except OSError:
            return ""
        finally:
            path.unlink(missing_ok=True)

    def _points(self) -> Iterator[Check]:
        told = parse(self.output)
        if told is not None:
            for row in told["points"]:
                status: Status = "ok" if row["ok"] else "fail"
                yield Check(
                    row["name"], status, row["text"], "" if row["ok"] else TODO[row["name"]]
                )
            return
        state, reason, node = self._ended()
        status_ = self.status or 0
        # Without the program's output its status counts only if Slurm reports that it ended so.
        if self.output.strip() or (state, status_ > 0) not in (
            ("COMPLETED", False),
            ("FAILED", True),
        ):
            yield self._not_run(state, reason, node)
            return
        if status_ >= NOT_FOUND:
            yield self._not_run(
                f"FAILED with status {status_}, so qgpu is not on the node", reason, node
            )
            return
        for bit, name in enumerate(POINTS):
            failed = bool(status_ >> bit & 1)
            text = (
                "failed; the job's output is not to be seen on this host"
                if failed
                else "as it should be"
            )
            yield Check(name, "fail" if failed else "ok", text, TODO[name] if failed else "")

    def _ended(self, unknown: str = "forgotten") -> tuple[str, str, str]:
        """State, reason and node of the job, as slurmctld has them."""
        columns = Columns.of("%T", "%r", "%N")
        said = self.host.ask("squeue", "-h", "-t", "all", "-j", self.job, "-o", columns.short)
        with contextlib.suppress(SlurmError):
            for state, reason, node in columns.read(said.out, "squeue"):
                return state, reason, node
        return unknown, "", ""

    def _not_run(self, state: str, reason: str, node: str) -> Check:
        """A job whose program printed nothing: the reason by its output, or by its node's state."""
        lines = [line for line in self.output.split("\n") if line.strip()]
        ours = [line for line in lines if "qgpu: " in line]
        drained = self.host.ask("sinfo", "-h", "-N", "-n", node, "-o", "%E").last if node else ""
        drained = f"; {node} is drained: {drained}" if drained not in ("", "none") else ""
        why = (
            ours
            or lines
            or [f"it is {state}{f' ({reason})' if reason not in ('', 'None') else ''}"]
        )[-1]
        todo = "qgpu doctor on that node, and the logs of its slurmd and qgpud, have more"
        return Check("job", "fail", f"job {self.job}: {why}{drained}", todo)

    def _accounted(self) -> Check:
        if self.known.effective.get("accountingstoragetype", "") != "accounting_storage/slurmdbd":
            return Check("sacct", "ok", "not asked, since accounting is off")
        end, told = time.monotonic() + ACCOUNTED_S, ""
        while time.monotonic() < end:
            told = self.host.ask("sacct", "-j", self.job, "-X", "-n", "-P", "-o", "AllocTRES").last
            if "gres/qgpu" in told:
                return Check("sacct", "ok", told)
            time.sleep(0.5)
        text = f"job {self.job} has {told or 'no row'} in sacct, without gres/qgpu"
        return Check(
            "sacct", "fail", text, "look at tres and slurmdbd of qgpu doctor on the controller"
        )


def gres_of(config: Config) -> str:
    """The smallest share, with memory enough for a context where a share of it is too little."""
    share = config.limits.min_share
    least = max(LEAST_MIB, *(config.least_mem(group.model) for group in config.nodes))
    if config.smallest_usable() * share // 100 >= least:
        return f"qgpu:{share}"
    return f"qgpu:{share},vram:{least}M"


def script(config_path: str, digest: str) -> str:
    """The job: the qgpu of its node, whose Python is the installed one."""
    return (
        f"#!/bin/sh\nPATH=$PATH:{PATHS.bin_dir}; export PATH\n"
        f"QGPU_CONFIG={shlex.quote(config_path)}; export QGPU_CONFIG\n"
        f"exec qgpu doctor --probe-task {shlex.quote(digest)}\n"
    )


def parse(output: str) -> dict[str, Any] | None:
    """The last line of JSON that is the program's; None if there is none."""
    for line in reversed(output.split("\n")):
        try:
            told = json.loads(line)
            points = told["points"]
        except (ValueError, TypeError, KeyError, RecursionError):
            continue
        if isinstance(points, list) and all(_is_point(row) for row in points):
            return {"points": points}
    return None


def _is_point(row: object) -> bool:
    return (
        isinstance(row, dict)
        and row.get("name") in POINTS
        and isinstance(row.get("text"), str)
        and "ok" in row
    )


def probe(config_path: str, wanted: Wanted, host: Host | None = None) -> list[Check]:
    """All checks of the probe, as the calling user."""
    known = Known(host or Host(), config_path)
    first = read_config(known, wanted.node)
    if known.config is None:
        return [first]
    known.trust_program_directories()
    return [replace(check, group="probe") for check in Probe(known, wanted).checks()]
