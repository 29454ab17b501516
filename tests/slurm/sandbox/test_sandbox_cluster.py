"""What people get inside a sandbox: users, QOS, accounting, constrained devices."""

from __future__ import annotations

import pwd
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from cli.main import main
from cli.sandbox import processes, wait
from cli.sandbox.cluster import Sandbox
from cli.sandbox.errors import SandboxError

# Tries every card of its node, and says which could be opened as far as the device cgroup is
# concerned.
TRY_CARDS = """
for card in "$QGPU_SIM_DIR"/dev/qgpusim*; do
    if message=$(cat "$card" 2>&1 </dev/null); then echo "$(basename $card) open"; continue; fi
    case $message in
        *"Operation not permitted"*) echo "$(basename $card) denied" ;;
        *) echo "$(basename $card) open" ;;
    esac
done
"""


def batch(sandbox: Sandbox, script: str, *options: str, user: str = "alice") -> tuple[str, str]:
    """Run a batch script to its end; returns the job's id and output."""
    words = ["sbatch", "--parsable", "--wait", "--output=%j.out", *options]
    job = sandbox.run(words, user=user, input=f"#!/bin/bash\n{script}\n").stdout.strip()
    return job, (sandbox.layout.home(user) / f"{job}.out").read_text()


def sacct(sandbox: Sandbox, job: str, fields: str) -> list[str]:
    """Fields of a job as the database has them, once its record is whole.

    Slurm writes it in steps: for a second or two sacct calls the QOS of a short job Unknown."""

    def row() -> list[str]:
        out = sandbox.run(["sacct", "-X", "-n", "-P", "-j", job, "-o", f"state,{fields}"]).stdout
        return out.strip().split("|")

    unfinished = {"", "PENDING", "RUNNING", "COMPLETING", "Unknown"}
    wait.until(lambda: not unfinished & set(row()), 60, f"the record of job {job} in sacct")
    return row()


def test_all_services_run(sandbox: Sandbox) -> None:
    services = sandbox.services()
    for node in sandbox.node_names:
        for name in ("simgpu", "arbiter", "qgpud", "slurmd"):
            assert services.pop(f"{node}.{name}"), f"{name} of {node} does not run"
    assert services == dict.fromkeys(
        ["mariadbd", "munged", "namespace", "slurmctld", "slurmdbd"], True
    )


def test_status_and_list_name_it(sandbox: Sandbox) -> None:
    status = CliRunner().invoke(main, ["sandbox", "status", "--name", sandbox.options.name])
    assert status.exit_code == 0, status.output
    assert f"sandbox {sandbox.options.name} in {sandbox.layout.state}: up" in status.output
    listed = CliRunner().invoke(main, ["sandbox", "list"])
    assert str(sandbox.layout.state) in listed.output


def test_the_accounts_exist_inside_only(sandbox: Sandbox) -> None:
    inside = sandbox.run(["id", "-un"], user="alice").stdout.strip()
    assert inside == "alice"
    assert int(sandbox.run(["id", "-u"], user="bob").stdout) == sandbox.plan.first_uid + 1
    with pytest.raises(KeyError):
        pwd.getpwnam("alice")


def test_users_keep_no_privileges(sandbox: Sandbox) -> None:
    status = sandbox.run(["cat", "/proc/self/status"], user="alice").stdout
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert int(fields["CapEff"], 16) == 0
    assert int(fields["CapPrm"], 16) == 0
    assert fields["Groups"].split() == [str(sandbox.plan.first_uid)]


def test_secrets_are_not_readable_by_users(sandbox: Sandbox) -> None:
    for secret in (
        sandbox.layout.etc / "munge.key",
        sandbox.layout.etc / "slurmdbd.conf",
        sandbox.layout.state / "db",
    ):
        done = sandbox.run(
            ["ls" if secret.is_dir() else "cat", str(secret)], user="alice", check=False
        )
        assert done.returncode != 0
        assert "Permission denied" in done.stderr


def test_a_job_of_alice_is_accounted(sandbox: Sandbox) -> None:
    job, output = batch(sandbox, "id -un; pwd", "--qos=online")
    assert output.split() == ["alice", str(sandbox.layout.home("alice"))]
    assert sacct(sandbox, job, "user,account,qos,cluster") == [
        "COMPLETED",
        "alice",
        "research",
        "online",
        sandbox.plan.cluster,
    ]


def test_users_may_use_the_classes_and_no_other_qos(sandbox: Sandbox) -> None:
    job, _ = batch(sandbox, "true", "--qos=offline", user="bob")
    assert sacct(sandbox, job, "user,qos") == ["COMPLETED", "bob", "offline"]
    refused = sandbox.run(["sbatch", "--qos=gold", "--wrap=true"], user="bob", check=False)
    assert refused.returncode != 0
    assert "Invalid qos" in refused.stderr


def test_a_job_opens_its_own_card_only(sandbox: Sandbox) -> None:
    if sandbox.plan.cgroup == "none":
        pytest.skip(f"no device cgroups here: {sandbox.plan.cgroup_why}")
    _, output = batch(sandbox, f"echo card $SLURM_JOB_GPUS\n{TRY_CARDS}", "--gres=qgpu:30")
    first, *cards = output.splitlines()
    own = first.split()[1]
    assert {f"qgpusim{own} open"} == {line for line in cards if line.endswith("open")}
    assert len([line for line in cards if line.endswith("denied")]) == sandbox.plan.cards - 1


def test_tasks_find_the_simulated_driver_of_their_node(sandbox: Sandbox) -> None:
    node = sandbox.node_names[1]
    _, output = batch(
        sandbox, 'echo "$QGPU_SIM_DIR"; ls "${LD_LIBRARY_PATH%%:*}"', "--gres=qgpu:10", f"-w{node}"
    )
    sim_dir, *libraries = output.split()
    assert Path(sim_dir) == sandbox.node(node).sim_dir
    assert {"libcuda.so.1", "libnvidia-ml.so.1"} <= set(libraries)


def test_exec_refuses_unknown_users_and_names_the_existing_ones(sandbox: Sandbox) -> None:
    with pytest.raises(SandboxError, match="its users are alice, bob and root"):
        sandbox.run(["true"], user="carol")


@pytest.mark.parametrize("user", ["root", "alice"])
def test_exec_as_a_user_by_name(sandbox: Sandbox, user: str) -> None:
    words = [sys.executable, "-m", "cli.main", "sandbox", "exec", *sandbox.selector.split()]
    words += ["-u", user, "--", "id", "-un"]
    assert subprocess.run(words, capture_output=True, text=True, check=True).stdout == f"{user}\n"


def test_exec_passes_the_exit_status_on(sandbox: Sandbox) -> None:
    assert sandbox.run(["sh", "-c", "exit 7"], user="alice", check=False).returncode == 7
    with pytest.raises(SandboxError, match="ended with status 3: no luck"):
        sandbox.run(["sh", "-c", "echo no luck >&2; exit 3"])


def test_a_second_up_is_refused(sandbox: Sandbox) -> None:
    with pytest.raises(SandboxError, match="is already up in"):
        Sandbox(sandbox.options).up()
    assert all(sandbox.services().values())


def test_the_same_node_names_elsewhere_are_refused(sandbox: Sandbox, tmp_path: Path) -> None:
    result = CliRunner().invoke(
        main,
        [
            "sandbox",
            "up",
            "--name",
            sandbox.options.name,
            "--state-dir",
            "/var/tmp/qgpu-same-names",
        ],
    )
    assert result.exit_code == 1
    assert "has nodes of the same names" in result.output
    assert not Path("/var/tmp/qgpu-same-names").exists()


@pytest.mark.parametrize("service", ["arbiter", "qgpud"])
def test_a_killed_daemon_can_be_started_again(sandbox: Sandbox, service: str) -> None:
    node = sandbox.node_names[0]
    before = sandbox.pid(node, service)
    sandbox.kill(node, service, signal.SIGKILL)
    assert processes.identify(before) is None or not Path(f"/proc/{before}/exe").exists()
    with pytest.raises(SandboxError, match=f"{service} of {node} does not run"):
        sandbox.pid(node, service)
    sandbox.start(node, service)
    assert sandbox.pid(node, service) != before
    with pytest.raises(SandboxError, match="runs already"):
        sandbox.start(node, service)


def test_the_controller_can_be_restarted_under_a_running_job(sandbox: Sandbox) -> None:
    job = sandbox.run(["sbatch", "--parsable", "--wrap=sleep 600"], user="alice").stdout.strip()

    def state() -> str:
        return sandbox.run(["squeue", "-h", "-j", job, "-o", "%T"], check=False).stdout.strip()

    wait.until(lambda: state() == "RUNNING", 60, "the start of the job")
    sandbox.restart_controller()
    wait.until(lambda: state() == "RUNNING", 60, "the job in the new controller")
    sandbox.run(["scancel", job], user="alice")
    wait.until(lambda: state() in ("", "CANCELLED"), 60, "the end of the job")
