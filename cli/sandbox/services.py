"""The daemons of the cluster itself: munged, MariaDB, slurmdbd, slurmctld and the slurmds."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from cli.sandbox import namespace, wait
from cli.sandbox.daemons import Daemons
from cli.sandbox.errors import SandboxError
from cli.sandbox.layout import Layout
from cli.sandbox.plan import DATABASE, Plan

PROGRAMS = {
    "munged": "munge",
    "mariadbd": "mariadb-server",
    "mariadb-install-db": "mariadb-server",
    "slurmdbd": "slurmdbd",
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "sacctmgr": "slurm-client",
    "unshare": "util-linux",
    "nsenter": "util-linux",
    "setpriv": "util-linux",
}
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

# Small and fast: what is in the database is thrown away with the sandbox, so nothing waits for the
# disk. The system tables are needed (slurmdbd uses stored procedures), but no database accounts:
# the socket lies in a directory that only root and mysql may enter.
_DATABASE = (
    "--no-defaults",
    "--skip-networking",
    "--skip-grant-tables",
    "--skip-log-bin",
    "--performance-schema=0",
    "--skip-name-resolve",
    "--innodb-buffer-pool-size=32M",
    "--innodb-log-file-size=8M",
    # to the kernel, not to the disk: a killed MariaDB loses nothing
    "--innodb-flush-log-at-trx-commit=2",
    "--innodb-flush-method=nosync",
    "--innodb-doublewrite=0",
    "--innodb-fast-shutdown=2",
    "--innodb-lock-wait-timeout=900",
    "--key-buffer-size=1M",
    "--aria-pagecache-buffer-size=1M",
    "--max-connections=32",
    "--plugin-maturity=unknown",
)


@dataclass(frozen=True)
class Cluster:
    """What each of the functions below needs."""

    plan: Plan
    layout: Layout
    daemons: Daemons


def check_programs() -> None:
    """SandboxError naming the Debian packages that are missing."""
    missing = sorted(
        {package for name, package in PROGRAMS.items() if shutil.which(name, path=PATH) is None}
    )
    if missing:
        raise SandboxError(
            f"these Debian packages are missing: {' '.join(missing)}; run: make setup"
        )


def slurm_version() -> str:
    """ "22.05.8" of the installed slurmctld."""
    out = subprocess.run(
        ["slurmctld", "-V"], capture_output=True, text=True, env={"PATH": PATH}, check=True
    ).stdout
    return out.split()[1]


def start_munge(cluster: Cluster) -> None:
    """Own key, own socket; waits until it answers."""
    layout = cluster.layout
    layout.munge_socket.parent.mkdir(mode=0o755)
    private = layout.state / "munge" / "private"
    private.mkdir(mode=0o700)
    log = layout.log("munged")
    argv = [
        "munged",
        "--foreground",
        "--force",  # the state directory may lie below a world-writable one such as /tmp
        f"--key-file={layout.etc}/munge.key",
        f"--socket={layout.munge_socket}",
        f"--pid-file={private}/munged.pid",
        f"--seed-file={private}/munged.seed",
        f"--log-file={private}/munged.log",
        "--num-threads=4",
    ]
    cluster.daemons.start("munged", argv, log)
    wait.until(
        lambda: wait.unix_accepts(layout.munge_socket),
        10,
        f"an answer of munged (read {log})",
        lambda: cluster.daemons.check("munged", log),
    )


def prepare_database(cluster: Cluster) -> None:
    """Make the data directory with MariaDB's system tables."""
    layout = cluster.layout
    folder = layout.state / "db"
    folder.mkdir(mode=0o700)
    owner = pwd.getpwnam("mysql")
    os.chown(folder, owner.pw_uid, owner.pw_gid)
    log = layout.log("mariadb-install-db")
    argv = [
        "mariadb-install-db",
        "--no-defaults",
        "--user=mysql",
        f"--datadir={folder}/data",
        # a server deletes the temporary tables that it finds in its folder when it starts, those
        # of other servers too
        f"--tmpdir={folder}",
        "--skip-test-db",
        "--auth-root-authentication-method=normal",
        "--innodb-log-file-size=8M",
        "--innodb-flush-method=nosync",
    ]
    with log.open("ab") as out:
        done = subprocess.run(
            namespace.enter(cluster.daemons.anyone()) + argv,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            env=dict(cluster.daemons.env),
            start_new_session=True,
        )
    if done.returncode != 0:
        raise SandboxError(f"mariadb-install-db failed; read {log}\n{wait.tail(log)}")
    # slurmdbd makes a database that is not there after a first connection without success, and goes
    # on with the same handle; libmariadb 3.4.10 (MariaDB 11.8.9) forgets its limits then and
    # refuses every result (error 5027).
    (folder / "init.sql").write_text(f"CREATE DATABASE IF NOT EXISTS {DATABASE};\n")


def start_database(cluster: Cluster) -> None:
    """MariaDB on a unix socket only; waits until it accepts connections."""
    layout, folder = cluster.layout, cluster.layout.state / "db"
    log = layout.log("mariadbd")
    argv = [
        "mariadbd",
        *_DATABASE,
        "--user=mysql",
        f"--datadir={folder}/data",
        f"--socket={layout.db_socket}",
        f"--pid-file={folder}/mariadbd.pid",
        f"--tmpdir={folder}",
        f"--init-file={folder}/init.sql",
    ]
    cluster.daemons.start("mariadbd", argv, log)
    wait.until(
        lambda: wait.unix_accepts(layout.db_socket),
        30,
        f"an answer of MariaDB (read {log})",
        lambda: cluster.daemons.check("mariadbd", log),
    )


def start_slurmdbd(cluster: Cluster) -> None:
    """slurmdbd, which makes its tables at first; waits until its port accepts connections."""
    log = cluster.layout.log("slurmdbd")
    env = {
        "SLURM_CONF": str(cluster.layout.slurm_conf),
        # How a MySQL client library finds another server's socket without a configuration file.
        "MYSQL_UNIX_PORT": str(cluster.layout.db_socket),
    }
    cluster.daemons.start("slurmdbd", ["slurmdbd", "-D"], log, env)
    wait.until(
        lambda: wait.tcp_accepts(cluster.plan.port_dbd),
        60,
        f"an answer of slurmdbd (read {log})",
        lambda: cluster.daemons.check("slurmdbd", log),
    )


def start_slurmctld(cluster: Cluster) -> None:
    """The controller; waits until its port accepts connections."""
    log = cluster.layout.log("slurmctld")
    argv = ["slurmctld", "-D", "-f", str(cluster.layout.slurm_conf)]
    saved = cluster.layout.state / "spool/slurmctld"
    # Written at the end and every few minutes only; one that was killed before leaves a state that
    # 26.05 refuses.
    if (saved / "clustername").exists() and not (saved / "assoc_usage").exists():
        argv.append("-i")
    cluster.daemons.start("slurmctld", argv, cluster.layout.log("slurmctld.out"))
    wait.until(
        lambda: wait.tcp_accepts(cluster.plan.port_ctld),
        30,
        f"an answer of slurmctld (read {log})",
        lambda: cluster.daemons.check("slurmctld", log),
    )


def start_slurmd(cluster: Cluster, node: str) -> None:
    """slurmd of one node. Its environment says where the cards are: to slurmstepd, not to jobs."""
    wrapped = cluster.layout.slurmd
    program = str(wrapped) if wrapped.exists() else "slurmd"
    argv = [program, "-D", "-N", node, "-f", str(cluster.layout.slurm_conf)]
    paths = cluster.layout.node(node)
    cards = {"QGPU_SIM_DIR": str(paths.sim_dir)}
    cluster.daemons.start(f"{node}.slurmd", argv, Path(f"{paths.log('slurmd')}.out"), cards)


def await_nodes(cluster: Cluster, seconds: float = 30) -> None:
    """Wait until all nodes are idle in slurmctld's eyes."""
    plan, layout = cluster.plan, cluster.layout

    def idle() -> bool:
        out = run(cluster, ["sinfo", "-h", "-N", "-o", "%N %T"]).stdout.split("\n")
        return {f"{n} idle" for n in plan.nodes} <= set(out)

    def watch() -> None:
        for node in plan.nodes:
            cluster.daemons.check(f"{node}.slurmd", layout.node(node).log("slurmd"))
        cluster.daemons.check("slurmctld", layout.log("slurmctld"))

    logs = ", ".join(str(layout.node(n).log("slurmd")) for n in plan.nodes)
    wait.until(
        idle, seconds, f"all nodes becoming idle (read {layout.log('slurmctld')}, {logs})", watch
    )


def await_registration(cluster: Cluster, seconds: float = 30) -> None:
    """Wait until each node with a slurmd has registered with a new slurmctld.

    Before that slurmctld has only the number of a node's cards. If all its jobs end meanwhile, up
    to 23.11 sbatch refuses shares, and later a job starts without a card (docs/admins.md).
    """
    wanted = {node for node in cluster.plan.nodes if cluster.daemons.running(f"{node}.slurmd")}

    def heard() -> bool:
        lines = run(cluster, ["scontrol", "-o", "show", "node"]).stdout.split("\n")
        known = {line.split(" ")[0] for line in lines if "SlurmdStartTime=None" not in line}
        return {f"NodeName={node}" for node in wanted} <= known

    log = cluster.layout.log("slurmctld")
    wait.until(heard, seconds, f"the nodes' registration with slurmctld (read {log})")


def run(cluster: Cluster, argv: list[str]) -> subprocess.CompletedProcess[str]:
    """A Slurm command as root inside the sandbox."""
    return subprocess.run(
        namespace.enter(cluster.daemons.anyone()) + argv,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        env={**cluster.daemons.env, "SLURM_CONF": str(cluster.layout.slurm_conf)},
        check=False,
    )
