"""Real qgpud, arbiter, shim and simulated cards: the audit, a driver that hangs, and qgpu
doctor.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time

import pytest
from node_support import BUILD, as_nobody, end, report, until, work

from simulator.sim import SimConfig, Simulator

MIB, GIB = 1 << 20, 1 << 30

pytestmark = [
    pytest.mark.native,
    pytest.mark.skipif(os.geteuid() != 0, reason="makes device nodes"),
    pytest.mark.timeout(180),
]


# ---- the audit -----------------------------------------------------------------------------------


def test_contexts_are_charged_once_and_given_back(start):
    chain = start()
    process = chain.qgpu(
        "run", "--mem", "4G", "--", *work(chain, "--length", "300", "--memory", "512M")
    )
    try:
        until(lambda: any(tenant.mem_used >= 812 * MIB for tenant in chain.tenants()))
        (tenant,) = chain.tenants()
        assert tenant.mem_used < 900 * MIB, "a simulated context takes 300 MiB"
        assert tenant.mem_extra < MIB, "and NVML finds no more than its module beside it"
    finally:
        end(process)


def test_resident_managed_memory_is_charged_from_nvml(start):
    """`enforcer.managed: resident`; all of it is on the simulated card."""
    chain = start()
    chain.qgpud.terminate()
    chain.qgpud.wait()
    text = chain.config.read_text()
    chain.config.write_text(text.replace("200ms}", "200ms, managed: resident}"))
    chain.start_qgpud()
    until(lambda: chain.log().count("event=serving") == 2)
    process = chain.qgpu(
        *("run", "--mem", "1G", "--", str(BUILD / "test/shim-mem_managed"), "resident"),
        env=chain.env(QGPU_TEST_NVML=str(BUILD / "sim/libnvidia-ml.so.1")),
        stdin=subprocess.PIPE,
    )
    try:
        for step in ("begin", "managed", "beside"):
            assert process.stdout.readline().split()[0] == step
            if step != "beside":
                process.stdin.write("\n")
                process.stdin.flush()
        context, managed, plain = 300 * MIB, 300 * MIB, 64 * MIB

        def counted() -> bool:
            (tenant,) = chain.tenants()
            known = tenant.mem_used + tenant.mem_extra == context + managed + plain
            return known and tenant.mem_extra >= managed

        until(counted)
    finally:
        end(process)


@pytest.mark.parametrize(("action", "dies"), [("log", False), ("kill", True)])
def test_program_that_drops_the_shim_is_found_and_dealt_with(start, action, dies):
    chain = start()
    chain.qgpud.terminate()
    chain.qgpud.wait()
    text = chain.config.read_text().replace(
        "{ledger_interval: 200ms}",
        f"{{ledger_interval: 200ms, nvml_interval: 100ms, audit: {{action: {action}}}}}",
    )
    chain.config.write_text(text)
    chain.start_qgpud()
    until(lambda: chain.log().count("event=serving") == 2)
    load = " ".join(work(chain, "--length", "600", "--kernel-us", "200"))
    process = chain.qgpu(
        "run",
        "--mem",
        "1G",
        "--card",
        "0",
        "--",
        "sh",
        "-c",
        f"env -u LD_PRELOAD -u QGPU_GRANT_FD -u QGPU_GRANT {load}; echo $?",
    )
    other = chain.qgpu(
        "run",
        "--card",
        "0",
        "--mem",
        "1G",
        "--",
        *work(chain, "--length", "600", "--kernel-us", "200"),
    )
    try:
        until(lambda: "event=audit-unregistered" in chain.log())
        (line,) = [line for line in chain.log().splitlines() if "audit-unregistered" in line]
        assert ("action=kill signalled=" in line) is dies
        if dies:
            assert process.communicate(timeout=30)[0].strip() == "137"
        until(lambda: any(tenant.launches for tenant in chain.tenants()))
        report(other)  # the neighbour is not touched
        assert chain.log().count("event=audit-unregistered") == 1, "said once, not each look"
        if not dies:
            assert process.poll() is None
    finally:
        subprocess.run(["pkill", "-9", "-P", str(process.pid)], check=False)  # its own child alone
        end(process)
        end(other)


def test_driver_that_hangs_stalls_neither_prologs_nor_programs(start):
    chain = start()
    assert chain.hook("prolog", 7, "qgpu/1 class=offline share=10 mem=1024") == 0
    fault = Simulator(SimConfig(chain.directory / "sim", "n1"), BUILD, chain.qgpud).control
    fault("block call=nvml*")
    until(lambda: "event=nvml-failed" in chain.log())
    began = time.monotonic()
    for job in range(8, 13):
        assert chain.hook("prolog", job, "qgpu/1 class=offline share=10 mem=1024") == 0
    assert time.monotonic() - began < 40, (
        "five prologs with a deadline of 10 s each, none waited for the driver"
    )
    assert chain.said("run", "--mem", "1G", "--card", "1", "--", "true")[0] == 0
    assert chain.hook("epilog", 7) == 0
    assert (
        chain.log().count("event=nvml-stuck") == 1 and chain.log().count("event=nvml-failed") == 1
    )
    fault("clear")
    until(lambda: chain.said("card", "list")[0] == 0)
    process = subprocess.Popen(
        work(chain, "--length", "600"), env=chain.env(), stdout=subprocess.DEVNULL
    )
    try:
        until(lambda: "event=audit-stranger" in chain.log())
    finally:
        end(process)


# ---- doctor --------------------------------------------------------------------------------------


def with_nvml(chain):
    """The chain has no NVML of its own for jobs, which a fit node has."""
    shutil.copy(BUILD / "shim/libnvidia-ml.so.1", chain.opt / "shim")
    return chain


def test_doctor_sees_a_fit_node_and_what_breaks(start):
    chain = with_nvml(start())
    chain.qgpu("card", "list").communicate()
    code, out, err = chain.said("doctor", "--json", env=chain.env(SLURM_CONF="/nonexistent"))
    found = {check["name"]: check for check in json.loads(out)}
    bad = {name: check for name, check in found.items() if check["status"] == "fail"}
    assert code == 0 and bad == {}, (bad, err)
    assert (
        found["nvml"]["text"].startswith("driver ")
        and found["cards"]["text"] == "2 as in qgpu.yaml"
    )
    assert found["memory caps"]["text"].startswith("cooperative: ")
    assert found["arbiter"]["text"].startswith("reached")
    chain.arbiter.terminate()
    until(lambda: "event=arbiter-lost" in chain.log())
    code, out, _ = chain.said("doctor")
    assert code == 1 and re.search(r"FAIL  arbiter .* -> systemctl start qgpu-arbiter", out)
    chain.qgpud.terminate()
    chain.qgpud.wait()
    (chain.opt / "shim/libcuda.so.1").write_bytes(b"no library")
    code, out, _ = chain.said("doctor")
    assert code == 1 and re.search(r"FAIL  qgpud .* start it with systemctl start qgpud", out)
    assert re.search(r"FAIL  shim .* it does not load", out) and re.search(
        r"FAIL  memory caps\s+none", out
    )


def test_doctor_needs_no_root(start):
    chain = with_nvml(start())
    code, out, err = as_nobody(chain, "doctor", "--json", SLURM_CONF="/none")
    assert code == 0, (out, err)
    found = {check["name"]: check["status"] for check in json.loads(out)}
    assert code == 0 and found["qgpud"] == "ok" and found["shim"] in ("ok", "warn"), (out, err)
