"""What users do on the site that docs/install.md made."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from harness.site import Site, until

CAP_30 = 23962 << 20  # bytes: 30 % of 80 GiB less the reserve of 2 GiB, rounded up
REFUSED = {
    "qgpu:130": "--gres=qgpu:100",
    "qgpu:0": "the share of a card must be at least 1 percent",
    "qgpu:abc": "'abc' is not a whole number of percent",
    "qgpu:30,vram:200G": "one card has 79872M to share",
    "qgpu:30,gpu:1": "a job has either a share or whole cards",
    "shard:30": "qgpu itself books what is shared",
}


def finished(site: Site, words: str, name: str) -> str:
    """Run a job of the workload and return what it wrote."""
    out = site["ctl"].homes / "alice" / name
    out.unlink(missing_ok=True)
    site["login"].run(f"sbatch --wait -o {name} {words}", user="alice")
    return out.read_text()


def summary(text: str) -> dict[str, Any]:
    """The workload's own summary."""
    found: dict[str, Any] = json.loads(
        next(line for line in text.splitlines() if line.startswith("{"))
    )
    return found


def past_cap(
    site: Site, request: str = "--qos=offline --gres=qgpu:30", name: str = "past.out"
) -> str:
    """What a job says that asks for 60 GiB of the card's memory, and goes on with less."""
    command = "/usr/libexec/qgpu/qgpu-workload --alloc-past 60GiB --length 0.5 --json"
    return finished(site, f"{request} --wrap '{command}'", name)


def test_plain_job(site: Site) -> None:
    assert site.srun("id -un").out == "alice\n"


def test_plain_job_has_no_card(site: Site) -> None:
    done = site.srun("/usr/libexec/qgpu/qgpu-workload --length 1", check=False)
    assert "no card can be used" in done.text


def test_over_cap_is_refused_with_a_sentence(site: Site) -> None:
    text = past_cap(site)
    assert "holds 23.4 of 23.4 GiB on this card. Ask for more with vram" in text
    assert summary(text)["alloc"]["error"] == "CUDA_ERROR_OUT_OF_MEMORY"
    assert CAP_30 - (2 << 30) < summary(text)["alloc"]["bytes"] <= CAP_30


def test_whole_card_has_no_cap(site: Site) -> None:
    assert summary(past_cap(site, "--gres=gpu:1"))["alloc"]["refused"] is False


@pytest.mark.parametrize("gres", REFUSED)
def test_bad_request_is_refused_with_a_sentence(site: Site, gres: str) -> None:
    assert REFUSED[gres] in site.refused(f"--gres={gres} --wrap true")


def test_report_has_what_was_granted_and_used(site: Site) -> None:
    words = "--qos=online --gres=qgpu:40 --parsable --wait --wrap"
    command = "/usr/libexec/qgpu/qgpu-workload --length 2"
    job = site["login"].run(f"sbatch {words} '{command}'", user="alice").out.strip()
    site["ctl"].run("systemctl start qgpu-collect.service")
    text = site["ctl"].run(f"qgpu report {job}").out
    figures = {"JOBID": job, "USER": "alice", "STATE": "COMPLETED", "CLASS": "online"}
    for name, value in {**figures, "CARD": "n[12]:[01]", "SHARE%": "40"}.items():
        assert re.search(rf"^{name} +{value}$", text, re.MULTILINE), text


def test_accounting_has_the_class(site: Site) -> None:
    job = site.submit("--qos=online --gres=qgpu:20 --wrap true")
    ask = f"sacct -X -n -P -j {job} -o alloctres,state"
    until(lambda: "COMPLETED" in site["ctl"].run(ask).out, f"the record of job {job}")
    assert "gres/qgpu:online=20" in site["ctl"].run(ask).out
