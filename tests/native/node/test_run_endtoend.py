"""Real qgpud, arbiter, shim and simulated cards: qgpu run and qgpu card in one chain."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from pathlib import Path

import pytest
from node_support import as_nobody, end, grants, report, until, work

from enforcer.wire import abi

MIB, GIB = 1 << 20, 1 << 30

pytestmark = [
    pytest.mark.native,
    pytest.mark.skipif(os.geteuid() != 0, reason="makes device nodes"),
    pytest.mark.timeout(180),
]

# ---- qgpu run ------------------------------------------------------------------------------------


def test_cap_and_account_of_a_program_without_slurm(start):
    chain = start()
    code, out, err = chain.said(
        "run",
        "--share",
        "30",
        "--class",
        "offline",
        "--mem",
        "1G",
        "--card",
        "1",
        "--",
        *work(chain, "--length", "1", "--kernel-us", "200", "--alloc-past", "4GiB"),
    )
    assert code == 0, err
    done = json.loads(out)
    assert done["alloc"]["refused"] and done["alloc"]["bytes"] <= GIB
    until(lambda: grants(chain) == set() and "event=end job=" in chain.log())
    job = int(re.search(r"event=end job=([0-9]+) reason=exit", chain.log())[1])
    row = chain.usage(job)
    assert row.end_reason == "exit" and row.card_index == 1 and row.uid == 0 and row.denied == 1
    assert row.launches >= done["kernels"] and 0 < row.busy_ns <= row.wall_ns(0)


@pytest.mark.parametrize("lacks", [(), ("cuLogicalEndpointCreate", "cuFabricCpyBatchAsync")])
def test_program_gets_what_spank_would_set_and_exactly_one_descriptor(start, lacks):
    """The shim itself where the driver has every function, else a copy that exports what it has."""
    chain = start(lacks=lacks)
    code, out, _ = chain.said("run", "--share", "30", "--", "sh", "-c", "env; ls -l /proc/$$/fd")
    assert code == 0
    env = dict(line.split("=", 1) for line in out.splitlines() if re.match(r"[A-Z_]+=", line))
    fitted = f"{chain.opt.parent}/state/shim/shim-[0-9a-f]{{16}}" if lacks else f"{chain.opt}/shim"
    assert re.fullmatch(f"{fitted}/libcuda[.]so[.]1", env["LD_PRELOAD"])
    assert env["CUDA_VISIBLE_DEVICES"].startswith("GPU-") and env["QGPU_GRANT"].endswith(".grant")
    assert len(re.findall(r"memfd:qgpu-grant", out)) == 1 and f" {env['QGPU_GRANT_FD']} -> " in out


LAUNCHER = """
import os, subprocess, sys
if sys.argv[1] == "self":
    os.closerange(3, 4096)
    os.execv(sys.argv[2], sys.argv[2:])
sys.exit(subprocess.run(sys.argv[2:]).returncode)  # which closes every descriptor
"""


@pytest.mark.parametrize("who", ["self", "child"])
def test_program_whose_launcher_closes_every_descriptor_has_its_memory(start, who):
    """torchrun, multiprocessing and the like start their workers by subprocess."""
    chain = start()
    load = work(chain, "--length", "0.5", "--kernel-us", "200", "--alloc-past", "4GiB")
    code, out, err = chain.said(
        "run", "--mem", "1G", "--", sys.executable, "-c", LAUNCHER, who, *load
    )
    assert code == 0, err
    assert json.loads(out)["alloc"] == {
        "bytes": GIB - 320 * MIB,  # in steps of 64, beside the context's 300
        "refused": True,
        "error": "CUDA_ERROR_OUT_OF_MEMORY",
    }


@pytest.mark.parametrize(
    ("script", "code"), [("exit 0", 0), ("exit 7", 7), ("kill -TERM $$", -signal.SIGTERM)]
)
def test_exit_status_is_the_programs(start, script, code):
    chain = start()
    assert chain.said("run", "--", "sh", "-c", script)[0] == code
    until(lambda: grants(chain) == set())


def test_program_that_is_not_there_is_127_and_leaves_no_grant(start):
    chain = start()
    code, _, err = chain.said("run", "--", "no-such-program")
    assert (code, err) == (127, "qgpu run: no-such-program: there is no such program\n")
    until(lambda: grants(chain) == set())


def test_signals_reach_the_program_itself_and_kill_9_ends_the_grant(start):
    chain = start()
    process = chain.qgpu(
        "run",
        "--",
        "sh",
        "-c",
        "trap 'echo got; exit 3' USR1; echo up; while :; do sleep 0.05; done",
    )
    try:
        assert process.stdout.readline() == "up\n"
        process.send_signal(signal.SIGUSR1)
        assert process.communicate(timeout=30)[0] == "got\n" and process.returncode == 3
        second = chain.qgpu("run", "--", "sleep", "60")
        try:
            until(lambda: any(name.endswith(".grant") for name in grants(chain)))
            second.kill()
            until(lambda: grants(chain) == set() and chain.tenants() == [])
        finally:
            end(second)
    finally:
        end(process)


def test_two_programs_share_a_card_and_the_third_does_not_fit(start):
    chain = start()
    load = work(chain, "--length", "600", "--kernel-us", "200")
    first = chain.qgpu(
        "run", "--card", "0", "--share", "30", "--mem", "40G", "--class", "online", "--", *load
    )
    try:
        until(lambda: any(tenant.launches for tenant in chain.tenants()))
    except BaseException:
        end(first)
        raise
    second = chain.qgpu("run", "--card", "0", "--share", "30", "--mem", "30G", "--", *load)
    try:
        until(lambda: sum(tenant.procs for tenant in chain.tenants()) == 2)
        code, _, err = chain.said("run", "--card", "0", "--mem", "10G", "--", "true")
        assert code == 125 and "write --mem 8G or less" in err
        until(lambda: any(tenant.gate & abi.GATE_WHY_PREEMPTED for tenant in chain.tenants()))
        online, offline = (report(process) for process in (first, second))
        assert online["uuid"] == offline["uuid"]
        assert offline["end_ns"] > online["end_ns"], "it had to wait"
    finally:
        end(first)
        end(second)


def test_restart_of_qgpud_keeps_the_program_and_its_end_is_noticed(start):
    chain = start()
    process = chain.qgpu("run", "--", *work(chain, "--length", "600", "--kernel-us", "200"))
    try:
        until(lambda: any(tenant.procs for tenant in chain.tenants()))
        chain.qgpud.kill()
        chain.qgpud.wait()
        chain.start_qgpud()
        until(lambda: chain.log().count("event=serving") == 2)
        assert len(chain.tenants()) == 1
        process.terminate()
        assert process.wait(60) == 0
        until(lambda: grants(chain) == set())
    finally:
        end(process)


def test_program_that_ended_while_qgpud_was_away_loses_its_grant(start):
    chain = start()
    process = chain.qgpu("run", "--", "sleep", "60")
    try:
        until(lambda: any(name.endswith(".grant") for name in grants(chain)))
        chain.qgpud.kill()
        chain.qgpud.wait()
        end(process)
        chain.start_qgpud()
        until(lambda: grants(chain) == set())
    finally:
        end(process)


def test_user_is_served_only_if_the_configuration_says_so(start):
    chain = start("run: {allow_users: [nobody]}\n")
    code, out, err = as_nobody(chain, "run", "--mem", "1G", "--", "sh", "-c", "id -u")
    assert (code, out) == (0, "65534\n"), err
    script = work(chain, "--length", "0.5", "--alloc-past", "2GiB")
    code, out, err = as_nobody(chain, "run", "--mem", "1G", "--", *script)
    assert code == 0, err
    assert json.loads(out)["alloc"]["bytes"] <= GIB, (
        "the arbiter and the shim believe the user's copy"
    )
    chain.qgpud.terminate()
    chain.qgpud.wait()
    chain.config.write_text(chain.config.read_text().replace("[nobody]", "[]"))
    chain.start_qgpud()
    until(lambda: chain.log().count("event=serving") == 2)
    code, _, err = as_nobody(chain, "run", "--", "true")
    assert code == 125 and "may not run programs without Slurm" in err


def test_private_daemons_start_serve_and_leave_nothing(start):
    chain = start()
    chain.qgpud.terminate()
    chain.arbiter.terminate()
    before = set(Path("/run").glob("qgpu-run-*"))
    load = work(chain, "--length", "0.5", "--alloc-past", "4GiB")
    config = ["--config", str(chain.config)]
    code, out, err = chain.said("run", "--start", *config, "--mem", "1G", "--", *load)
    assert code == 0, err
    assert json.loads(out)["alloc"]["bytes"] <= GIB
    assert (
        chain.said("run", "--start", *config, "--", "sh", "-c", "kill -TERM $$")[0]
        == -signal.SIGTERM
    )
    code, _, err = chain.said("run", "--start", *config, "--mem", "900G", "--", "true")
    assert code == 125 and "do not fit" in err
    until(
        lambda: set(Path("/run").glob("qgpu-run-*")) <= before
    )  # other tests make and remove some meanwhile


def test_private_daemons_forward_signals_and_die_with_the_command(start):
    chain = start()
    script = "trap 'echo got; exit 3' TERM; echo up; while :; do sleep 0.05; done"
    process = chain.qgpu("run", "--start", "--config", str(chain.config), "--", "sh", "-c", script)
    try:
        assert process.stdout.readline() == "up\n"
        process.terminate()
        assert process.communicate(timeout=30)[0] == "got\n" and process.returncode == 3
    finally:
        end(process)


# ---- qgpu card -----------------------------------------------------------------------------------


def test_setting_a_card_changes_running_programs_at_once(start):
    chain = start()
    process = chain.qgpu(
        "run",
        "--card",
        "0",
        "--share",
        "20",
        "--",
        *work(chain, "--length", "300", "--kernel-us", "200"),
    )
    try:
        until(lambda: any(tenant.busy for tenant in chain.tenants()))
        (tenant,) = chain.tenants()
        assert tenant.policy == "burst-share"
        code, out, err = chain.said("card", "set", "0", "policy.offline=fixed-share", "slice=1ms")
        assert code == 0, err
        assert "card 0: slice was 2ms, is 1ms\n" in out
        assert "card 0: policy.offline was burst-share, is fixed-share\n" in out
        (tenant,) = chain.tenants()
        assert tenant.policy == "fixed-share"
        code, out, _ = chain.said("card", "set", "0", "isolation.offline=none")
        assert "isolation holds for jobs that start from now on" in out
        later = chain.qgpu(
            "run", "--card", "0", "--mem", "1G", "--", *work(chain, "--length", "300")
        )
        try:
            until(lambda: sum(t.procs for t in chain.tenants()) == 2)
            assert {t.job_id == tenant.job_id: t.ungoverned for t in chain.tenants()} == {
                True: False,
                False: True,
            }
        finally:
            end(later)
        until(lambda: len(chain.tenants()) == 1)
        code, out, _ = chain.said("card", "show", "0")
        assert re.search(r"isolation.offline\s+none\s+qgpu card set, until qgpud restarts", out)
        assert re.search(r"window\s+275us\s+enforcer.window", out)
        assert "(changed)" in chain.said("card", "list")[1]
        code, out, _ = chain.said("card", "reset", "0")
        assert "isolation.offline was none, is governed" in out
        until(lambda: chain.tenants()[0].policy == "burst-share")
    finally:
        end(process)


def test_bad_words_of_qgpu_card_are_sentences(start):
    chain = start()
    for words, sentence in [
        (["set", "0", "slice=1us"], "slice=1us is refused: 1us is outside 100us to 1s"),
        (["set", "9", "slice=1ms"], "'9' is no card of n1; it has 0 (GPU-"),
        (["show", "9"], "'9' is no card of this node"),
        (["set", "0"], "nothing to change"),
    ]:
        code, _, err = chain.said("card", *words)
        assert code == 1 and sentence in err and "Traceback" not in err
    code, _, err = as_nobody(chain, "card", "set", "0", "slice=1ms")
    assert code == 1 and "only root may change a card; uid 65534 asked" in err


def test_card_without_isolation_has_neither_cap_nor_gate_and_is_accounted(start):
    chain = start("cards: [{nodes: n1, cards: [1], isolation: none}]\n")
    load = work(chain, "--length", "600", "--kernel-us", "200")
    online = chain.qgpu("run", "--card", "1", "--class", "online", "--mem", "1G", "--", *load)
    offline = chain.qgpu("run", "--card", "1", "--mem", "1G", "--", *load, "--alloc-past", "4GiB")
    try:
        # more than it needs to fill its memory before it begins
        until(lambda: [tenant.launches > 500 for tenant in chain.tenants()] == [True, True])
        assert all(tenant.ungoverned and tenant.mem_cap > 79 * GIB for tenant in chain.tenants())
        jobs = {tenant.job_class: tenant.job_id for tenant in chain.tenants()}
        first, second = (report(process) for process in (online, offline))
        assert second["alloc"]["refused"] is False, "no cap"
        assert second["start_ns"] < first["end_ns"], "no gate: it works beside the online one"
        until(lambda: grants(chain) == set())
        rows = [chain.usage(job) for job in jobs.values()]
        assert all(row.busy_ns > 0 and row.launches > 0 and row.mem_cap > 79 * GIB for row in rows)
    finally:
        end(online)
        end(offline)
