"""Faults with the real qgpud: NVML that fails, a daemon that hangs, and a program that hides
what it holds.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from node_support import BUILD, Chain, end, until, work

from enforcer.wire.link import TenantStats
from simulator.sim import SimConfig, Simulator

MIB = 1 << 20
pytestmark = [
    pytest.mark.native,
    pytest.mark.skipif(os.geteuid() != 0, reason="makes device nodes"),
    pytest.mark.timeout(180),
]


def configured(chain: Chain, enforcer: str) -> None:
    """Restarts qgpud with other settings of the section `enforcer`."""
    chain.qgpud.terminate()
    chain.qgpud.wait()
    text = chain.config.read_text()
    chain.config.write_text(
        text.replace("{ledger_interval: 200ms}", f"{{ledger_interval: 200ms, {enforcer}}}")
    )
    chain.start_qgpud()
    until(lambda: chain.log().count("event=serving") == 2)


def run(chain: Chain, *words: str, mem: str = "1G") -> subprocess.Popen[str]:
    return chain.qgpu("run", "--mem", mem, "--card", "0", "--", *words, stdin=subprocess.PIPE)


def only(chain: Chain) -> TenantStats:
    (tenant,) = chain.tenants()
    return tenant


def test_nvml_that_fails_stops_no_job_and_frees_no_memory(start):
    """Nobody can say then when a dead process has left the card: its memory stays charged until
    the driver answers.
    """
    chain = start()
    configured(chain, "nvml_interval: 100ms")
    shell = (
        f"{' '.join(work(chain, '--length', '60', '--memory', '900M'))} > /dev/null & first=$!; "
        "echo started; read x; "
        "kill -9 $first; wait $first; read x; exec "
        f"{' '.join(work(chain, '--length', '1', '--memory', '900M'))}"
    )
    # room for one with its context, in whichever order the two are charged
    job = run(chain, "bash", "-c", shell, mem="1500M")
    fault = Simulator(SimConfig(chain.directory / "sim", "n1"), BUILD, chain.qgpud).control
    try:
        assert job.stdin and job.stdout and job.stdout.readline() == "started\n"
        until(lambda: only(chain).mem_used >= 900 * MIB and only(chain).mem_extra)
        fault("error call=nvml* code=999")
        until(lambda: "event=nvml-failed" in chain.log())
        before = only(chain).launches
        until(lambda: only(chain).launches > before + 100)
        job.stdin.write("\n")
        job.stdin.flush()
        until(lambda: only(chain).procs == 0)
        died = time.monotonic()
        while time.monotonic() < died + 6:
            assert only(chain).mem_extra >= 900 * MIB
            time.sleep(0.1)
        fault("clear")
        until(lambda: only(chain).mem_extra == 0, 10)
        job.stdin.write("\n")
        job.stdin.flush()
        out, err = job.communicate(timeout=60)
        assert job.returncode == 0 and '"kernels"' in out, err
    finally:
        end_tree(job)


def test_daemon_that_hangs_holds_up_neither_gates_nor_deaths(start):
    """qgpud is told of each death; one that does not listen is dropped, not waited for."""
    chain = start()
    steady = run(chain, *work(chain, "--length", "600", "--kernel-us", "200", "--memory", "256M"))
    works = f"exec 3< <(exec {BUILD}/test/shim-task churn 1); read -u 3"
    again = f"while :; do {works}; sleep 0.1; kill -9 $!; wait $!; done > /dev/null 2>&1"
    # What its dead processes held, a context at least, is free when qgpud says so.
    churn = run(chain, "bash", "-c", again, mem="60G")
    try:
        until(lambda: len(chain.tenants()) == 2 and min(t.launches for t in chain.tenants()) > 50)
        chain.qgpud.send_signal(signal.SIGSTOP)
        try:
            for _ in range(3):
                before = {t.job_id: t.launches for t in chain.tenants()}
                until(
                    lambda b=before: all(t.launches > b[t.job_id] + 100 for t in chain.tenants()),
                    20,
                )
        finally:
            chain.qgpud.send_signal(signal.SIGCONT)
        end_tree(churn)
        until(lambda: [t.mem_used for t in chain.tenants() if t.procs] == [(256 + 300) * MIB])
        until(lambda: all(t.mem_extra < 400 * MIB for t in chain.tenants()), 15)
        assert chain.arbiter.poll() is None and steady.poll() is None
    finally:
        end_tree(churn)
        end(steady)


def end_tree(process: subprocess.Popen[str]) -> None:
    """A program and what it started, which holds its pipes as well."""
    if process.poll() is None:
        process.send_signal(signal.SIGSTOP)  # it starts no more while its children are counted
        until(
            lambda: (
                Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] in "TZ"
            )
        )
    ask = ["ps", "-o", "pid=", "--ppid", str(process.pid)]
    children = subprocess.run(ask, capture_output=True, text=True, check=False)
    process.kill()
    for pid in children.stdout.split():
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)
    end(process)


def test_program_that_hides_its_memory_is_found_by_the_audit(start):
    """It zeroes its books and takes 2.5 GiB from the driver itself, of a cap of 1 GiB: NVML
    tells, the job ends.
    """
    chain = start()
    configured(chain, "nvml_interval: 100ms, audit: {action: kill, slack: 512MiB}")
    job = run(chain, f"{BUILD}/test/shim-evil", "hide", "40")
    try:
        assert job.stdin and job.stdout and job.stdout.readline() == "begin\n"
        job.stdin.write("\n")
        job.stdin.flush()
        until(lambda: "event=audit-over" in chain.log())
        job.communicate(timeout=30)
        assert job.returncode in (-signal.SIGKILL, 128 + signal.SIGKILL)
        (line,) = [text for text in chain.log().splitlines() if "event=audit-over" in text]
        assert "action=kill" in line
    finally:
        end(job)
