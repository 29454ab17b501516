"""For a job with a card and no tag, and for no other, the hook asks slurmctld what it holds."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from test_hook_client import CARD_JOB, Daemon, daemon, fake_scontrol, hook, run_dir

__all__ = ["daemon", "run_dir"]

pytestmark = [
    pytest.mark.native,
    pytest.mark.skipif(os.geteuid() != 0, reason="the hook is root's"),
]
UNTAGGED = CARD_JOB | {"SLURM_JOB_COMMENT": "my own words", "SLURM_CONF": "/etc/slurm/own.conf"}


def fake_squeue(tmp_path: Path, body: str) -> Path:
    """A squeue that notes its words; where it does."""
    log = tmp_path / "squeue.log"
    script = tmp_path / "squeue"
    script.write_text(f'#!/bin/sh\necho "$SLURM_CONF $@" >> {log}\n{body}\n')
    script.chmod(0o755)
    return log


@pytest.fixture
def ask(
    tmp_path: Path, run_dir: Path, daemon: Callable[..., Daemon]
) -> Callable[[dict[str, str], str], tuple[str | None, str]]:
    """Run a Prolog with that squeue; what qgpud was told of the job's cards, and how squeue was
    called.
    """
    scontrol, _ = fake_scontrol(tmp_path)
    server = daemon(lambda _: b"qgpu-hook/1 0\0")

    def run(env: dict[str, str], body: str) -> tuple[str | None, str]:
        log = fake_squeue(tmp_path, body)
        assert hook("prolog", run_dir, env, "--scontrol", str(scontrol)).returncode == 0
        told = [
            part
            for part in server.questions[-1].split(b"\0")
            if part.startswith(b"QGPU_ALLOCATED=")
        ]
        return told[0].decode().partition("=")[
            2
        ] if told else None, log.read_text() if log.exists() else ""

    return run


def test_an_untagged_card_is_looked_up(ask):
    told, called = ask(UNTAGGED, 'echo "4711                 cpu=1,gres/gpu=1   "')
    assert told == "cpu=1,gres/gpu=1"
    assert called == "/etc/slurm/own.conf -h -j 4711 -O JobID:20,tres-alloc:1000\n"


@pytest.mark.parametrize(
    "change",
    [
        {"SLURM_JOB_COMMENT": "qgpu/1 class=online share=30 mem=12288"},
        {"SLURM_JOB_COMMENT": " \tqgpu/9 whatever"},
        {"SLURM_JOB_EXTRA": "qgpu/1 whole; mine"},
        {"QGPU_NATIVE_SHARE": "30"},
    ],
)
def test_no_other_job_is_looked_up(ask, change):
    assert ask(UNTAGGED | change, "echo 4711 gres/gpu=1") == (None, "")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("4710 gres/gpu=9\\n4711 gres/shard=3\\n4712 gres/gpu=8\\n", "gres/shard=3"),
        ("47110 gres/gpu=9\\n", "?"),
        ("  4711   gres/gpu=2\\n", "gres/gpu=2"),
        ("4711\\n4711 \\n", "?"),
        ("", "?"),
        (f"4711 gres/gpu=1,{'x' * 989}\\n", "?"),  # as long as the field: it may be cut
        (f"4711 gres/gpu=1,{'x' * 988}\\n", f"gres/gpu=1,{'x' * 988}"),
    ],
)
def test_the_line_of_this_job_counts(ask, text, told):
    assert ask(UNTAGGED, f"printf '{text}'")[0] == told


def test_the_leader_of_a_large_array_is_found_among_its_tasks(ask):
    lines = (
        'for n in $(seq 2000); do printf "%-20s%-1000s\\n" "5$n" gres/shard=30; done; echo '
        '"4711 gres/gpu=1"'
    )
    assert ask(UNTAGGED, lines)[0] == "gres/gpu=1"


@pytest.mark.parametrize(
    "body", ["echo 4711 gres/gpu=1; exit 1", "kill -9 $$", "yes | head -c 200000"]
)
def test_a_squeue_that_fails_tells_nothing(ask, body):
    assert ask(UNTAGGED, body)[0] == "?"


def test_a_squeue_that_hangs_costs_five_seconds_and_not_qgpuds_time(ask):
    began = time.monotonic()
    assert ask(UNTAGGED, "sleep 60")[0] == "?"
    assert time.monotonic() - began < 40
