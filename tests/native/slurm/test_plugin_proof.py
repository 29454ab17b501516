"""The proof that Slurm loads our SPANK plugin: the plugin leaves it, the hook of the same start
takes it, once.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from test_hook_client import BUILD, CARD_JOB, Daemon, daemon, fake_scontrol, hook, run_dir

__all__ = ["daemon", "run_dir"]

pytestmark = [
    pytest.mark.native,
    pytest.mark.skipif(os.geteuid() != 0, reason="the hook is root's"),
]
YES = b"qgpu-hook/1 0\0"


def leave(run_dir: Path, env: dict[str, str], plugin_run_dir: Path | None = None) -> None:
    """The plugin's job prolog alone."""
    stage = [str(BUILD / "test/spank_stage"), str(BUILD / "lib/qgpu_spank.so"), "prolog", "1", "0"]
    subprocess.run(
        [*stage, f"run_dir={plugin_run_dir or run_dir}", "--", "/bin/true"], env=env, check=True
    )


def prolog(run_dir: Path, env: dict[str, str], *more: str) -> subprocess.CompletedProcess[str]:
    """The hook alone."""
    return hook("prolog", run_dir, env, *more, proven=False)


@pytest.fixture
def asked(daemon: Callable[..., Daemon]) -> Daemon:
    return daemon(lambda _: YES)


def test_the_proof_is_taken_once(run_dir: Path, asked: Daemon) -> None:
    leave(run_dir, CARD_JOB)
    proof = run_dir / "spank/4711"
    assert proof.stat().st_mode & 0o777 == 0o600 and proof.parent.stat().st_mode & 0o777 == 0o700
    assert prolog(run_dir, CARD_JOB).returncode == 0
    assert not proof.exists() and list((run_dir / "spank").iterdir()) == []
    assert prolog(run_dir, CARD_JOB).returncode == 1
    assert len(asked.questions) == 1


def test_without_a_proof_the_node_is_drained_with_what_to_do(
    tmp_path: Path, run_dir: Path, asked: Daemon
) -> None:
    scontrol, log = fake_scontrol(tmp_path)
    done = prolog(run_dir, CARD_JOB, "--scontrol", str(scontrol))
    assert done.returncode == 1 and asked.questions == []
    (reason,) = [line for line in log.read_text().splitlines() if line.startswith("Reason=")]
    for part in (
        "SPANK plugin for job 4711",
        "plugstack.conf",
        "restart slurmd",
        "nodename=n1 state=resume",
    ):
        assert part in reason and part in done.stderr
    assert "SPANK plugin" in (run_dir / "last-failure").read_text()


@pytest.mark.parametrize(
    "gpus, comment", [("", ""), ("", "qgpu/1 node"), ("", "about qgpu/1 whole")]
)
def test_a_job_without_a_card_needs_and_leaves_none(run_dir: Path, gpus: str, comment: str) -> None:
    env = CARD_JOB | {"SLURM_JOB_GPUS": gpus, "SLURM_JOB_COMMENT": comment}
    leave(run_dir, env)
    assert not (run_dir / "spank").exists()
    assert prolog(run_dir, env).returncode == 0


@pytest.mark.parametrize(
    "change",
    [{"SLURM_JOB_RESTART_COUNT": "1"}, {"SLURM_JOB_RESTART_COUNT": "12"}, {"SLURM_JOB_ID": "4712"}],
)
def test_the_proof_of_another_start_proves_nothing(
    run_dir: Path, asked: Daemon, change: dict[str, str]
) -> None:
    leave(run_dir, CARD_JOB | {"SLURM_JOB_RESTART_COUNT": "0"})
    done = prolog(run_dir, CARD_JOB | change)
    assert done.returncode == 1 and asked.questions == []


@pytest.mark.parametrize(
    "forge, said",
    [
        (lambda text: text.replace("boot=", "boot=0"), "earlier start"),
        (lambda text: text.replace("grant=1", "grant=2"), "another release"),
        (lambda text: text * 2, "earlier start"),
        (lambda _: "", "earlier start"),
        (lambda text: text.rstrip() + "\0\n", "earlier start"),
    ],
)
def test_what_the_plugin_did_not_write_so_is_none(
    run_dir: Path, asked: Daemon, forge: Callable[[str], str], said: str
) -> None:
    leave(run_dir, CARD_JOB)
    proof = run_dir / "spank/4711"
    proof.write_text(forge(proof.read_text()))
    done = prolog(run_dir, CARD_JOB)
    assert done.returncode == 1 and said in done.stderr and asked.questions == []


@pytest.mark.parametrize("harm", ["owner", "mode", "link", "directory", "fifo"])
def test_a_proof_that_others_could_write_is_none(run_dir: Path, asked: Daemon, harm: str) -> None:
    leave(run_dir, CARD_JOB)
    proof = run_dir / "spank/4711"
    text = proof.read_text()
    if harm == "owner":
        os.chown(proof, 1000, 1000)
    elif harm == "mode":
        proof.chmod(0o666)
    elif harm == "directory":
        proof.parent.chmod(0o777)
    else:
        proof.unlink()
        other = run_dir / "other"
        other.write_text(text)
        proof.symlink_to(other) if harm == "link" else os.mkfifo(proof)
    assert prolog(run_dir, CARD_JOB).returncode == 1 and asked.questions == []


def test_the_epilog_removes_what_a_prolog_did_not_take(run_dir: Path, asked: Daemon) -> None:
    leave(run_dir, CARD_JOB)
    assert hook("epilog", run_dir, CARD_JOB).returncode == 0
    assert not (run_dir / "spank/4711").exists()


def test_a_plugin_with_another_run_dir_proves_nothing(
    tmp_path: Path, run_dir: Path, asked: Daemon
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    leave(run_dir, CARD_JOB, other)
    done = prolog(run_dir, CARD_JOB)
    assert done.returncode == 1 and "with this run_dir" in done.stderr


def test_where_qgpud_has_never_been_that_is_what_is_said(tmp_path: Path) -> None:
    missing = tmp_path / "run"
    leave(missing, CARD_JOB)
    done = hook("prolog", missing, CARD_JOB, deadline=200, proven=False)
    assert done.returncode == 1 and "qgpud on this node does not answer" in done.stderr


def test_node_name_is_put_into_the_plugins_run_dir(run_dir: Path, asked: Daemon) -> None:
    leave(run_dir, CARD_JOB | {"SLURMD_NODENAME": run_dir.name}, run_dir.parent / "%n")
    assert prolog(run_dir, CARD_JOB).returncode == 0
