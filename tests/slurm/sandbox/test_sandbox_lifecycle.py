"""`down` leaves nothing, whatever happened before; two sandboxes do not disturb each other."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from cli.sandbox import accounting, cgroups, processes, wait
from cli.sandbox.cluster import Sandbox
from cli.sandbox.errors import SandboxError
from cli.sandbox.options import SandboxOptions


@dataclass(frozen=True)
class Machine:
    """What a sandbox must not change."""

    mounts: str
    passwd: bytes
    group: bytes

    @classmethod
    def now(cls) -> Machine:
        mounts = Path("/proc/self/mountinfo").read_text()
        return cls(mounts, Path("/etc/passwd").read_bytes(), Path("/etc/group").read_bytes())


@pytest.fixture
def name() -> str:
    return f"x{os.getpid()}"


@pytest.fixture
def machine(name: str) -> Iterator[Machine]:
    yield Machine.now()
    Sandbox(SandboxOptions(name)).down()


def remains(sandbox: Sandbox) -> list[str]:
    """Everything of a sandbox that can still be found, in words."""
    state = sandbox.layout.state
    found = [f"cgroup {path}" for path in cgroups.left_behind(sandbox.options.node_names)]
    found += [f"process {who.pid}" for who in processes.members(state)]
    for proc in Path("/proc").glob("[0-9]*"):
        try:
            text = (proc / "cmdline").read_bytes() + (proc / "environ").read_bytes()
        except OSError:
            continue
        if str(state).encode() + b"/" in text:
            found.append(f"process {proc.name} that names the state directory")
    return found + ([f"directory {state}"] if state.exists() else [])


def start_up(name: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "cli.main", "sandbox", "up", "--name", name],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        # A background job of a shell ignores SIGINT, and so would its children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


# Words of the progress lines after which `up` is killed.
@pytest.mark.parametrize("moment", ["constrained", "accounts", "slurmctld", "up:"])
def test_up_killed_in_the_middle_leaves_nothing_after_down(
    name: str, machine: Machine, moment: str
) -> None:
    up = start_up(name)
    assert up.stdout is not None
    lines: list[str] = []
    for line in up.stdout:
        lines.append(line)
        if moment in line:
            break
    else:
        pytest.fail(f"up never said {moment!r}: {lines}")
    up.send_signal(signal.SIGKILL)
    up.wait()
    up.stdout.close()
    sandbox = Sandbox(SandboxOptions(name))
    assert remains(sandbox), "nothing was there to be removed: this test proves nothing"
    assert sandbox.down()
    assert remains(sandbox) == []
    assert Machine.now() == machine


def test_interrupted_up_removes_everything_itself(name: str, machine: Machine) -> None:
    up = start_up(name)
    assert up.stdout is not None
    for line in up.stdout:
        if "accounts" in line:
            break
    up.send_signal(signal.SIGINT)
    up.communicate(timeout=60)
    assert up.returncode != 0
    assert remains(Sandbox(SandboxOptions(name))) == []
    assert Machine.now() == machine


def test_two_sandboxes_and_an_end_with_everything_in_disorder(
    sandbox: Sandbox, name: str, machine: Machine
) -> None:
    other = Sandbox(SandboxOptions(name, nodes=1, cards=1, memory_mib=40960))
    other.up()
    assert other.plan.slot != sandbox.plan.slot
    assert other.plan.first_uid != sandbox.plan.first_uid
    inside = {s: s.run(["sinfo", "-h", "-N", "-o", "%N"]).stdout.split() for s in (sandbox, other)}
    assert inside == {sandbox: sandbox.node_names, other: other.node_names}

    # A job that hides: own session, empty environment, and the daemons that could end it are gone.
    hidden = "setsid env -i sleep 4711 & sleep 4711"
    other.run(["sbatch", f"--wrap={hidden}"], user="alice")
    wait.until(lambda: len(sleepers()) == 2, 60, "the start of the hidden job")
    for service in ("slurmctld", f"{name}-n1.slurmd", "namespace", "munged", "mariadbd"):
        who = other._daemons.find(service)
        assert who is not None and who.kill(signal.SIGKILL)
    assert other.down()
    assert sleepers() == []
    assert remains(other) == []
    assert Machine.now() == machine
    assert all(sandbox.services().values()), "ending one sandbox hit the other"


def test_the_machine_may_replace_its_accounts(sandbox: Sandbox) -> None:
    """As adduser and packages do: by renaming a new file over the old one."""
    for name in ("passwd", "group"):
        new = Path("/etc", f"{name}.qgpu-test")
        subprocess.run(["cp", "-a", Path("/etc", name), new], check=True)
        new.rename(Path("/etc", name))
    assert sandbox.run(["id", "-un"], user="alice").stdout.strip() == "alice"
    assert sandbox.run(["sbatch", "--wait", "--wrap=true"], user="alice").returncode == 0
    assert all(sandbox.services().values())


def sleepers() -> list[int]:
    """Processes `sleep 4711`."""
    found = []
    for proc in Path("/proc").glob("[0-9]*"):
        try:
            if (proc / "cmdline").read_bytes() == b"sleep\x004711\0":
                found.append(int(proc.name))
        except OSError:
            continue
    return found


def test_down_without_a_sandbox_is_no_error(name: str) -> None:
    assert not Sandbox(SandboxOptions(name)).down()


def test_what_a_killed_up_left_is_cleared_by_the_next_up(name: str, machine: Machine) -> None:
    sandbox = Sandbox(SandboxOptions(name, nodes=1, cards=1))
    sandbox.up()
    for who in processes.members(sandbox.layout.state):
        who.kill(signal.SIGKILL)
    wait.until(lambda: not processes.members(sandbox.layout.state), 60, "the end of all daemons")
    again = Sandbox(SandboxOptions(name, nodes=1, cards=1))
    again.up()
    assert all(again.services().values())
    again.down()
    assert remains(again) == []
    assert Machine.now() == machine


def test_a_machine_whose_cgroups_do_not_work_gets_a_cluster_and_a_clear_word(
    name: str, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """slurmd cannot use the cgroups that it is told to use; it refuses, and `up` goes on without.

    Here it sees both versions, or it is told version 1 where there is none.
    """
    refused = "v2" if cgroups.hybrid() else "v1"
    monkeypatch.setattr(cgroups, "hybrid", lambda: False)  # slurmd gets the truth to read
    monkeypatch.setattr(cgroups, "choose", lambda tag, wanted: (refused, "cgroups that fail"))
    said: list[str] = []
    shape = SandboxOptions(name, nodes=1, cards=1, cgroup="auto")
    other = Sandbox(shape, said.append)
    other.up()
    assert other.plan.cgroup == "none"
    assert any("cards are NOT constrained" in line and "cgroup" in line for line in said)
    config = other.run(["scontrol", "show", "config"]).stdout
    # From 24.11 on there is no task/none: no plugin is shown as (null).
    assert "proctrack/linuxproc" in config and re.search(
        r"^TaskPlugin *= (task/none|\(null\))$", config, re.M
    )
    other.run(["sbatch", "--wait", "--wrap=true"], user="bob")
    assert other.down()
    assert remains(other) == []
    with pytest.raises(SandboxError, match=r"n1\.slurmd"):  # nothing takes the place of a demand
        Sandbox(replace(shape, cgroup=refused)).up()
    assert remains(other) == []
    assert Machine.now() == machine


def test_a_step_that_fails_is_named_with_its_log_and_nothing_stays(
    name: str, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accounting, "commands", lambda cluster: [["add", "nonsense", cluster]])
    said: list[str] = []
    failing = Sandbox(SandboxOptions(name, nodes=1, cards=1), said.append)
    with pytest.raises(
        SandboxError,
        match=f"sacctmgr add nonsense qgpu-{name} failed: (?s:.*); read .*slurmdbd.log",
    ):
        failing.up()
    assert remains(failing) == []
    assert Machine.now() == machine
    with pytest.raises(SandboxError):
        failing.up(keep_failed=True)
    assert "kept for reading" in said[-1]
    assert failing.layout.log("slurmdbd").exists()
    assert failing.down()
    assert remains(failing) == []


def test_two_ups_of_one_sandbox_at_a_time_are_refused(name: str, machine: Machine) -> None:
    first = start_up(name)
    assert first.stdout is not None
    first.stdout.readline()
    with pytest.raises(SandboxError, match="is at work on"):
        Sandbox(SandboxOptions(name)).up()
    first.send_signal(signal.SIGINT)
    first.communicate(timeout=60)
    assert remains(Sandbox(SandboxOptions(name))) == []
