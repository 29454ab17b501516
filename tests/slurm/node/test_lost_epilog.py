"""An Epilog that never came: the grant does not outlive its job, and fails nobody else's."""

from __future__ import annotations

import json
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from jobs_support import Live, work
from steps_support import records_of

from enforcer.ledger.schema import Usage
from enforcer.ledger.store import read_usage


@pytest.fixture
def epilog(live: Live) -> Iterator[Path]:
    """The Epilog that all nodes run; it is as it was afterwards."""
    path = live.sandbox.layout.etc / "epilog"
    before = path.read_bytes()
    yield path
    replace(path, before)


def replace(path: Path, text: bytes) -> None:
    new = path.with_suffix(".new")
    new.write_bytes(text)
    new.chmod(0o755)
    new.rename(path)


def row(live: Live, job: int, node: str) -> Usage:
    (found,) = read_usage(live.paths(node).ledger, [job])
    return found


def ends(live: Live, node: str, job: int) -> list[str]:
    lines = live.paths(node).log("qgpud").read_text().splitlines()
    return [line for line in lines if f"event=end job={job} " in line]


def leave_behind(live: Live, epilog: Path, node: str) -> int:
    """A job of alice that fills a card of the node, whose Epilog does nothing."""
    before = epilog.read_bytes()
    replace(epilog, b"#!/bin/sh\nexit 0\n")
    options = ("--gres=qgpu:80", "-w", node)
    job = live.submit(work("--length", "1", "--memory", "1G"), *options)
    live.finish(job)
    replace(epilog, before)
    assert job in live.grants(), "no Epilog ended it"
    return job


def test_a_job_gets_its_place_from_one_that_left_its_grant(live: Live, epilog: Path) -> None:
    node = live.nodes[0]
    other = live.submit("sleep 600", "--gres=qgpu:80", "-w", node)
    live.grant(other)  # so the card that is left behind is the only one with room for bob
    job = leave_behind(live, epilog, node)
    words = ("qgpu", "doctor", "--json", "--role", "node", "--node", node)
    (check,) = [one for one in json.loads(live.run(*words).stdout) if one["name"] == "grants"]
    assert check["status"] == "fail" and f"job {job} left a grant" in check["text"], check
    done = live.run("srun", "--gres=qgpu:50", "-w", node, "true", user="bob")
    assert done.returncode == 0, done.stderr
    assert job not in live.grants()
    found = row(live, job, node)
    assert found.end_reason == "lost" and found.fetched == 1
    assert found.busy_ns, "its last counters were read"
    assert [line.endswith("reason=lost") for line in ends(live, node, job)] == [True]
    live.wait_sacct(job, "COMPLETED")
    assert live.report(job)[job]["state"] == "COMPLETED"
    times = ("-X", "-n", "-P", "-j", str(job), "-o", "start,end")
    start, end = map(int, live.ask("env", "SLURM_TIME_FORMAT=%s", "sacct", *times).split("|"))
    assert found.ended_at is not None and found.ended_at // 10**9 == end
    assert found.granted_at // 10**9 >= start - 1


def test_an_epilog_that_is_killed_in_the_midst(live: Live, epilog: Path) -> None:
    node = live.nodes[0]
    before = epilog.read_bytes()
    replace(epilog, b"#!/bin/sh\nexec sleep 1000\n")
    job = live.submit("true", "--gres=qgpu:80", "-w", node)

    def epilogs() -> list[psutil.Process]:
        return [p for p in psutil.process_iter(["cmdline"]) if p.info["cmdline"] == SLEEP]

    live.until(lambda: bool(epilogs()), 30, "the Epilog")
    replace(epilog, before)
    assert live.state(job) == "COMPLETED" or live.queued(job) == "COMPLETING"
    assert job in live.grants(), "it completes: its Epilog may still come"
    for process in epilogs():
        process.send_signal(signal.SIGKILL)
    live.wait_gone(job)
    live.until(lambda: node in live.drained(), 30, "slurmctld drains the node")
    live.restore(node)
    taken = [live.submit("sleep 600", "--gres=qgpu:80", "-w", node, user="bob") for _ in range(2)]
    for other in taken:
        assert live.grant(other).state == "active"
    live.cancel(*taken)
    live.until(lambda: job not in live.grants(), 90, f"the end of job {job}")
    assert row(live, job, node).end_reason == "lost"


SLEEP = ["sleep", "1000"]
FORGED = 999_999_999


def hook(live: Live, node: str, kind: str, card: int) -> str:
    """Ask qgpud as slurmd would for a job that went around job_submit; the status it answers."""
    tag = "qgpu/1 class=offline share=50 mem=39936"
    fields = {"ID": FORGED, "UID": 1, "GID": 1, "COMMENT": tag, "EXTRA": tag, "GPUS": card}
    words = [f"qgpu-hook/1 {kind}", f"SLURMD_NODENAME={node}"]
    words += [f"SLURM_JOB_{key}={value}" for key, value in fields.items()]
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        sock.settimeout(60)
        sock.connect(str(live.paths(node).run_dir / "hook.sock"))
        sock.send("\0".join(words).encode())
        return sock.recv(65536).partition(b"\0")[0].decode().split()[-1]


def test_an_allocation_without_a_step_keeps_its_grant(live: Live) -> None:
    """No record of a slurmstepd is there, as without the extern step; slurmctld has the job."""
    node = live.nodes[0]
    # From 24.11 on salloc ends its program only with -K.
    words = ["salloc", "-K", "--gres=qgpu:80", "-w", node, "sleep", "100"]
    with live.sandbox.popen(words, user="alice"):
        live.until(lambda: bool(live.grants()), 20, "an allocation")
        (job,) = live.grants()
        _, card = live.place(job)
        for path in records_of(live.paths(node).run_dir, job):
            path.unlink()
        assert hook(live, node, "prolog", card) == "0"
        refused = live.grants()[FORGED]
        assert refused.state == "refused"
        assert f"belong to job {job}. A job's gres" in refused.message
        assert live.grants()[job].state == "active" and not ends(live, node, job)
        assert hook(live, node, "epilog", card) == "0"
        live.cancel(job)
    live.wait_gone(job)
    assert row(live, job, node).end_reason == "epilog"
