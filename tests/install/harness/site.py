"""A site with a stock Slurm: one controller with accounting, two nodes, a login host, two users.

What is written here is what the site's admin wrote before qgpu came: no line of it is qgpu's. Cards
are the site's own business too (`gpu:MODEL:2` per node), so that the site has jobs that ask for
whole cards.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from harness.machine import Machine, Result

NETWORK = "10.88.0"
HOSTS = {"ctl": 10, "n1": 11, "n2": 12, "login": 13}
NODES = ("n1", "n2")
PLACES: dict[str, tuple[str, ...]] = {
    "controller": ("ctl",),
    "nodes": NODES,
    "first-node": NODES[:1],
    "login": ("login",),
    "all": tuple(HOSTS),
}
BRIDGE = "qgpu0"
USERS = {"alice": 2001, "bob": 2002}
_SERVICES = {"slurmctld", "slurmdbd", "mariadb", "slurmd"}
# The controller's own are enabled once they have a database: until then neither ends when it is
# told to.
_WANTED = {"ctl": {"mariadb"}, "n1": {"slurmd"}, "n2": {"slurmd"}, "login": set()}
_PROCESSORS = {"CPUs", "Boards", "SocketsPerBoard", "CoresPerSocket", "ThreadsPerCore"}
_SLURM_CONF = """\
ClusterName=site
SlurmctldHost=ctl
SlurmUser=slurm
AuthType=auth/munge
StateSaveLocation=/var/lib/slurm/slurmctld
SlurmdSpoolDir=/var/lib/slurm/slurmd
SlurmctldLogFile=/var/log/slurm/slurmctld.log
SlurmdLogFile=/var/log/slurm/slurmd.log
ProctrackType=proctrack/cgroup
TaskPlugin=task/cgroup
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
DefMemPerCPU=64
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=ctl
AccountingStorageEnforce=associations,limits,qos
AccountingStorageTRES=gres/gpu
JobAcctGatherType=jobacct_gather/linux
MailProg=/bin/true
ReturnToService=2
SlurmdTimeout=30
GresTypes=gpu
NodeName=n[1-2] {hardware} RealMemory=4000 Gres=gpu:h200:2
PartitionName=gpu Nodes=n[1-2] Default=YES MaxTime=1:00:00 State=UP
"""
_GRES_CONF = "NodeName=n[1-2] Name=gpu Type=h200 File=/var/lib/qgpu-sim/dev/qgpusim[0-1]\n"
_CGROUP_CONF = "ConstrainCores=no\nConstrainDevices=yes\n"
_SLURMDBD_CONF = """\
AuthType=auth/munge
DbdHost=ctl
SlurmUser=slurm
LogFile=/var/log/slurm/slurmdbd.log
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=slurm
StoragePass=site
StorageLoc=slurm_acct_db
"""
_DATABASE = (
    "create database slurm_acct_db; create user slurm@localhost identified by 'site';"
    "grant all on slurm_acct_db.* to slurm@localhost"
)
_ACCOUNTS = """
sacctmgr -i add cluster site || true
sacctmgr -i add account research Description=research Organization=site
sacctmgr -i add user alice,bob Account=research
"""


def until(true: Callable[[], object], what: str, seconds: float = 120) -> None:
    """Wait for something of which no host tells an event. Raises AssertionError with `what`."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, f"waited {seconds:.0f} s for {what}"
        time.sleep(0.1)


@dataclass
class Site:
    """The hosts, by name."""

    suite: str
    hosts: dict[str, Machine]
    key: Path  # root's ssh key, which all hosts accept

    def __getitem__(self, name: str) -> Machine:
        return self.hosts[name]

    @property
    def nodes(self) -> list[Machine]:
        """The hosts with cards."""
        return [self.hosts[name] for name in NODES]

    def on(self, where: str) -> list[Machine]:
        """The hosts that a page calls controller, nodes, first-node, login or all."""
        return [self.hosts[name] for name in PLACES[where]]

    def submit(self, command: str, user: str = "alice", host: str = "login") -> int:
        """Submit with sbatch; the job's number. Raises CommandFailed where Slurm refuses."""
        return int(self[host].run(f"sbatch --parsable {command}", user=user).out.split(";")[0])

    def refused(self, command: str, user: str = "alice") -> str:
        """What sbatch says about a request that it must refuse."""
        done = self["login"].run(f"sbatch --parsable {command}", user=user, check=False)
        assert done.status != 0, f"accepted: {command}: {done.text}"
        return done.text

    def srun(self, words: str, user: str = "alice", **options: object) -> Result:
        """Run a job and wait for it."""
        return self["login"].run(f"srun {words}", user=user, **options)  # type: ignore[arg-type]

    def job(self, number: int) -> dict[str, str]:
        """What slurmctld says of a job."""
        text = self["ctl"].run(f"scontrol -o show job {number}").out
        return dict(word.split("=", 1) for word in text.split() if "=" in word)

    def await_job(self, number: int, *states: str, seconds: float = 120) -> None:
        """Wait until a job is in one of the states."""
        until(
            lambda: self.job(number)["JobState"] in states,
            f"{' or '.join(states)} of job {number}: {self.job(number)}",
            seconds,
        )

    def await_output(self, host: Machine, command: str, text: str) -> None:
        """Wait until a command of a host prints some text."""
        until(lambda: text in host.run(command, check=False).out, f"{text!r} from {command}")

    def await_controller(self) -> None:
        """Wait until slurmctld answers."""
        until(
            lambda: "is UP" in self["ctl"].run("scontrol ping", check=False).out,
            "an answer of slurmctld",
        )

    def await_idle(self) -> None:
        """Wait until slurmctld answers and both nodes may have jobs."""
        ask = "sinfo -h -N -o '%T' 2>/dev/null | sort -u"
        states = {"idle", "mixed", "allocated"}
        until(
            lambda: set(self["ctl"].run(ask, check=False).out.split() or ["-"]) <= states,
            "idle nodes: "
            + self["ctl"].run("sinfo -N -o '%N %T %E'; scontrol ping", check=False).text,
        )


def _hardware(host: Machine) -> str:
    """The processors as slurmd sees them, for a NodeName line."""
    argv = ["chroot", str(host.files), "slurmd", "-C"]
    text = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    return " ".join(word for word in text.split() if word.split("=")[0] in _PROCESSORS)


def _prepare(host: Machine, munge: bytes, key: Path) -> None:
    files = host.files
    for service in _SERVICES - _WANTED[host.name]:
        (files / f"etc/systemd/system/multi-user.target.wants/{service}.service").unlink(
            missing_ok=True
        )
    lines = "".join(f"{NETWORK}.{number} {name}\n" for name, number in HOSTS.items())
    host.write("/etc/hosts", f"127.0.0.1 localhost\n{lines}")
    (files / "etc/munge/munge.key").write_bytes(munge)
    host.write("/etc/slurm/slurm.conf", _SLURM_CONF.replace("{hardware}", _hardware(host)))
    host.write("/etc/slurm/gres.conf", _GRES_CONF)
    host.write("/etc/slurm/cgroup.conf", _CGROUP_CONF)
    # There is no kernel module to load in a container.
    (files / "etc/systemd/system/systemd-modules-load.service").symlink_to("/dev/null")
    host.write("/root/.ssh/authorized_keys", key.with_suffix(".pub").read_text(), 0o600)
    (files / "root/.ssh").chmod(0o700)
    for user, number in USERS.items():
        argv = ["chroot", str(files), "useradd", "-M", "-u", str(number), "-s", "/bin/bash", user]
        subprocess.run(argv, check=True)
        home = host.homes / user
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
        os.chown(home, number, number)


def _controller(host: Machine, key: Path) -> None:
    conf = host.files / "etc/slurm/slurmdbd.conf"
    host.write("/etc/slurm/slurmdbd.conf", _SLURMDBD_CONF, 0o600)
    subprocess.run(
        ["chroot", str(host.files), "chown", "slurm:", "/etc/slurm/slurmdbd.conf"], check=True
    )
    assert conf.exists()
    for file in (key, key.with_suffix(".pub")):
        host.write(f"/root/.ssh/{file.name}", file.read_text(), 0o600)
    host.write("/root/.ssh/config", "StrictHostKeyChecking accept-new\nLogLevel ERROR\n", 0o600)


def _network() -> None:
    for words in (
        f"link add {BRIDGE} type bridge",
        f"addr add {NETWORK}.1/24 dev {BRIDGE}",
        f"link set {BRIDGE} up",
        "link set lo up",
    ):
        subprocess.run(["ip", *words.split()], check=True)


def _start_controller(site: Site) -> None:
    ctl = site["ctl"]
    ctl.run(f'mysql -e "{_DATABASE}"')
    ctl.run("systemctl enable --now slurmdbd")
    until(
        lambda: ctl.run("sacctmgr -n list cluster", check=False).status == 0,
        "an answer of slurmdbd",
    )
    ctl.run(_ACCOUNTS)
    ctl.run("systemctl enable --now slurmctld")
    site.await_controller()


@contextlib.contextmanager
def running(
    suite: str, tree: Path, state: Path, driver: Callable[[Machine], None]
) -> Iterator[Site]:
    """A site that is up. `driver` puts the cards' driver on a node before it boots.

    Runs in a network and mount namespace of its own (`python -m harness`)."""
    shutil.rmtree(state, ignore_errors=True)
    state.mkdir(parents=True)
    key = state / "id_ed25519"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    hosts = {
        name: Machine(name, f"{NETWORK}.{number}/24", tree, state / name, BRIDGE)
        for name, number in HOSTS.items()
    }
    site = Site(suite, hosts, key)
    munge = b"a key for this test alone".ljust(64, b".")
    _network()
    try:
        for host in hosts.values():
            host.mount()
            _prepare(host, munge, key)
            if host.name in NODES:
                driver(host)
        _controller(hosts["ctl"], key)
        # The controller first: a slurmd that does not find it does not end for a minute and a half
        # when it is told to.
        hosts["ctl"].boot()
        _start_controller(site)
        for name in (*NODES, "login"):
            hosts[name].boot()
        site.await_idle()
        yield site
    finally:
        for host in hosts.values():
            host.remove()
        subprocess.run(["ip", "link", "del", BRIDGE], check=False)
        shutil.rmtree(state, ignore_errors=True)
