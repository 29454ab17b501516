"""The sandbox's associations: one account, alice and bob in it, and the
QOS that name the classes.
"""

from __future__ import annotations

from cli.sandbox import namespace
from cli.sandbox.errors import SandboxError
from cli.sandbox.services import Cluster, run

ACCOUNT = "research"
QOS = {"online": 1000, "offline": 10}


def commands(cluster_name: str) -> list[list[str]]:
    """The sacctmgr commands, in order. The users' default QOS stays Slurm's `normal`."""
    qos = "qos=normal,online,offline"
    made = [["add", "cluster", cluster_name]]
    made += [["add", "qos", name, f"priority={priority}"] for name, priority in QOS.items()]
    made.append(["modify", "cluster", cluster_name, "set", qos])
    made.append(
        [
            "add",
            "account",
            ACCOUNT,
            f"cluster={cluster_name}",
            "description=sandbox",
            "organization=sandbox",
        ]
    )
    made.append(
        ["add", "user", ",".join(namespace.USERS), f"account={ACCOUNT}", f"cluster={cluster_name}"]
    )
    return made


def set_up(cluster: Cluster) -> None:
    """Enter all of it into slurmdbd; SandboxError with sacctmgr's words if it refuses."""
    for words in commands(cluster.plan.cluster):
        done = run(cluster, ["sacctmgr", "-i", *words])
        if done.returncode != 0:
            raise SandboxError(
                f"sacctmgr {' '.join(words)} failed: {(done.stderr or done.stdout).strip()}; "
                f"read {cluster.layout.log('slurmdbd')}"
            )
