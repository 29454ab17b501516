"""What the live tests of jobs share: submitting, asking, waiting with deadlines, reading what
nodes know.
"""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import dialect
import psutil
import yaml

from cli.sandbox import wait
from cli.sandbox.cluster import Sandbox
from cli.sandbox.layout import NodePaths
from gres.grant.store import Grant, GrantError, GrantStore
from slurm_plugin.accounting import sacct

CASES: dict[str, Any] = yaml.safe_load(
    (Path(__file__).resolve().parents[2] / "cases" / "live.yaml").read_text()
)
SLACK = 4  # times the deadline of an idle machine, for a busy one
USABLE = (80 - 2) << 30  # bytes of a card of the sandbox that shares may hold
GONE = frozenset(
    {"BOOT_FAIL", "CANCELLED", "COMPLETED", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "TIMEOUT"}
)
# One iteration of the workload's kernel is a nanosecond on a simulated card.
KERNEL = ("--kernel-us", "500", "--iters", "500000")


def work(*options: str) -> str:
    """Command line of the workload program with a kernel of 0.5 ms."""
    return shlex.join(["qgpu-workload", *KERNEL, *options])


def together(calls: Iterable[Callable[[], Any]], at_once: int = 6) -> list[Any]:
    """Results of all calls, in order; they mostly wait for Slurm."""
    with ThreadPoolExecutor(at_once) as pool:
        return [future.result() for future in [pool.submit(call) for call in calls]]


def sentence_of(stderr: str) -> str:
    """The one line of qgpu in what a client of Slurm printed, without the client's name."""
    lines = [line for line in stderr.splitlines() if " qgpu: " in f" {line}"]
    return lines[0].partition("qgpu: ")[2] if len(lines) == 1 else ""


class Live:
    """The sandbox as a user's terminal sees it, with an admin beside."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox
        self.nodes = sandbox.node_names
        self.dialect = dialect.of(sandbox.plan.slurm)

    # -- commands ------------------------------------------------------------

    def run(
        self, *words: str, user: str | None = None, **more: Any
    ) -> subprocess.CompletedProcess[str]:
        """Any command; its exit status is the caller's business."""
        return self.sandbox.run(list(words), user=user, check=False, **more)

    def ask(self, *words: str, user: str | None = None) -> str:
        """Output of a command that has to succeed."""
        return self.sandbox.run(list(words), user=user).stdout.strip()

    def submit(
        self, script: str, *options: str, user: str = "alice", output: str = "%j.out"
    ) -> int:
        """sbatch a script (stdout and stderr in one file of the user's home); the job's number."""
        words = ["sbatch", "--parsable", f"--output={output}", *options]
        done = self.sandbox.run(words, user=user, input=f"#!/bin/bash\n{script}\n")
        return int(done.stdout.strip())

    def output(self, job: int | str, user: str = "alice") -> str:
        """What the job wrote so far."""
        path = self.sandbox.layout.home(user) / f"{job}.out"
        return path.read_text() if path.exists() else ""

    def finish(self, *jobs: int, seconds: float = 90) -> list[str]:
        """Wait for the end of jobs of alice, and return what each wrote."""
        for job in jobs:
            self.wait_gone(job, seconds)
        return [self.output(job) for job in jobs]

    # -- jobs ------------------------------------------------------------

    def job(self, job: int) -> dict[str, str]:
        """Fields of `scontrol show job`, empty once slurmctld forgot it."""
        done = self.run("scontrol", "-d", "show", "job", str(job))
        fields: dict[str, str] = {}
        # Of a heterogeneous job and of an array there are several: each has an empty line behind
        # it.
        blocks = done.stdout.split("\n\n")
        own = [block for block in blocks if block.lstrip().startswith(f"JobId={job} ")]
        for line in (own or blocks)[0].splitlines():
            words = line.strip()
            if words.startswith(("Comment=", "Extra=", "Reason=", "Command=")):
                name, _, fields_value = words.partition("=")
                fields[name] = fields_value.strip()
                continue
            fields.update(word.split("=", 1) for word in words.split() if "=" in word)
        return fields

    def tag(self, job: int) -> str | None:
        """The field with the tag for the node, and the text after the tag."""
        return self.job(job).get(self.dialect.field)

    def gres(self, job: int) -> str:
        """The job's gres per node, without the prefixes that Slurm shows."""
        return self.job(job).get("TresPerNode", "").replace(self.dialect.prefix, "")

    def tres(self, job: int, field: str = "AllocTRES") -> dict[str, str]:
        """ReqTRES or AllocTRES of a job as slurmctld has it; 22.05 shows one of them as TRES."""
        found = self.job(job)
        return dict(sacct.parse_tres(found.get(field, found.get("TRES", ""))))

    def state(self, job: int) -> str:
        """RUNNING, PENDING ...; empty once slurmctld forgot it."""
        return self.job(job).get("JobState", "")

    def reason(self, job: int) -> str:
        """The reason why it waits, by squeue."""
        return self.job(job).get("Reason", "")

    def wait_state(self, job: int, *states: str, seconds: float = 20) -> None:
        """Wait until the job is in one of these states."""
        self.until(
            lambda: self.state(job) in states, seconds, f"job {job} becoming {' or '.join(states)}"
        )

    def wait_requeued(self, job: int) -> None:
        """Wait until a job whose Prolog failed is back in the queue, held: what is done to it
        before may get lost.
        """
        self.until(
            lambda: self.queued(job) == "PENDING" and self.reason(job).startswith("launch_failed"),
            20,
            f"job {job} being requeued and held",
        )

    def wait_gone(self, job: int, seconds: float = 30) -> None:
        """Wait until the job has ended and its epilogs ran (completing jobs still hold their
        node).
        """
        self.until(
            lambda: self.state(job) in ("", *GONE) and self.queued(job) == "",
            seconds,
            f"the end of job {job}",
        )

    def queued(self, job: int) -> str:
        """State of a job that squeue lists by default: not of one that ended."""
        return self.run("squeue", "-h", "-j", str(job), "-o", "%T").stdout.strip()

    def until(self, done: Callable[[], bool], seconds: float, what: str) -> None:
        """Poll; an error that names what did not happen and shows the queue."""
        try:
            wait.until(done, SLACK * seconds, what)
        except Exception as error:
            queue = self.run("squeue", "-o", "%i %T %r %N %b %u").stdout
            raise AssertionError(f"{error}\n{queue}{self.drained()}") from None

    def cancel(self, *jobs: int, user: str | None = None) -> None:
        """scancel; as root unless a user is named. What is being launched is launched first."""
        self.launched()
        if jobs:
            self.ask("scancel", *map(str, jobs), user=user)

    def launched(self, seconds: float = 3) -> None:
        """Wait until the step daemons of running jobs have started what they run, for a while at
        most.

        On Slurm 24.11 a kill that came sooner was not enough for a step now and then, and 60 s
        later slurmd drained its node ("Kill task failed": docs/sandbox.md).
        """
        jobs = set(self.ask("squeue", "-h", "-t", "R", "-o", "%A").split())
        end = time.monotonic() + seconds
        while jobs and not _started(jobs) and time.monotonic() < end:
            time.sleep(0.02)

    # -- nodes ------------------------------------------------------------

    def grants(self) -> dict[int, Grant]:
        """The standing grants of all nodes by job (of a job on several nodes, one of them)."""
        found: dict[int, Grant] = {}
        for name in self.nodes:
            store = GrantStore(self.sandbox.node(name).run_dir / "grants")
            for job in store.job_ids():
                try:
                    found[job] = store.read(job)
                except GrantError:
                    continue  # ended meanwhile
        return found

    def grant(self, job: int) -> Grant:
        """A job's standing grant, once its Prolog has made it: Slurm calls the job running a
        moment before.
        """
        self.until(lambda: job in self.grants(), 20, f"the grant of job {job}")
        return self.grants()[job]

    def place(self, job: int) -> tuple[str, int]:
        """Node and index of the one card that a job holds."""
        grant = self.grant(job)
        assert len(grant.cards) == 1, grant
        return grant.node, grant.cards[0].index

    def paths(self, node: str) -> NodePaths:
        """Files of a node."""
        return self.sandbox.node(node)

    def drained(self) -> str:
        """Nodes that take no jobs, with the reason; empty if all do."""
        return self.ask("sinfo", "-h", "-N", "-t", "drain,down,fail", "-o", "%N %T %E")

    def restore(self, node: str) -> None:
        """qgpud runs again on the node, and the node takes jobs."""
        if not self.sandbox.services()[f"{node}.qgpud"]:
            self.sandbox.start(node, "qgpud")
        if node in self.drained():
            self.ask("scontrol", "update", f"NodeName={node}", "State=RESUME")

    def stop_qgpud(self, node: str) -> None:
        """kill -9 the daemon of a node."""
        self.sandbox.kill(node, "qgpud", signal.SIGKILL)

    # -- accounting ------------------------------------------------------------

    def sacct(self, job: int | str, fields: str) -> list[str]:
        """Fields of a job in the database."""
        return self.ask("sacct", "-X", "-n", "-P", "-j", str(job), "-o", fields).split("|")

    def wait_sacct(self, job: int | str, *states: str) -> None:
        """Wait until the database has the job's end (or state), and its QOS: Slurm writes them
        in steps.
        """

        def there() -> bool:
            state, *rest = self.sacct(job, "state,qos")
            return state.split(" ")[0] in (states or GONE) and rest not in ([""], ["Unknown"])

        self.until(there, 20, f"the record of job {job} in sacct")

    def report(self, *jobs: int | str) -> dict[int, dict[str, Any]]:
        """`qgpu report --json`, by job."""
        text = self.ask("qgpu", "report", "--json", *map(str, jobs))
        return {int(job["raw_id"]): job for job in json.loads(text)["jobs"]}

    # -- between tests ------------------------------------------------------------

    def repaired(self) -> str:
        """Nodes that were out of service, with the reasons; they take jobs again: the next test
        is not to blame.
        """
        found = self.drained()
        for node in self.nodes if found else ():
            self.restore(node)
        return found

    def empty(self) -> None:
        """No job is left, on no node: what each test begins and ends with."""
        if self.ask("squeue", "-h", "-o", "%i"):
            self.launched()
            for user in ("alice", "bob"):
                self.run("scancel", "-u", user)
        self.until(lambda: not self.ask("squeue", "-h", "-o", "%i"), 30, "an empty queue")


def _started(jobs: set[str]) -> bool:
    """Each job has a step daemon, the extern step's at least, and each of these has a child that
    is none itself.
    """
    found: dict[int, str] = {}
    parents: set[int] = set()
    for process in psutil.process_iter(["pid", "ppid", "cmdline"]):
        title = " ".join(process.info["cmdline"] or ())
        if step := re.match(r"slurmstepd: \[(\d+)\.", title):
            found[process.info["pid"]] = step[1]
        else:
            parents.add(process.info["ppid"])
    return all(job in found.values() for job in jobs) and all(
        pid in parents for pid, job in found.items() if job in jobs
    )


def alone(live: Live) -> Iterator[Live]:
    """A cluster for one test: an empty queue before and after; fails if a node was left drained."""
    live.empty()
    yield live
    try:
        live.empty()
    finally:
        left = live.repaired()
    assert not left, f"the test left a node out of service: {left}"
