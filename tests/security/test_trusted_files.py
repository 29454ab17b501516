"""Files that others than root could exchange: qgpu.yaml, directories, shims, plugin, driver,
programs.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from daemon_support import hook_env as env

from cli.jobs.extend import extend
from cli.jobs.guard import guard
from cli.report.collect import collect
from enforcer.daemon.main import StartError, prepare_directory
from enforcer.wire.abi import pack_grant
from gres.config.site import ConfigError, load_config
from gres.grant.store import Grant, GrantCard
from gres.trusted import UntrustedError, distrust, require
from simulator.fakes import FakeNode

USER = 65534
BUILD = Path(__file__).parents[2] / "build"
CONFIG = (
    "version: 1\ncluster: t\nqos: {online: online, offline: offline}\ndefault_class: offline\n"
    "models: {h200: {memory: 80GiB, reserve: 2GiB}}\nsuspended: {offline: {extend_time: true}}\n"
    "nodes: [{names: n1, model: h200, count: 1, files: /dev/nvidia0}]\n"
)
pytestmark = [
    pytest.mark.native,
    pytest.mark.skipif(os.geteuid() != 0, reason="files of other owners need root"),
]
Harm = Callable[[Path], None]


def _owner(path: Path) -> None:
    os.chown(path, USER, USER)


def _group(path: Path) -> None:
    path.chmod(0o664)


def _everybody(path: Path) -> None:
    path.chmod(0o666)


def _directory(path: Path) -> None:
    path.parent.chmod(0o777)


def _directory_owner(path: Path) -> None:
    os.chown(path.parent, USER, USER)


def _users_link(path: Path) -> None:
    real = path.with_name("real")
    path.rename(real)
    path.symlink_to(real)
    os.chown(path, USER, USER, follow_symlinks=False)


def _link_into_a_users_directory(path: Path) -> None:
    home = path.parent.parent / "home"
    home.mkdir()
    os.chown(home, USER, USER)
    path.rename(home / path.name)
    path.symlink_to(home / path.name)


HARMS = [
    _owner,
    _group,
    _everybody,
    _directory,
    _directory_owner,
    _users_link,
    _link_into_a_users_directory,
]


@pytest.fixture
def file() -> Iterator[Path]:
    """A file in a directory of its own, which every user can reach, on root's ways alone."""
    with tempfile.TemporaryDirectory(prefix="qgpu-trust-", dir="/var/tmp") as name:
        Path(name).chmod(0o755)
        (Path(name) / "d").mkdir(mode=0o755)
        path = Path(name) / "d/file"
        path.write_text(CONFIG)
        path.chmod(0o644)
        yield path


@pytest.mark.parametrize("harm", HARMS)
def test_what_others_could_exchange_is_not_used(file: Path, harm: Harm) -> None:
    require(file, "the file")
    harm(file)
    with pytest.raises(UntrustedError, match="others than root could change it") as caught:
        require(file, "the file")
    command = "chown -h root:root" if harm is _users_link else "chmod go-w"
    assert command in str(caught.value)


def test_the_command_in_the_sentence_mends_it(file: Path) -> None:
    file = file.rename(file.with_name("a b;c"))
    file.chmod(0o666)
    os.chown(file, USER, USER)
    doubt = distrust(file)
    assert doubt is not None
    subprocess.run(["sh", "-c", doubt.todo], check=True)
    require(file, "the file")


def test_roots_links_and_sticky_directories_are_fine(file: Path) -> None:
    sticky = file.parent.parent / "sticky"
    sticky.mkdir()
    sticky.chmod(0o1777)
    (sticky / "file").write_text("")
    (sticky / "link").symlink_to("../d/./../d/file")
    require(sticky / "file", "the file")
    require(sticky / "link", "the file")


def test_a_loop_of_links_ends(file: Path) -> None:
    (file.parent / "a").symlink_to("b")
    (file.parent / "b").symlink_to("a")
    found = distrust(file.parent / "a")
    assert found is not None and "is a loop of links" in str(found) and "chown" not in found.todo


@pytest.mark.parametrize("harm", HARMS)
def test_qgpu_yaml(file: Path, harm: Harm) -> None:
    load_config(file, trusted=True)
    harm(file)
    with pytest.raises(ConfigError, match=r"the configuration .* is not used"):
        load_config(file, trusted=True)
    load_config(file)


@pytest.mark.parametrize("command", [collect, extend, guard])
def test_commands_that_act_refuse_it(file: Path, command) -> None:  # type: ignore[no-untyped-def]
    file.chmod(0o666)
    done = CliRunner().invoke(command, ["--config", str(file)])
    assert done.exit_code == 2 and "is not used, since others than root" in done.output


@pytest.mark.parametrize("which", ["parent", "self"])
def test_run_dir_and_state_dir(file: Path, which: str) -> None:
    place = file.parent / "run"
    prepare_directory(str(place))
    (file.parent if which == "parent" else place).chmod(0o777)
    with pytest.raises(StartError, match=r"writable by it alone|others than root"):
        prepare_directory(str(place))


PARTS = {
    "libcuda.so.1": "sim/libcuda.so.1",
    "shim/libcuda.so.1": "shim/libcuda.so.1",
    "shim/libnvidia-ml.so.1": "shim/libnvidia-ml.so.1",
    "spank.so": "lib/qgpu_spank.so",
    "hook": "bin/qgpu-hook",
}


@pytest.fixture
def node(file: Path) -> FakeNode:
    """A fake node with files of its own for all that root loads or runs."""
    directory = file.parent
    node = FakeNode(directory)
    (directory / "shim").mkdir()
    for part, built in PARTS.items():
        (directory / part).write_bytes((BUILD / built).read_bytes())
    hook = node.config.hook.model_copy(update={"client": f"{directory}/hook"})
    more = {
        "shim": f"{directory}/shim/libcuda.so.1",
        "spank": f"{directory}/spank.so",
        "hook": hook,
    }
    node.config = node.config.model_copy(update=more)
    return node


@pytest.mark.parametrize("part", PARTS)
def test_what_jobs_get_breaks_the_node(file: Path, node: FakeNode, part: str) -> None:
    service = node.service()
    service.start()
    assert service.prolog(env(1)).status == 0
    (file.parent / part).chmod(0o666)
    answer = service.prolog(env(2, gpus="1"))
    assert (
        answer.status == 1
        and f"{part} has mode 0666" in answer.message
        and "chmod go-w" in answer.message
    )
    assert 1 in service.grants and service.prolog(env(3, "", "")).status == 0, "others go on"
    (file.parent / part).chmod(0o644)
    assert service.prolog(env(2, gpus="1")).status == 0
    node.retire(service)


# ---- the same in C ----


def _start(run_dir: Path, shim: Path, driver: str) -> subprocess.CompletedProcess[str]:
    card = GrantCard("GPU-00000000-0000-0000-0000-000000000001", 0, 0, 30, 1 << 30, 80 << 30)
    grant = Grant(
        7, USER, USER, "n1", "active", "online", 1, "", (card,), str(run_dir), driver, str(shim)
    )
    path = run_dir / "grants/7.grant"
    path.write_bytes(pack_grant(grant))
    path.chmod(0o644)
    stage = [
        str(BUILD / "test/spank_stage"),
        str(BUILD / "lib/qgpu_spank.so"),
        "remote",
        "7",
        str(USER),
    ]
    command = [*stage, f"run_dir={run_dir}", "--", "/bin/echo", "started"]
    env = {"PATH": "/usr/bin:/bin", "SLURMD_NODENAME": "n1"}
    return subprocess.run(command, env=env, cwd="/", capture_output=True, text=True, timeout=30)


@pytest.mark.parametrize("harm", HARMS)
@pytest.mark.parametrize("which", ["shim", "driver"])
def test_spank_loads_no_library_that_others_could_exchange(
    file: Path, harm: Harm, which: str
) -> None:
    run_dir = file.parent.parent / "run"
    (run_dir / "grants").mkdir(parents=True, mode=0o755)
    other = file.parent.parent / "o/other"
    other.parent.mkdir(mode=0o755)
    other.touch(0o644)
    shim, driver = (file, other) if which == "shim" else (other, file)
    assert "started" in _start(run_dir, shim, str(driver)).stdout
    harm(file)
    done = _start(run_dir, shim, str(driver))
    assert done.returncode == 1 and "started" not in done.stdout
    assert "is writable by others than root" in done.stderr


@pytest.mark.parametrize("harm", HARMS)
def test_the_hook_runs_no_scontrol_that_others_could_exchange(file: Path, harm: Harm) -> None:
    ran = file.parent.parent / "ran"
    file.write_text(f"#!/bin/sh\ntouch {ran}\n")
    file.chmod(0o755)
    words = [
        str(BUILD / "bin/qgpu-hook"),
        "prolog",
        "--run-dir",
        "/run/qgpu-none",
        "--deadline-ms",
        "50",
    ]
    env = {
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_GPUS": "0",
        "SLURMD_NODENAME": "n1",
        "SLURM_JOB_COMMENT": "qgpu/1 whole",
    }
    subprocess.run([*words, "--scontrol", str(file)], env=env, capture_output=True, timeout=30)
    assert ran.exists()
    ran.unlink()
    harm(file)
    done = subprocess.run(
        [*words, "--scontrol", str(file)], env=env, capture_output=True, text=True, timeout=30
    )
    assert not ran.exists() and "is not run" in done.stderr
