"""The audit on a real node with simulated cards: jobs that report false work or resist being
stopped.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import time

import pytest
from node_support import BUILD, Chain, end, until, work

from enforcer.daemon.audit.procs import stopped

pytestmark = [
    pytest.mark.native,
    pytest.mark.skipif(os.geteuid() != 0, reason="makes device nodes"),
    pytest.mark.timeout(180),
]
ENDLESS = ("--no-sync-each=1000000", "--kernels-per-request", "5")
BARE = "env -u LD_PRELOAD -u QGPU_GRANT_FD -u QGPU_GRANT"


def audited(chain: Chain, audit: str, interval: str = "200ms") -> None:
    """Restarts qgpud with these settings of the audit, which then looks often."""
    chain.qgpud.terminate()
    chain.qgpud.wait()
    change = f"{{ledger_interval: 200ms, nvml_interval: {interval}, audit: {{{audit}}}}}"
    chain.config.write_text(chain.config.read_text().replace("{ledger_interval: 200ms}", change))
    chain.start_qgpud()
    until(lambda: chain.log().count("event=serving") == 2)
    until(lambda: chain.log().count("event=arbiter-synced") == 2)


def run(chain: Chain, share: int, *words: str, card: int = 0) -> subprocess.Popen[str]:
    options = ("--share", str(share), "--mem", "1G", "--card", str(card), "--class", "offline")
    return chain.qgpu("run", *options, "--", *words)


def said(chain: Chain, kind: str) -> list[str]:
    return [line for line in chain.log().splitlines() if f"event={kind} " in line]


def children(pid: int) -> list[int]:
    found = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True, check=False)
    return [int(word) for word in found.stdout.split()]


def end_all(*jobs: subprocess.Popen[str]) -> None:
    for job in jobs:
        if job.poll() is None:
            job.send_signal(signal.SIGSTOP)  # it starts no more while its children are counted
        for pid in children(job.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        end(job)


# ---- work that is not booked ---------------------------------------------------------------------


@pytest.mark.parametrize(("action", "policy"), [("log", "best-effort"), ("kill", "burst-share")])
def test_job_whose_shim_lies_about_its_work_is_found(start, action, policy):
    """It claims that all it launched is finished already, and so takes twice its share; its
    neighbour is honest.
    """
    chain = start()
    chain.config.write_text(f"{chain.config.read_text()}cards: [{{nodes: n1, policy: {policy}}}]\n")
    audited(chain, f"action: {action}, busy_window: 4s")
    lie = " ".join(work(chain, *ENDLESS, "--iters", "2000000", "--length", "600"))
    liar = run(chain, 10, "sh", "-c", f'LD_PRELOAD="$LD_PRELOAD {BUILD}/test/liar.so" exec {lie}')
    honest = run(chain, 90, *work(chain, *ENDLESS, "--iters", "2000000", "--length", "600"))
    try:
        until(lambda: len(chain.tenants()) == 2)
        assert {tenant.policy for tenant in chain.tenants()} == {policy}
        (job,) = [tenant.job_id for tenant in chain.tenants() if tenant.share == 10]
        until(lambda: said(chain, "audit-busy"), 40)
        (line,) = said(chain, "audit-busy")
        told, booked = (
            int(re.search(rf"{word}_percent=(\d+)", line)[1]) for word in ("busy", "booked")
        )
        assert told > booked + 4 and "window_s=4" in line
        assert f"job={job} " in line
        if action == "kill":
            assert liar.wait(30) in (-signal.SIGKILL, 128 + signal.SIGKILL)
        time.sleep(2)
        assert honest.poll() is None and (liar.poll() is None) is (action == "log")
        assert len(said(chain, "audit-busy")) == 1, "said once"
    finally:
        end_all(liar, honest)


def test_honest_jobs_do_no_more_than_is_booked(start):
    """A pair of 10/90 with kernels of all lengths, a visitor that rests half of the time,
    another that waits for each kernel: with a window of 3 s, the hardest one, none is ever
    found.
    """
    chain = start()
    audited(chain, "action: kill, busy_window: 3s")
    mix = (
        "--kernel-us",
        "100",
        "--iters",
        "100000",
        "--kernel-mix",
        "100,1000,5000,20000",
        "--length",
        "25",
    )
    jobs = [
        run(chain, share, *work(chain, *ENDLESS, *mix, "--seed", str(share))) for share in (10, 60)
    ]
    jobs.append(
        run(
            chain,
            20,
            *work(chain, "--iters", "500000", "--period", "4", "--duty", "50", "--length", "25"),
        )
    )
    jobs.append(run(chain, 10, *work(chain, "--iters", "50000", "--length", "25")))
    jobs.append(
        run(
            chain,
            50,
            *work(chain, "--iters", "300000", "--period", "3", "--duty", "40", "--length", "25"),
            card=1,
        )
    )
    try:
        assert [job.wait(60) for job in jobs] == [0] * len(jobs)
        assert not re.findall(r"event=audit-\w+", chain.log())
    finally:
        end_all(*jobs)


# ---- who does not want to stop -------------------------------------------------------------------


def test_process_that_is_made_to_go_on_again_and_again_is_killed(start):
    """`while :; do kill -CONT $P; sleep .1; done`, by the job itself."""
    chain = start()
    audited(chain, "action: stop")
    load = " ".join(work(chain, "--length", "600", "--kernel-us", "200"))
    loop = (
        f"{BARE} {load} > /dev/null & p=$!; while kill -CONT $p; do sleep 0.1; done 2> "
        "/dev/null; wait $p; echo $?"
    )
    hostile = run(chain, 10, "sh", "-c", loop)
    honest = run(chain, 50, *work(chain, "--length", "600", "--kernel-us", "200"))
    try:
        assert hostile.communicate(timeout=40)[0].strip() == "137"
        until(lambda: len(said(chain, "audit-again")) >= 6, 10)  # it is killed first
        again = said(chain, "audit-again")
        assert [line.rpartition("action=")[2] for line in again] == ["stop"] * 5 + ["kill"]
        assert len(said(chain, "audit-unregistered")) == 1
        assert honest.poll() is None
    finally:
        end_all(hostile, honest)


def test_administrator_lets_a_stopped_job_go_on(start):
    chain = start()
    audited(chain, "action: stop")
    load = " ".join(work(chain, "--length", "600", "--kernel-us", "200"))
    job = run(chain, 10, "sh", "-c", f"exec {BARE} {load}")
    try:
        until(lambda: said(chain, "audit-unregistered"))
        until(lambda: stopped(job.pid))
        (line,) = said(chain, "audit-unregistered")
        number = re.search(r"job=(\d+)", line)[1]
        code, out, err = chain.said("job", "pardon", number)
        assert (code, out) == (
            0,
            f"the audit leaves job {number} alone from now on, 1 process went on\n",
        ), err
        time.sleep(2)
        assert not stopped(job.pid) and not said(chain, "audit-again")
    finally:
        end_all(job)


def test_job_that_fills_the_card_again_with_a_new_process_is_killed_again(start):
    chain = start()
    audited(chain, "action: kill, slack: 512MiB")
    again = f"while :; do echo | {BUILD}/test/shim-evil hide 40; done > /dev/null 2>&1"
    job = run(chain, 50, "sh", "-c", again)
    try:
        until(lambda: len(said(chain, "audit-over")) >= 4, 60)
        pids = [re.search(r"signalled=(\S+)", line)[1] for line in said(chain, "audit-over")]
        assert len(set(pids)) == len(pids), "each once"
    finally:
        end_all(job)


def test_program_on_a_card_that_it_was_not_granted_is_killed(start):
    """Nothing but CUDA_VISIBLE_DEVICES keeps it from there. Whoever qgpu knows nothing of may
    use that card.
    """
    chain = start()
    audited(chain, "action: kill")
    load = " ".join(work(chain, "--length", "600", "--kernel-us", "200", "--device", "1"))
    stranger = subprocess.Popen(
        work(chain, "--length", "600", "--device", "1"), env=chain.env(), stdout=subprocess.DEVNULL
    )
    honest = run(chain, 50, *work(chain, "--length", "600", "--kernel-us", "200"))
    job = run(chain, 10, "sh", "-c", f"{BARE} -u CUDA_VISIBLE_DEVICES {load}; echo $?")
    try:
        assert job.communicate(timeout=40)[0].strip() == "137"
        until(lambda: said(chain, "audit-ungranted"), 10)  # it is killed first
        (line,) = said(chain, "audit-ungranted")
        assert "action=kill" in line and line.count("signalled=") == 1
        assert stranger.poll() is None and honest.poll() is None
        assert not said(chain, "audit-stranger"), "nobody was granted that card"
    finally:
        end(stranger)
        end_all(job, honest)


def test_stopped_process_on_a_mig_instance_is_not_exempt_for_ever(start):
    """It launches without the shim and stops itself; NVML tells no utilisation of an instance."""
    chain = start('slurm: {version: "24.11"}\n', mig=2)
    audited(chain, "action: kill, excuse: 3s", "1s")
    load = " ".join(work(chain, "--length", "600", "--kernel-us", "200"))
    # stopped long before three looks, a second apart: it is found by the end of the excuse alone
    up = "until ls -l /proc/$p/fd | grep -q socket:; do sleep 0.05; done; sleep 0.3"
    script = f"{BARE} {load} > /dev/null & p=$!; {up}; kill -STOP $p; wait $p; echo $?"
    began = time.monotonic()
    job = run(chain, 10, "sh", "-c", script)
    try:
        assert job.communicate(timeout=40)[0].strip() == "137"
        assert time.monotonic() - began > 3
        until(lambda: said(chain, "audit-unregistered"), 10)  # it is killed first
        assert len(said(chain, "audit-unregistered")) == 1
    finally:
        end_all(job)
