"""The sandbox's mount namespace, in which alone its user accounts exist.

Slurm reads users by getpwuid(). The sandbox adds no accounts to the machine; it binds a copy of
/etc, with its accounts, over the original in a private mount namespace. That ends with its last
process, so neither mount nor account can be left behind. The whole directory is bound, since the
kernel takes a bind on one file away when the machine renames another file over it, as adduser and
packages do.
"""

from __future__ import annotations

import grp
import os
import pwd
import socket
import subprocess
from pathlib import Path

from cli.sandbox import cgroups, processes, usercli
from cli.sandbox.errors import SandboxError
from cli.sandbox.layout import Layout

USERS = ("alice", "bob")

# A name service cache would answer from the machine's accounts, so its socket is hidden as well.
_HOLDER = """
mount --bind "$1" /etc || exit 1
if [ -n "$3" ]; then
    mount --bind "$3" "$2" && umount --lazy --recursive "$4" && mount --move "$2" "$4" || exit 1
fi
shift 4
while [ $# -ge 2 ]; do
    mount --bind "$1" "$2" && mount -o remount,bind,ro "$2" || exit 1
    shift 2
done
if [ -d /run/nscd ]; then mount -t tmpfs -o size=4k tmpfs /run/nscd || exit 1; fi
echo ready
exec sleep infinity
"""


def write_accounts(layout: Layout, first_uid: int) -> None:
    """Copy /etc and add alice and bob to its accounts; make their homes."""
    # Not shutil.copytree, which fails at a socket or a fifo.
    layout.machine_etc.parent.mkdir()
    subprocess.run(["cp", "-a", "/etc", layout.machine_etc.parent], check=True)
    passwd = [
        line
        for line in Path("/etc/passwd").read_text().split("\n")
        if line.split(":")[0] not in USERS
    ]
    group = [
        line
        for line in Path("/etc/group").read_text().split("\n")
        if line.split(":")[0] not in USERS
    ]
    for offset, user in enumerate(USERS):
        uid, home = first_uid + offset, layout.home(user)
        home.mkdir(parents=True, mode=0o755)
        os.chown(home, uid, uid)
        # Not "x": there is no shadow entry, and slurmd's `su - USER` (--export=NONE) would be
        # turned away.
        passwd.append(f"{user}:*:{uid}:{uid}:qgpu sandbox:{home}:/bin/bash")
        group.append(f"{user}:x:{uid}:")
    (layout.machine_etc / "passwd").write_text("\n".join(passwd) + "\n")
    (layout.machine_etc / "group").write_text("\n".join(group) + "\n")


def uids_free(first_uid: int) -> bool:
    """Whether the machine has none of the uids and gids of the sandbox's accounts."""
    taken = {entry.pw_uid for entry in pwd.getpwall()} | {entry.gr_gid for entry in grp.getgrall()}
    return not taken & set(range(first_uid, first_uid + len(USERS)))


def _moved_cgroups(cgroup: str) -> list[str]:
    """Where version 2 is and where it is to be alone; empty words if nothing is to be moved."""
    root = cgroups.unified()
    if cgroup != "v2" or root is None or cgroups.modern():
        return ["", ""]
    return [str(root), str(cgroups.ROOT)]


def start_holder(layout: Layout, cgroup: str, slot: socket.socket) -> int:
    """Start the process that keeps the namespace and the slot, and return its pid.

    With cgroups version 2 it has no others, as on a modern node: all programs inside see that.
    """
    log = layout.log("namespace")
    binds = [str(path) for pair in usercli.bound(layout).items() for path in pair]
    way = layout.state / "run"
    where = [str(layout.machine_etc), str(way), *_moved_cgroups(cgroup), *binds]
    with log.open("wb") as err:
        holder = subprocess.Popen(
            ["unshare", "--mount", "--propagation", "slave", "sh", "-c", _HOLDER, "sh", *where],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=err,
            cwd="/",
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", processes.MARK: str(layout.state)},
            start_new_session=True,
            pass_fds=[slot.fileno()],
        )
    assert holder.stdout is not None
    with holder.stdout as out:
        ready = out.readline()
    if ready != b"ready\n":
        holder.wait()
        raise SandboxError(
            "a private mount namespace cannot be made here, so the sandbox has no place for its"
            " users; it needs root with CAP_SYS_ADMIN (in a container: --privileged). The system"
            f" said: {log.read_text().strip()}"
        )
    return holder.pid


def enter(pid: int, cwd: Path | str = "/", user: str | None = None) -> list[str]:
    """The words to put before a command so that it runs in the namespace of pid, as that user or as
    root. `cwd`: the root directory stands in for one that is not inside.
    """
    if not Path(f"/proc/{pid}/root{cwd}").is_dir():
        cwd = "/"
    words = ["nsenter", f"--mount=/proc/{pid}/ns/mnt", f"--wdns={cwd}", "--"]
    if user is not None:
        words += ["setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups", "--"]
    return words
