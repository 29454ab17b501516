"""qgpud and arbiter exchanged one after the other while jobs work and come and go."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import psutil
import pytest
from node_support import BUILD, MIB, Chain, chains, until

from enforcer.wire.link import TenantStats

pytestmark = [
    pytest.mark.native,
    pytest.mark.skipif(os.geteuid() != 0, reason="makes device nodes"),
    pytest.mark.timeout(180),
]
FIRST, SECOND = 7, 8
CONTEXT = 300  # MiB of a simulated one


@pytest.fixture
def chain() -> Iterator[Chain]:
    with chains() as make:
        yield make()


def tenant(chain: Chain, job: int) -> TenantStats | None:
    return next((t for t in chain.tenants() if t.job_id == job), None)


def works(chain: Chain, job: int) -> None:
    """The job is registered and launches."""
    until(lambda: (found := tenant(chain, job)) and found.procs == 1)
    before = tenant(chain, job)
    assert before
    until(lambda: (now := tenant(chain, job)) and now.launches > before.launches + 50)


def restart_qgpud(chain: Chain, sig: int) -> None:
    """The daemon ends and comes again; the jobs' arbiter hears the list once more."""
    synced = chain.log().count("event=arbiter-synced")
    chain.qgpud.send_signal(sig)
    chain.qgpud.wait(60)
    chain.start_qgpud()
    until(lambda: chain.log().count("event=arbiter-synced") > synced)


def exchange_arbiter(chain: Chain) -> None:
    """Another arbiter follows, as a package's update leaves it; qgpud finds it by itself."""
    synced = chain.log().count("event=arbiter-synced")
    chain.arbiter.terminate()
    chain.arbiter.wait(60)
    (chain.opt / "bin/qgpu-arbiter").unlink()
    (chain.opt / "bin/qgpu-arbiter").write_bytes((BUILD / "bin/qgpu-arbiter").read_bytes())
    (chain.opt / "bin/qgpu-arbiter").chmod(0o755)
    chain.arbiter = chain.ready("bin/qgpu-arbiter", "--run-dir", f"{chain.directory}/run")
    until(lambda: chain.log().count("event=arbiter-synced") > synced)


def short_job(chain: Chain, job: int) -> None:
    """A job comes, works within its cap, and goes: whoever serves this node now."""
    assert chain.hook("prolog", job, "qgpu/1 class=offline share=20 mem=1024") == 0
    process = chain.task(job, "--memory", "256M", "--requests", "20", "--kernel-us", "200")
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0 and '"kernels"' in out, err
    assert chain.hook("epilog", job) == 0
    until(lambda: tenant(chain, job) is None)
    until(lambda: chain.usage(job).launches > 0)


def test_daemons_are_exchanged_under_live_jobs(chain: Chain) -> None:
    """Each step by itself: the jobs work on, keep what they hold, and their use is booked on."""
    assert chain.hook("prolog", FIRST, "qgpu/1 class=offline share=50 mem=4096") == 0
    assert chain.hook("prolog", SECOND, "qgpu/1 class=offline share=30 mem=4096") == 0
    load = ("--length", "600", "--kernel-us", "200")
    running = {
        FIRST: chain.task(FIRST, "--memory", "1G", *load),
        SECOND: chain.task(SECOND, "--memory", "512M", *load),
    }
    steps = [
        lambda: restart_qgpud(chain, signal.SIGTERM),
        lambda: exchange_arbiter(chain),
        lambda: restart_qgpud(chain, signal.SIGKILL),
        lambda: exchange_arbiter(chain),
        lambda: restart_qgpud(chain, signal.SIGKILL),
    ]
    try:
        for job in running:
            works(chain, job)
        booked = 0
        for number, step in enumerate(steps):
            step()
            for job, process in running.items():
                works(chain, job)
                assert process.poll() is None, process.communicate()
            held = {job: found.mem_used // MIB for job in running if (found := tenant(chain, job))}
            assert held == {FIRST: 1024 + CONTEXT, SECOND: 512 + CONTEXT}
            short_job(chain, 100 + number)
            until(lambda most=booked: chain.usage(FIRST).launches > most)
            booked = chain.usage(FIRST).launches
        # contexts are in mem_used, with the new arbiter too
        until(lambda: all(t.mem_extra < MIB for t in chain.tenants()))
    finally:
        errors = {}
        for job, process in running.items():
            for program in psutil.Process(process.pid).children(recursive=True):
                # the launcher alone would leave it at work, and its pipe open, to its end
                program.kill()
            process.kill()
            errors[job] = process.communicate()[1]
    assert errors == {FIRST: "", SECOND: ""}, "the programs noticed nothing"
