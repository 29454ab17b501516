"""Submitting the demo's jobs and asking Slurm how they do."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from cli.sandbox.cluster import Sandbox
from gres.grant.store import Grant, GrantError, GrantStore

POLL_S = 0.1  # seconds between two polls of Slurm: it answers in milliseconds


@dataclass(frozen=True)
class Job:
    """A submitted job and where its output goes."""

    id: int
    name: str
    user: str
    directory: Path

    @property
    def out(self) -> Path:
        """Standard output."""
        return self.directory / f"{self.name}.out"

    @property
    def err(self) -> Path:
        """Standard error: where qgpu's own lines appear."""
        return self.directory / f"{self.name}.err"

    @property
    def log(self) -> Path:
        """The workload's log: one JSON object a line."""
        return self.directory / f"{self.name}.log"

    def logged(self) -> list[dict[str, object]]:
        """Complete lines of the workload's log so far."""
        if not self.log.exists():
            return []
        return [json.loads(line) for line in self.log.read_text().split("\n")[:-1]]

    @property
    def pid(self) -> int | None:
        """Process id of the workload, once it has printed it."""
        for entry in self.logged():
            if "pid" in entry:
                return int(str(entry["pid"]))
        return None


class Timeout(RuntimeError):
    """The demo waited for something in vain; the text names it and the log to read."""


def wait_for(what: str, condition: Callable[[], bool], seconds: float, log: Path | str) -> None:
    """Poll until the condition holds; Timeout names what did not come and the log to read."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise Timeout(f"{what} did not happen within {seconds:g} s; read {log}")
        time.sleep(POLL_S)


@dataclass(frozen=True)
class Cluster:
    """The sandbox as the demo's users see it."""

    sandbox: Sandbox

    def submit(
        self,
        user: str,
        name: str,
        qos: str,
        gres: str,
        work: Sequence[str],
        options: Sequence[str] = (),
    ) -> Job:
        """sbatch as that user; SandboxError holds sbatch's own words when it refuses."""
        home = self.sandbox.layout.home(user)
        job = Job(0, name, user, home)
        command = shlex.join(["exec", "qgpu-workload", "--log", str(job.log), *work])
        argv = [
            "sbatch",
            "--parsable",
            "-J",
            name,
            f"--qos={qos}",
            f"--gres={gres}",
            "-o",
            str(job.out),
        ]
        argv += ["-e", str(job.err), *options, "--wrap", command]
        number = self.sandbox.run(argv, user=user).stdout.strip().split(";")[0]
        return Job(int(number), name, user, home)

    def refused(self, user: str, *options: str) -> str:
        """What sbatch answers to a request that must be refused; empty if it was accepted."""
        done = self.sandbox.run(["sbatch", *options, "--wrap", "true"], user=user, check=False)
        return "" if done.returncode == 0 else done.stderr.strip()

    def state(self, job: Job) -> str:
        """State and reason by squeue: `RUNNING None`, `PENDING
        Resources`; empty for an ended job.
        """
        done = self.sandbox.run(["squeue", "-h", "-j", str(job.id), "-o", "%T %r"], check=False)
        return done.stdout.strip()

    def wait_state(self, job: Job, states: Sequence[str], seconds: float = 20) -> None:
        """Wait until the job is in one of these states."""
        wait_for(
            f"job {job.id} ({job.name}) becoming {' or '.join(states)}",
            lambda: self.state(job).split(" ")[0] in states,
            seconds,
            self.sandbox.layout.log("slurmctld"),
        )

    def wait_reason(self, job: Job, reasons: Sequence[str], seconds: float = 10) -> str:
        """Wait until Slurm gives a reason why the job waits; state and reason."""

        def said() -> bool:
            return any(reason in self.state(job) for reason in reasons)

        wait_for(
            f"Slurm's reason why job {job.id} waits",
            said,
            seconds,
            self.sandbox.layout.log("slurmctld"),
        )
        return self.state(job)

    def wait_end(self, job: Job, seconds: float = 60) -> None:
        """Wait until the job has left the node."""
        gone = ("", "COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY")
        self.wait_state(job, gone, seconds)

    def wait_logged(
        self, job: Job, what: str, condition: Callable[[], bool], seconds: float = 30
    ) -> None:
        """Wait for something in the workload's log."""
        wait_for(f"{what} of job {job.id} ({job.name})", condition, seconds, job.err)

    def cancel(self, *jobs: Job) -> None:
        """scancel as root."""
        self.sandbox.run(["scancel", *(str(j.id) for j in jobs)], check=False)

    def grants(self) -> dict[int, Grant]:
        """Every grant on every node, from the grant files."""
        found: dict[int, Grant] = {}
        for name in self.sandbox.node_names:
            store = GrantStore(self.sandbox.node(name).run_dir / "grants")
            for job_id in store.job_ids():
                try:
                    found[job_id] = store.read(job_id)
                except GrantError:
                    continue  # ended between the listing and the reading
        return found
