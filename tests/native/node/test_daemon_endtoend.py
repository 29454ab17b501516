"""Hook, qgpud, arbiter, SPANK, shim and simulated card in one chain, without Slurm: from Prolog
to ledger.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from node_support import Chain, until

MIB = 1 << 20

pytestmark = [
    pytest.mark.native,
    pytest.mark.skipif(os.geteuid() != 0, reason="makes device nodes"),
    pytest.mark.timeout(120),
]


@pytest.fixture
def chain() -> Iterator[Chain]:
    with tempfile.TemporaryDirectory(prefix="qgpu-test-") as name, contextlib.ExitStack() as stack:
        Path(name).chmod(0o755)
        yield Chain(Path(name), stack)


def test_cap_reaches_the_program_and_use_reaches_the_ledger(chain):
    assert chain.hook("prolog", 7, "qgpu/1 class=online share=30 mem=1024") == 0
    out, err = chain.task(
        7, "--length", "1", "--kernel-us", "200", "--alloc-past", "4GiB"
    ).communicate(timeout=60)
    done = json.loads(out)
    assert done["alloc"]["refused"] and done["alloc"]["bytes"] <= 1024 * MIB
    assert "qgpu: allocation of" in err and "job 7" in err
    assert chain.hook("epilog", 7) == 0
    row = chain.usage(7)
    assert row.end_reason == "epilog" and row.denied == 1
    assert row.launches is not None and row.launches >= done["kernels"]
    assert row.busy_ns is not None and 0 < row.busy_ns <= row.wall_ns(0)
    assert row.mem_peak is not None and 900 * MIB < row.mem_peak <= 1024 * MIB


def test_use_is_summed_over_the_death_of_both_daemons(chain):
    assert chain.hook("prolog", 7, "qgpu/1 class=offline share=50 mem=1024") == 0
    task = chain.task(7, "--length", "600", "--kernel-us", "200")
    until(lambda: chain.usage(7).busy_ns)
    chain.qgpud.send_signal(signal.SIGKILL)
    chain.arbiter.send_signal(signal.SIGKILL)
    chain.qgpud.wait()
    chain.arbiter.wait()
    before = chain.usage(7)
    chain.ready("bin/qgpu-arbiter", "--run-dir", f"{chain.directory}/run")
    chain.start_qgpud()
    until(lambda: chain.usage(7).busy_ns > before.busy_ns)
    subprocess.run(["pkill", "-TERM", "-P", str(task.pid)], check=True)  # the program itself
    out, _ = task.communicate(timeout=60)
    assert task.returncode == 0, "the job did not notice"
    assert chain.hook("epilog", 7) == 0
    after = chain.usage(7)
    assert after.granted_at == before.granted_at
    assert after.busy_ns > before.busy_ns > 0
    assert after.launches > before.launches
    assert after.launches <= json.loads(out)["kernels"] * 1.1 + 1000


def test_card_that_slurm_gave_but_the_node_has_not_is_a_broken_node(chain):
    assert chain.hook("prolog", 7, "qgpu/1 whole", gpus="5") == 1
    assert "names 2 card(s) for n1" in (chain.directory / "run/last-failure").read_text()
