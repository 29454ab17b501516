"""The daemons of one simulated node beside slurmd: the simulated cards, the arbiter and qgpud."""

from __future__ import annotations

import socket
import sys

from cli.sandbox import wait
from cli.sandbox.services import Cluster, start_slurmd

# In the order in which a node is started.
SERVICES = ("simgpu", "arbiter", "qgpud", "slurmd")


def start(cluster: Cluster, node: str, service: str) -> None:
    """Start one service of a node and wait until it is ready (slurmd: until it is started)."""
    {"simgpu": _simgpu, "arbiter": _arbiter, "qgpud": _qgpud, "slurmd": start_slurmd}[service](
        cluster, node
    )


def environment(cluster: Cluster, node: str) -> dict[str, str]:
    """What "the driver is installed on this node" means for a process of this node."""
    paths = cluster.layout.node(node)
    return {
        "QGPU_SIM_DIR": str(paths.sim_dir),
        "LD_LIBRARY_PATH": f"{cluster.layout.opt}/sim",
        "QGPU_CONFIG": str(cluster.layout.qgpu_yaml),
        "SLURM_CONF": str(cluster.layout.slurm_conf),
    }


def _simgpu(cluster: Cluster, node: str) -> None:
    plan, paths = cluster.plan, cluster.layout.node(node)

    def argv(fd: int) -> list[str]:
        words = [
            f"{cluster.layout.opt}/bin/qgpu-simgpu",
            "--dir",
            str(paths.sim_dir),
            "--node",
            node,
        ]
        words += [
            "--cards",
            str(plan.cards),
            "--model",
            plan.product_name,
            "--memory",
            str(plan.memory_mib),
        ]
        words += ["--driver-generation", plan.driver]
        words += ["--mig", str(plan.mig)] if plan.mig else []
        words += ["--nvlinks", plan.nvlinks] if plan.nvlinks else []
        return [
            *words,
            "--major",
            "245",
            "--minor-base",
            str(plan.minor_base(node)),
            "--ready-fd",
            str(fd),
        ]

    cluster.daemons.start_ready(f"{node}.simgpu", argv, paths.log("simgpu"), {})


def _arbiter(cluster: Cluster, node: str) -> None:
    paths = cluster.layout.node(node)

    def argv(fd: int) -> list[str]:
        words = [f"{cluster.layout.opt}/bin/qgpu-arbiter", "--run-dir", str(paths.run_dir)]
        return [*words, "--trace", str(paths.gates), "--ready-fd", str(fd)]

    cluster.daemons.start_ready(f"{node}.arbiter", argv, paths.log("arbiter"), {})


def _qgpud(cluster: Cluster, node: str) -> None:
    paths, name = cluster.layout.node(node), f"{node}.qgpud"
    log = paths.log("qgpud")
    hook = paths.run_dir / "hook.sock"
    hook.unlink(missing_ok=True)  # of a qgpud that was killed: what appears now is the new one's
    argv = [
        sys.executable,
        "-m",
        "enforcer.daemon.main",
        "--config",
        str(cluster.layout.qgpu_yaml),
        "--node",
        node,
    ]
    if cluster.plan.injection == "auto":  # as the unit does before it starts qgpud
        cluster.daemons.run([*argv, "--probe-injection"], log, environment(cluster, node))
    cluster.daemons.start(name, argv, log, environment(cluster, node))
    wait.until(
        lambda: wait.unix_accepts(hook, socket.SOCK_SEQPACKET),
        20,
        f"an answer of qgpud of {node} (read {log})",
        lambda: cluster.daemons.check(name, log),
    )
