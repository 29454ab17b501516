"""`qgpu setup` on a site of its own under a real Slurm: slurmctld and slurmd read the fragments
that it wrote, from files and configless, a share runs, and limits change while slurmctld runs.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from jobs_support import Live, alone

from cli.sandbox import files, processes, wait
from cli.sandbox.cluster import Sandbox
from cli.sandbox.options import SandboxOptions

QGPU = Path(files.ROOT, ".venv/bin/qgpu")
OURS = (
    "slurm-qgpu.conf",
    "gres.conf",
    "plugstack.conf",
    "job_submit.lua",
    "cli_filter.lua",
    "prolog",
    "epilog",
    "qgpu_tables.lua",
)


@pytest.fixture(scope="module")
def site() -> Iterator[Live]:
    """A sandbox of two nodes, whose Slurm has been stripped of everything of qgpu's."""
    cluster = Sandbox(SandboxOptions(f"t{os.getpid()}s", nodes=2, cards=1), progress=print)
    cluster.up()
    etc = cluster.layout.etc
    for name in OURS:
        (etc / name).unlink()
    lines = [
        re.sub(r" Gres=\S+", "", line)
        for line in cluster.layout.slurm_conf.read_text().splitlines()
        if not line.startswith(("Include ", "PlugStackConfig=", "TaskPlugin=", "SlurmdParameters="))
    ]
    cluster.layout.slurm_conf.write_text(
        "\n".join([*lines, "SlurmdParameters=config_overrides", "GresTypes=gpu", ""])
    )
    if cluster.plan.slurm >= "24.05":  # several are allowed: the site has one of its own
        (etc / "own-prolog").write_text(f"#!/bin/sh\necho $SLURM_JOB_ID >>{etc}/own-prolog.ran\n")
        (etc / "own-prolog").chmod(0o755)
        with cluster.layout.slurm_conf.open("a") as file:
            file.write(f"Prolog={etc}/own-prolog\n")
    cgroup = (etc / "cgroup.conf").read_text()
    (etc / "cgroup.conf").write_text(cgroup.replace("ConstrainDevices=yes\n", ""))
    yield Live(cluster)
    cluster.down()


@pytest.fixture
def live(site: Live) -> Iterator[Live]:
    yield from alone(site)


def setup(live: Live) -> dict[str, Any]:
    """The command, as an admin of this site types it."""
    layout = live.sandbox.layout
    done = subprocess.run(
        [
            QGPU,
            "setup",
            "--role",
            "controller",
            "--role",
            "node",
            "--json",
            "--slurm-conf",
            layout.slurm_conf,
            "--config",
            layout.qgpu_yaml,
            "--lua-dir",
            layout.opt / "lua",
            "--node",
            live.nodes[0],
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def obey(answer: dict[str, Any]) -> None:
    rows = [row for row in answer["differences"] if row["severity"] == "fail"]
    for row in sorted(rows, key=lambda row: -row["line"]):
        path = Path(row["file"])
        lines = path.read_text().splitlines() if path.exists() else []
        if row["action"] == "add":
            lines.append(row["write"])
        else:
            assert row["action"] == "replace", row
            lines[row["line"] - 1] = row["write"]
        path.write_text("\n".join([*lines, ""]))


def restart(live: Live) -> None:
    """All daemons of Slurm, as setup says."""
    for node in live.nodes:
        live.sandbox.kill(node, "slurmd")
    live.sandbox.restart_controller()
    for node in live.nodes:
        live.sandbox.start(node, "slurmd")
    live.until(
        lambda: live.ask("sinfo", "-h", "-N", "-o", "%T").split() == ["idle"] * 2, 30, "idle nodes"
    )


def effective(live: Live) -> dict[str, str]:
    rows = re.findall(
        r"^([\w\[\]]+)\s*= (.*)$", live.ask("scontrol", "show", "config"), re.MULTILINE
    )
    return {key: value.strip() for key, value in rows}


def be_set_up(live: Live) -> None:
    """The site has done what setup says, also where a test runs alone."""
    first = setup(live)
    if not first["in_place"]:
        obey(first)
        restart(live)


def test_a_stock_site_runs_shares_after_what_setup_says(live: Live) -> None:
    first = setup(live)
    assert not first["in_place"] and {
        row["key"] for row in first["differences"] if row["severity"] == "fail"
    } == {
        "GresTypes",
        "include",
        "Gres",
    }
    obey(first)
    second = setup(live)
    assert second["in_place"], second["differences"]
    restart(live)
    told = effective(live)
    assert told["GresTypes"] == "gpu,shard,qgpu,vram" and told["JobSubmitPlugins"] == "lua"
    prologs = {value for key, value in told.items() if re.fullmatch(r"Prolog(\[\d+\])?", key)}
    own = live.sandbox.layout.etc / "own-prolog"
    assert prologs == {
        f"{live.sandbox.layout.etc}/qgpu/prolog",
        *([str(own)] if own.exists() else []),
    }
    assert "Contain" in told["PrologFlags"] and told["TaskPlugin"] == "task/cgroup"
    script = (
        "echo CARD=$CUDA_VISIBLE_DEVICES $LD_PRELOAD; grep -o 'libcuda[^ ]*' /proc/self/mountinfo"
    )
    job = live.submit(script, "--qos=online", "--gres=qgpu:30")
    text = live.finish(job)[0]
    assert "CARD=0" in text and "libcuda.so.1" in text
    assert not own.exists() or own.with_name("own-prolog.ran").read_text().split() == [str(job)]
    log = live.sandbox.layout.log("slurmctld").read_text()
    assert "more than once" not in log and "Parse error" not in log


def test_limits_change_without_a_restart(live: Live) -> None:
    be_set_up(live)
    yaml = live.sandbox.layout.qgpu_yaml
    old = yaml.read_text()
    assert "max_share: 100" in old
    try:
        yaml.write_text(old.replace("max_share: 100", "max_share: 20"))
        assert [
            row["path"].rpartition("/")[2]
            for row in setup(live)["files"]
            if row["what"] == "updated"
        ] == ["qgpu_tables.lua"]
        done = live.run("sbatch", "--qos=online", "--gres=qgpu:30", "--wrap=true", user="alice")
        assert done.returncode != 0 and "20" in done.stderr
    finally:
        yaml.write_text(old)
        setup(live)
    job = live.submit("true", "--qos=online", "--gres=qgpu:30")
    live.finish(job)


def fetched(cache: Path, ours: Path) -> bool:
    """Whether slurmd has all fragments from slurmctld; it writes one after the other."""
    pairs = [(cache / f"qgpu_{n}.conf", ours / f"{n}.conf") for n in ("slurm", "gres", "cgroup")]
    return all(got.exists() and got.read_text() == own.read_text() for got, own in pairs)


def test_configless_nodes_get_the_fragments_from_slurmctld(live: Live) -> None:
    be_set_up(live)
    layout, node = live.sandbox.layout, live.nodes[0]
    with layout.slurm_conf.open("a") as file:
        file.write("SlurmctldParameters=enable_configless\n")
    told = setup(live)
    wrong = [row for row in told["differences"] if row["severity"] == "fail"]
    assert {row["write"] for row in wrong} == {
        f"include qgpu_{n}.conf" for n in ("slurm", "gres", "cgroup")
    }
    obey(told)
    assert setup(live)["in_place"]
    stack = layout.etc / "plugstack.conf"
    assert f"include {layout.etc}/qgpu/plugstack.conf" in stack.read_text()
    restart(live)
    live.sandbox.kill(node, "slurmd")
    log = live.paths(node).log("configless")
    inner = (
        "mount -t tmpfs none /run; mkdir -p /run/slurm /run/munge;"
        f" ln -s {layout.munge_socket} /run/munge/munge.socket.2;"
        f" unset SLURM_CONF; exec slurmd -D -N {node} --conf-server "
        f"127.0.0.1:{live.sandbox.plan.port_ctld}"
    )
    argv = live.sandbox.argv(["unshare", "-m", "sh", "-c", inner])
    env = {**live.sandbox.env(), processes.MARK: str(layout.state)}
    with log.open("wb") as out, subprocess.Popen(argv, env=env, stdout=out, stderr=out) as slurmd:
        try:
            cache = layout.state / "spool" / node / "conf-cache"
            same = partial(fetched, cache, layout.etc / "qgpu")
            wait.until(lambda: same() or slurmd.poll() is not None, 60, "its files, as ours")
            assert slurmd.poll() is None, log.read_text()
            live.until(
                lambda: node in live.ask("sinfo", "-h", "-N", "-t", "idle", "-o", "%N"),
                30,
                "the node",
            )
            job = live.submit(
                "echo CARD=$CUDA_VISIBLE_DEVICES", "--qos=online", "--gres=qgpu:30", "-w", node
            )
            assert "CARD=0" in live.finish(job)[0]
        finally:
            slurmd.terminate()
    live.sandbox.start(node, "slurmd")
