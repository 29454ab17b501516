"""One host: a throw-away copy of a tree, booted by systemd-nspawn with a network of its own.

The copy is an overlay: what the host writes lies in a directory beside it. Control groups are of
the version that this machine has: the host's part of each hierarchy is its own and writable, so
Slurm constrains devices in earnest. systemd would boot with version 2 beside a machine's version 1,
but slurmd refuses that: "Hybrid mode is not supported".
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
GROUP = "qgpu-install-"
V2 = "1" if (CGROUPS / "cgroup.controllers").exists() else "0"
BOOT_SECONDS = 120
COMMAND_SECONDS = 240
LEAVE_SECONDS = 10
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
REBOOT = 133  # nspawn's exit status when the host asked for a reboot
_INIT = """#!/bin/sh
# The first process of the host: what nspawn mounts read-only is a host's own.
for each in /sys/fs/cgroup/*; do
    [ "$each" = /sys/fs/cgroup/cpu ] ||
        mount -o remount,bind,rw,nosuid,nodev,noexec "$each" 2>/dev/null
done
exec /lib/systemd/systemd "$@"
"""


class CommandFailed(AssertionError):
    """A command of a host had another exit status than 0; the text holds all that it wrote."""


@dataclass(frozen=True)
class Result:
    """What a command did; `out` and `err` are its two outputs."""

    status: int
    out: str
    err: str

    @property
    def text(self) -> str:
        """Both outputs."""
        return self.out + self.err


@dataclass
class Machine:
    """A host of the test's cluster."""

    name: str
    address: str  # with the length of the network's prefix
    tree: Path
    state: Path
    bridge: str
    nspawn: subprocess.Popen[bytes] | None = field(default=None, repr=False)
    leader: int = 0

    @property
    def files(self) -> Path:
        """The host's root directory."""
        return self.state / "root"

    @property
    def homes(self) -> Path:
        """/home, which all hosts have in common."""
        return self.state.parent / "home"

    @property
    def log(self) -> Path:
        """What the host wrote to its console."""
        return self.state / "console.log"

    def mount(self) -> None:
        """Make the copy of the tree."""
        for name in ("upper", "work", "root"):
            (self.state / name).mkdir(parents=True, exist_ok=True)
        options = f"lowerdir={self.tree},upperdir={self.state}/upper,workdir={self.state}/work"
        subprocess.run(["mount", "-t", "overlay", "overlay", "-o", options, self.files], check=True)
        self._prepare()

    def _prepare(self) -> None:
        self.write("/usr/local/sbin/first-process", _INIT, 0o755)
        self.write("/etc/hostname", f"{self.name}\n")
        network = (
            f"[Match]\nName=host0\n[Network]\nAddress={self.address}\nLinkLocalAddressing=no\n"
        )
        self.write("/etc/systemd/network/10-host0.network", network)
        wanted = self.files / "etc/systemd/system/multi-user.target.wants/systemd-networkd.service"
        wanted.parent.mkdir(parents=True, exist_ok=True)
        if not wanted.is_symlink():
            wanted.symlink_to("/lib/systemd/system/systemd-networkd.service")

    def inside(self, path: str) -> Path:
        """Where a file of the host lies, seen from here."""
        return self.files / path.lstrip("/")

    def write(self, path: str, text: str, mode: int = 0o644) -> None:
        """Write a file of the host, as root; its directory is made."""
        file = self.inside(path)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        file.chmod(mode)

    def read(self, path: str) -> str:
        """The text of a file of the host."""
        return self.inside(path).read_text()

    def boot(self) -> None:
        """Start the host and wait until all its services are started."""
        self._groups_make()
        notify = self.state / "notify"
        notify.unlink(missing_ok=True)
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ready, self.log.open("ab") as out:
            ready.bind(str(notify))
            ready.settimeout(BOOT_SECONDS)
            self.nspawn = subprocess.Popen(
                self._argv(),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env={
                    "PATH": PATH,
                    "NOTIFY_SOCKET": str(notify),
                    "SYSTEMD_NSPAWN_UNIFIED_HIERARCHY": V2,
                },
            )
            self._await(ready)

    def _argv(self) -> list[str]:
        enter = (
            f"for each in {' '.join(map(str, self._groups()))}; do echo $$ "
            ">$each/cgroup.procs; done"
        )
        nspawn = [
            "setpriv",
            "--pdeathsig",
            "KILL",
            "--",
            "systemd-nspawn",
            "--quiet",
            "-D",
            str(self.files),
        ]
        nspawn += [
            f"--machine=qgpu-{self.name}",
            f"--network-bridge={self.bridge}",
            "--register=no",
        ]
        nspawn += [
            "--keep-unit",
            "--kill-signal=SIGRTMIN+3",
            "--capability=all",
            "--notify-ready=yes",
        ]
        nspawn += [
            f"--bind={self.homes}:/home",
            "--console=pipe",
            "--resolv-conf=off",
            "--timezone=off",
            "/usr/local/sbin/first-process",
        ]
        if V2 == "0":  # systemd 256 and later use version 1 only when told twice
            nspawn += ["systemd.unified_cgroup_hierarchy=0", "SYSTEMD_CGROUP_ENABLE_LEGACY_FORCE=1"]
        return ["sh", "-c", f'{enter}; exec "$@"', "sh", *nspawn]

    def _await(self, ready: socket.socket) -> None:
        words: dict[str, str] = {}
        self.leader = 0
        try:
            while "READY" not in words:
                text = ready.recv(4096).decode()
                words.update(line.split("=", 1) for line in text.splitlines() if "=" in line)
                self.leader = int(words.get("X_NSPAWN_LEADER_PID", 0))
        except TimeoutError:
            ask = (
                "systemctl --no-pager list-jobs; systemctl --no-pager --failed; journalctl -b -n 40"
            )
            told = self.run(ask, check=False).text if self.leader else self.log.read_text()[-2000:]
            raise AssertionError(f"{self.name} did not boot; {told}") from None

    def run(
        self,
        command: str,
        user: str = "root",
        check: bool = True,
        timeout: float = COMMAND_SECONDS,
        stdin: str = "",
    ) -> Result:
        """Run shell text on the host, as a user in a login shell. Raises CommandFailed."""
        enter = ["nsenter", "-t", str(self.leader), "-m", "-u", "-i", "-n", "-p", "-C", "--"]
        env = ["env", "-i", f"PATH={PATH}", "LANG=C.UTF-8", "TERM=dumb", "HOME=/root"]
        shell = ["bash", "-c", f"cd /root\n{command}"]
        if user != "root":
            shell = ["runuser", "-l", user, "-c", command]
        done = subprocess.run(
            [*enter, *env, *shell],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        result = Result(done.returncode, done.stdout, done.stderr)
        if check and result.status:
            told = (
                f"on {self.name}, as {user}: exit status {result.status} "
                f"of:\n{command}\n{result.text}"
            )
            raise CommandFailed(told)
        return result

    def reboot(self) -> None:
        """Let the host restart itself, as `systemctl reboot` does."""
        assert self.nspawn is not None
        self.run("systemctl --no-block reboot")
        status = self.nspawn.wait(BOOT_SECONDS)
        assert status == REBOOT, (
            f"{self.name} ended with {status} and not with a reboot; read {self.log}"
        )
        self.boot()

    def off(self) -> None:
        """Take the power away."""
        if self.nspawn is not None and self.nspawn.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.leader or self.nspawn.pid, signal.SIGKILL)
            self.nspawn.kill()
            self.nspawn.wait()
            # The kernel takes the host's end away some time after the container's; a new one needs
            # the name at once.
            link = ["ip", "link", "del", f"vb-qgpu-{self.name}"]
            subprocess.run(link, stderr=subprocess.DEVNULL, check=False)
        self._groups_remove()

    def remove(self) -> None:
        """Take the power away and remove the copy."""
        self.off()
        subprocess.run(["umount", "-l", self.files], check=False)
        shutil.rmtree(self.state, ignore_errors=True)

    def _groups(self) -> list[Path]:
        """This host's part of each hierarchy that this machine has mounted."""
        found = [CGROUPS] if V2 == "1" else sorted(CGROUPS.iterdir())
        # Not cpu of version 1: where the kernel has RT_GROUP_SCHED its groups may not have
        # real-time threads.
        return [
            each / f"{GROUP}{self.state.parent.name}-{self.name}"
            for each in found
            if each.name != "cpu"
        ]

    def _groups_make(self) -> None:
        for group in self._groups():
            group.mkdir(exist_ok=True)
            # version 1 takes no process before they are set
            for name in ("cpuset.cpus", "cpuset.mems"):
                if (group / name).exists() and (
                    group.parent / "cpuset.sched_load_balance"
                ).exists():
                    (group / name).write_text((group.parent / name).read_text())

    def _groups_remove(self) -> None:
        """Processes that were killed leave their groups a moment later."""
        end = time.monotonic() + LEAVE_SECONDS
        while not self._groups_gone() and time.monotonic() < end:
            time.sleep(0.05)

    def _groups_gone(self) -> bool:
        return [group for group in self._groups() if not removed(group)] == []


def removed(group: Path) -> bool:
    """Remove a control group and those in it, as far as they hold no process; whether it is
    gone.
    """
    for base, _, _ in os.walk(group, topdown=False):
        with contextlib.suppress(OSError):
            Path(base).rmdir()
    return not group.exists()
