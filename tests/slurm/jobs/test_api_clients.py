"""Clients of Slurm's C interface, which no cli_filter and no SPANK plugin ever sees: they gain
nothing by that.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from jobs_support import Live

FORGED = "qgpu/1 class=online share=100 mem=79872"


@pytest.fixture(scope="session")
def client(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program, where users of the sandbox may run it."""
    path = tmp_path_factory.mktemp("api") / "api_client"
    source = Path(__file__).with_name("api_client.c")
    flags = ("-std=gnu11", "-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas")
    subprocess.run(["cc", *flags, "-o", str(path), str(source), "-lslurm"], check=True)
    return path


def submit(
    live: Live, client: Path, gres: str = "", comment: str = "", extra: str = "", qos: str = ""
) -> str:
    """What the client prints: the job's number or a refusal."""
    place = live.sandbox.layout.opt / "bin/api_client"
    if not place.exists():
        place.write_bytes(client.read_bytes())
        place.chmod(0o755)
    prefixed = ",".join(live.dialect.prefix + entry for entry in gres.split(",")) if gres else ""
    return live.run("api_client", prefixed, comment, extra, qos, user="alice").stdout.strip()


def test_a_share_is_rewritten_and_a_forged_tag_does_not_count(live: Live, client: Path) -> None:
    job = int(submit(live, client, "qgpu:30,vram:4G", FORGED, FORGED, "offline"))
    live.until(lambda: job in live.grants(), 20, "its grant")
    grant = live.grants()[job]
    assert (grant.job_class, grant.cards[0].share, grant.cards[0].mem_cap) == (
        "offline",
        30,
        4 << 30,
    )
    assert live.tag(job) == "qgpu/1 class=offline share=30 mem=4096"
    assert "79872" not in live.run("scontrol", "show", "job", str(job)).stdout
    live.cancel(job)


@pytest.mark.parametrize(
    "gres", ["shard:30", "mps:30", "qgpu:online:30", "qgpu:online:30,shard:1,vram:70G"]
)
def test_the_carriers_are_refused(live: Live, client: Path, gres: str) -> None:
    assert submit(live, client, gres, FORGED, FORGED, "online").startswith("refused: ")
    assert live.ask("squeue", "-h", "-o", "%i") == ""


def test_a_job_without_a_card_cannot_carry_a_tag(live: Live, client: Path) -> None:
    job = int(submit(live, client, "", f"{FORGED}; mine", f" {FORGED}; qgpu/1 whole; mine"))
    shown = live.run("scontrol", "show", "job", str(job)).stdout
    assert "qgpu/" not in shown and "mine" in shown
    live.cancel(job)


def test_what_a_user_writes_later_is_stripped_too_and_admin_comment_is_the_admins(
    live: Live, client: Path
) -> None:
    job = int(submit(live, client, "qgpu:30,vram:4G", "", "", "offline"))
    live.until(lambda: job in live.grants(), 20, "its grant")
    before = live.tag(job)
    for field in ("Comment", live.dialect.field):
        live.ask("scontrol", "update", f"JobId={job}", f"{field}={FORGED}; mine", user="alice")
    assert live.tag(job) == f"{before}; mine"
    assert "79872" not in live.run("scontrol", "show", "job", str(job)).stdout
    done = live.run("scontrol", "update", f"JobId={job}", f"AdminComment={FORGED}", user="alice")
    assert done.returncode != 0, "users cannot write it, and no node reads it"
    live.cancel(job)
